"""Detectors (docs/detectors.md); `gonogo.watch.progress` holds the mechanism of the deadlines."""
