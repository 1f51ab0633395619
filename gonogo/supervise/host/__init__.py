"""What does the host have left for a run? Disk, checkpoints, memory, and the measured peak."""
