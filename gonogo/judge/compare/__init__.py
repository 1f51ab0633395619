"""Which of several variants is better? Runs as units, intervals, and what really differed.

`student` is the t distribution, `unit` what one run brings, `paths` what differs, `interval` how
sure a ratio is, `repeats` how many more would decide, `compare` the answers. Pure: the same units
give the same comparison on any machine.
"""
