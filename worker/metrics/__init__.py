"""What Prometheus reads of a host and its living runs."""
