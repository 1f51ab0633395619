"""Which of several variants is better? Runs as units, intervals, and what really differed.

`question` is what is asked, `unit` what one run brings, `paths` what differs, `interval` how sure a
ratio is, `answer` one variant's answer, `compare` the result, `campaign` the next run. Pure: the
same units give the same comparison on any machine.
"""
