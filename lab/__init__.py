"""How often would the watch end a healthy run, and how often miss a sick one? Simulated, pure.

`rates` defines normal noise, and `plan` the runs to simulate. `ranks` writes the lines of a run,
`attached` those of a script with our library. `training` and `scripted` drive a run, and `run`
makes whole runs, healthy or sick. `watcher` looks at them, and `tally` counts the findings. The
same seed gives the same result, in any number of parts.
"""

from lab.faults import FAULTS, Fault
from lab.plan import Cell, Part, plan_parts
from lab.rates import DOUBLED, STANDARD, Noise
from lab.run import simulate_part, watched
from lab.tally import Tally, report_of, upper_bound

__all__ = [
    "DOUBLED",
    "FAULTS",
    "STANDARD",
    "Cell",
    "Fault",
    "Noise",
    "Part",
    "Tally",
    "plan_parts",
    "report_of",
    "simulate_part",
    "upper_bound",
    "watched",
]
