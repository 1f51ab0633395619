"""Supervision of one run; no control plane.

- `keeper_start` starts a keeper; `keeper/` owns the run's processes; `launch/` wraps each rank.
- `watcher/` looks at the run and decides; `node_reporter` reports another node to it.
- `evidence/` collects stacks of a run that looks sick; `devices/` and `host/` observe the machine.
- `lost_run` ends a run whose keeper is gone.

`keeper/`, `launch/` and what they use need only the standard library: what ends a run must not fail
for a package. Whatever touches files raises OSError when the disk refuses; docstrings name only
other errors.
"""
