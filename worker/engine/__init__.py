"""Who starts a run's keepers, and who can say that they have ended? An engine."""
