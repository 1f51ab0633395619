"""What becomes of an experiment: submitted, run, decided, ended; each step in one transaction."""
