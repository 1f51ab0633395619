"""A kernel in C for one token on a CPU: compiled where there is a compiler, and never asked for.

`decode.py` takes it where it is there and right (`serving_reason`), and says in `counters` which
path served and why.
"""
