"""What do rules say about facts? Rules, criteria, verdicts, conditions, diagnoses."""
