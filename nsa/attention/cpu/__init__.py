"""A kernel in C for one token on a CPU, compiled where there is a compiler.

`decode.py` takes it where it is there and right and can serve the call (`token.call_reason`), and
says in `counters` which path served and why.
"""
