"""How often would the watch end a healthy run, and how often miss a sick one? Simulated, pure.

`noise` says what is normal, `ranks` writes the lines of a run (`attached` those of a script that
attached our library), `training` and `scripted` let a run go, `run` makes whole runs (healthy or
sick), `watcher` looks at them, `tally` counts what was found, and `plan`
says which runs are simulated. The same seed gives the same result, in however many parts.
"""

from lab.noise import DOUBLED, STANDARD, Noise
from lab.plan import Cell, Part, plan_parts
from lab.run import simulate_part, watched
from lab.sick import SICK, Sickness
from lab.tally import Tally, report_of, upper_bound

__all__ = [
    "DOUBLED",
    "SICK",
    "STANDARD",
    "Cell",
    "Noise",
    "Part",
    "Sickness",
    "Tally",
    "plan_parts",
    "report_of",
    "simulate_part",
    "upper_bound",
    "watched",
]
