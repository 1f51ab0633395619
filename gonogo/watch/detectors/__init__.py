"""Detectors (docs/detectors.md); `deadlines` holds the mechanism of the deadlines."""
