"""What Prometheus sees of the control plane and of the active runs, read per scrape."""
