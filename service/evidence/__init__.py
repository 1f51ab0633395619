"""What a run left, to be looked at: files, logs, curves, and how its gate stands now."""
