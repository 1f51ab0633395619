"""What may become of an experiment: submitted, begun, decided, ended; each in one transaction."""
