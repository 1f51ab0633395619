"""What happens by itself: one loop each for waking, leases, judging, alerts, cursors and upkeep.

On PostgreSQL several services may run; one conducts.
"""
