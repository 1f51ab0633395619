"""Detectors with a module each (docs/detectors.md); deadlines are in `gonogo.watch.progress`."""
