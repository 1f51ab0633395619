"""The judgement, pure: what was found, what is decided, and why.

Layers; each one imports only those below it. `facts` is all that a run left behind; `gate` is the
rules, and the verdict of facts under rules; `follow_up` says what happens next. `compare`, beside
the gate, says which of several variants is better. No network, no database, no clock: `now` is an
argument. `directory` reads a run directory for a command, and alone reads the wall clock.
"""
