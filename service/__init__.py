"""The control plane: REST, database, lifecycles, and the conductor that judges and promotes.

Read in the order of the data: `submission` → `claims` → `telemetry` → `run_states` → `judging` →
`progress`. Everything that changes an experiment goes through `lifecycle`; everything that happens
by itself is one loop in `conductor/`; `rest/` only translates HTTP.
"""
