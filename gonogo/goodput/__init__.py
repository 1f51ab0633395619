"""Where did the time of a run go? Accounting over what was recorded; pure, with the clock given.

`lines` adds up the timeline of one rank; `account` splits the wall time of runs and experiments.
No verdict rests on it. docs/how-to/report.md defines the parts.
"""
