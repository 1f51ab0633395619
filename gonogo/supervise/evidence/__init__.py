"""What is kept of a run that looks sick? Rounds of stacks, collectives, logs and process state."""
