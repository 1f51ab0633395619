"""The control plane: REST, database, lifecycles, and the conductor that judges and promotes.

Folders are layers (contract "service-floors" of pyproject.toml). Read in the order of the data:
`experiments.submission` → `agent.claims` → `agent.telemetry` → `agent.reports` → `judging.ended` →
`experiments.decisions`. Every change of an experiment goes through `experiments.lifecycle`.
"""
