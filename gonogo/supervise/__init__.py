"""Who keeps one run, and who watches it? Everything that supervises a single run; no control plane.

As a run goes: `start` a keeper in a session of its own · `keeper/` owns the run's processes ·
`launch/` says what is started, and wraps each rank · `watcher/` folds what ranks write and what it
sees itself, and decides · `evidence/` is taken of a run that looks sick · `devices/` and `host/`
say what accelerators and host do meanwhile · `lost` ends a run whose keeper is gone.

`keeper/`, `launch/` and the modules beside them that they use (`durable`, `end_request`,
`exit_record`, `locks`, `processes`) need nothing but the standard library: what ends a run must
not fail for a package. A service, where there is one, is told by a `Shipping` that the watcher is
given.
"""
