"""The folder that stands on PYTHONPATH of an observed program; it holds `sitecustomize` alone."""
