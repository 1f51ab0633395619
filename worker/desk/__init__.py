"""What the worker's main thread does: claim runs, start their keepers, end what lost its keeper."""
