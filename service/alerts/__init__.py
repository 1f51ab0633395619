"""How do alerts leave the service? From the outbox to every subscription, at least once.

`outbox` (rows: what waits for whom) → `delivery` (the conductor's loop) → `message` (one signed
POST) → `schedule` (when to try again). A new channel is a module beside `message`.
"""
