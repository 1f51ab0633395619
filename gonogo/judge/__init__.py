"""The judgement, pure: what was found, what is decided, and why.

Layers; each one imports only those below it. `facts` is all that a run left behind, and what a gate
may look at; `gate` is the rules, and the verdict of facts under rules; `course` says what happens
next. `compare`, beside the gate, says which of several variants is better, and `comparing` reads
its runs. No network, no database, no clock: `now` is an argument. `directory` judges a run
directory for a command, and alone reads the wall clock.
"""
