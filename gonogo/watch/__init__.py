"""What do heartbeats and the watcher's own observations add up to? Detectors and their fold.

`fold.start`, `fold.fold` (one tick), `offline_fold.refold` (a whole directory). A detector is one
module in `detectors/` and one row in `registry.REGISTRY`.
"""
