"""The control plane: REST, database, lifecycles, and the conductor that judges and promotes.

A folder a noun, held one above the other by the contract "service-floors" of pyproject.toml.
Read in the order of the data: `experiments.submission` → `agent.claims` → `agent.telemetry` →
`agent.run_states` → `judging.ended` → `experiments.course`. Everything that changes an experiment
goes through `experiments.lifecycle`; everything that happens by itself is one loop in `conductor/`;
`rest/` only translates HTTP.
"""
