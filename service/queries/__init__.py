"""Queries by noun, for what is shown, reported or decided. Nothing here writes, locks or judges."""
