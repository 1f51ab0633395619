"""The judgement, pure: what was found, what is decided, and why.

`watch` folds heartbeats and observations into findings; `record` is all that a run left behind;
`facts` is what a gate may look at; `rules` is what the verdict depends on; `verdict` judges facts
by rules; `decide` says what happens next; `replay` comes to the same digests again. No network, no
database, no clock: `now` is an argument.
"""
