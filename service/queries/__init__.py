"""What is asked of the tables by those who show, tell or decide? Each question once, by its noun.

Nothing here writes, locks or judges; what changes rows stands with its noun, in one transaction.
The bytes that a run left (heartbeats, logs, records) are asked for in `service.evidence`.
"""
