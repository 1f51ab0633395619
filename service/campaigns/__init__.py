"""Campaigns: variants of one phase, run in turns as ordinary experiments, and compared."""
