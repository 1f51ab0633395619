"""What a worker knows of its host: machine, devices, fitness, and the runs of its home."""
