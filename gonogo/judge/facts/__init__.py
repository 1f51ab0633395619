"""What did a run leave behind, and what can be measured on it? Records, facts, metrics."""
