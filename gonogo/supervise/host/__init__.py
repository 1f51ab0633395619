"""What a host has left for a run: disk, memory, processors; and its checkpoints."""
