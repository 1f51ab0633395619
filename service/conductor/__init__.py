"""What happens by itself: one loop each for waking, leases, judging, the cursor, and upkeep.

Every loop is a triple: a pure decision, a pass that reads, decides and writes once, and the thread
that repeats the pass at once when the bell rings and every few seconds otherwise. On PostgreSQL
several services may run; one conducts.
"""
