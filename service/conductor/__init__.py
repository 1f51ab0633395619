"""What happens by itself: one loop each for waking, leases, judging, alerts, cursors and upkeep."""
