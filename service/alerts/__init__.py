"""Alerts: outbox (rows), delivery (the conductor's loop), post (one signed POST)."""
