"""How often would the watch end a healthy run, and how often miss a sick one? Simulated, pure.

`rates` says what is normal, `ranks` writes the lines of a run (`attached` those of a script that
attached our library), `training` and `scripted` let a run go, `run` makes whole runs (healthy or
sick), `watcher` looks at them, `tally` counts what was found, and `plan`
says which runs are simulated. The same seed gives the same result, in however many parts.
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
