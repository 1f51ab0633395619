"""Rounds of evidence about a run that looks sick: stacks, collectives, logs and process state."""
