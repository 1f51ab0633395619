"""The timeline of a run: heartbeat lines and ticks as boots, steps and sections.

- `lines`: which lines of a rank have come, and which boot is obeyed
- `rank`, `advance`: where each rank is, line by line
- `step`: how long steps take, and which steps every rank has completed
- `columns`, `rank_steps`: the numbers of all steps, one row a step
- `timeline`: all of it in active time, moved on by lines
"""
