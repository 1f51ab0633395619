"""What a run left: files, logs, curves, and how its gate stands now."""
