"""What do heartbeats and the watcher's own observations add up to? Detectors and their fold, pure.

`start`, `fold` (one tick), `replay_watch` (a whole directory). A detector is one module with
`observe(state, line or tick, view) -> (state, findings)` and one row in `registry.REGISTRY`.
"""

from gonogo.judge.watch.fold import WatchState, armed, fold, identity_ok, latched, start
from gonogo.judge.watch.replay import Replay, not_observed, replay_run, replay_watch
from gonogo.judge.watch.snapshot import RankSnapshot, Snapshot, snapshot

__all__ = [
    "RankSnapshot",
    "Replay",
    "Snapshot",
    "WatchState",
    "armed",
    "fold",
    "identity_ok",
    "latched",
    "not_observed",
    "replay_run",
    "replay_watch",
    "snapshot",
    "start",
]
