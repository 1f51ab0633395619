"""The worker's main thread: claim runs, start their keepers, end runs that lost their keeper."""
