"""D1 to D26, one module each, and nothing else (docs/detectors.md)."""
