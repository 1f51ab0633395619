"""What a run's directory tells the control plane, and what it has acknowledged."""
