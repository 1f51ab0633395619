"""Where did the time of a run go? Accounting over what was recorded; pure, with the clock given.

`lines` folds one rank's heartbeats, `account` splits the wall time of runs and experiments by them.
No verdict rests on it. docs/goodput.md defines the parts.
"""
