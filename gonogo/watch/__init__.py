"""What do heartbeats and the watcher's own observations add up to? Detectors and their fold.

`start`, `fold` (one tick), `refold` (a whole directory), `dump_state` and `load_state` (a
snapshot). A detector is one module in `detectors/` and one row in `registry.REGISTRY`.
"""

from gonogo.watch.fold import (
    WatchState,
    armed,
    dump_state,
    fold,
    fold_beats,
    identity_ok,
    load_state,
    look,
    near,
    start,
)
from gonogo.watch.offline_fold import Refold, not_observed, refold, replay_watch
from gonogo.watch.watch_record import WatchRecord, tick_digest, tick_line

__all__ = [
    "Refold",
    "WatchRecord",
    "WatchState",
    "armed",
    "dump_state",
    "fold",
    "fold_beats",
    "identity_ok",
    "load_state",
    "look",
    "near",
    "not_observed",
    "refold",
    "replay_watch",
    "start",
    "tick_digest",
    "tick_line",
]
