"""Account for the wall time of runs; docs/how-to/report.md defines the parts. Pure."""
