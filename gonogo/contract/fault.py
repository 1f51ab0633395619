"""Faults on demand: the table of SPECs and its parser.

A SPEC is `kind` or `kind:key=value,…`. It strikes in every attempt of `phase` (default `smoke`).
"""

from dataclasses import dataclass

from gonogo.contract.errors import NotFound, Rejected
from gonogo.contract.plan import Phase, Plan

DEFAULT_PHASE = "smoke"

KINDS: dict[str, dict[str, str]] = {
    "hang": {"rank": "1", "step": "12", "section": "backward"},
    "freeze": {"rank": "0", "step": "9"},
    "slow": {"factor": "5", "from": "20"},
    "nan": {"step": "15"},
    "xid": {"code": "79", "rank": "1", "step": "12"},
    "imbalance": {"rank": "1", "util": "30", "from": "10"},
    "crash": {"rank": "1", "step": "8"},
    "exit": {"code": "3", "rank": "0", "step": "8"},
    "wrong-config": {},
    "desync": {"rank": "1", "step": "12"},
    "diverge": {"from": "20"},
    "frozen": {"from": "20"},
    "straggle": {"rank": "1", "factor": "2", "from": "10"},
    "starve": {"share": "0.7", "from": "10"},
    "leak": {"rank": "0", "mb_per_step": "50", "from": "10"},
    "disk": {"step": "12"},
    "boast": {"factor": "25", "from": "10"},
    "truncate": {"step": "12"},
}
"""Kind → its keys and their defaults."""

WHOLE_NUMBERS: dict[str, tuple[int, int]] = {
    "code": (1, 255),
    "mb_per_step": (1, 65_536),
    "util": (0, 100),
}
FRACTIONS: dict[str, tuple[float, float]] = {"factor": (1, 1000), "share": (0.01, 0.99)}
"""Key → the least and the most it may be; rank, step and from depend on the plan."""

SECTIONS = ("data", "forward", "backward", "optimizer", "log", "checkpoint", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A parsed SPEC, defaults included."""

    kind: str
    phase: str
    values: dict[str, str]

    @property
    def spec(self) -> str:
        """Return the SPEC for the trainer, without the phase."""
        pairs = ",".join(f"{key}={value}" for key, value in self.values.items())
        return f"{self.kind}:{pairs}" if pairs else self.kind


def parse_fault(spec: str, plan: Plan) -> Fault:
    """Return the fault that `spec` describes.

    Raises:
        Rejected: an unknown kind, key or phase, a repeated key, or a value out of range.
    """
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        raise Rejected(f"fault: found {kind!r}; expected one of {', '.join(KINDS)}")
    said = _said(kind, rest)
    phase = _phase(kind, said.pop("phase", DEFAULT_PHASE), plan)
    values = {**KINDS[kind], **said}
    if kind == "desync" and plan.workload.world_size < 2:
        raise Rejected("fault desync: expected a plan of at least 2 ranks; found 1")
    _check_values(kind, values, plan.workload.world_size, phase.steps)
    return Fault(kind=kind, phase=phase.name, values=values)


def _said(kind: str, rest: str) -> dict[str, str]:
    said: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or key not in (*KINDS[kind], "phase"):
            known = ", ".join([*KINDS[kind], "phase"])
            raise Rejected(f"fault {kind}: found {pair!r}; expected KEY=VALUE with KEY of {known}")
        if key in said:
            raise Rejected(f"fault {kind}: found {key} twice; expected it once")
        said[key] = value
    return said


def _phase(kind: str, name: str, plan: Plan) -> Phase:
    try:
        return plan.phase(name)
    except NotFound as error:  # of a SPEC it is a bad value, not a missing thing
        known = ", ".join(phase.name for phase in plan.phases)
        raise Rejected(f"fault {kind}: phase: found {name!r}; expected one of {known}") from error


def values_of(spec: str) -> tuple[str, dict[str, str]]:
    """Return kind and values of a whole SPEC, as an order carries it; nothing is checked."""
    kind, _, rest = spec.partition(":")
    pairs = (pair.partition("=") for pair in rest.split(",") if pair)
    return kind, {**KINDS.get(kind, {}), **{key: value for key, _, value in pairs}}


def _check_values(kind: str, values: dict[str, str], world_size: int, steps: int) -> None:
    whole = {
        **WHOLE_NUMBERS,
        "rank": (0, world_size - 1),
        "step": (1, steps),
        "from": (1, steps),
    }
    for key, value in values.items():
        if key == "section":
            if value not in SECTIONS:
                raise Rejected(
                    f"fault {kind}: section: found {value!r}; expected {', '.join(SECTIONS)}"
                )
            continue
        low, high = whole[key] if key in whole else FRACTIONS[key]
        try:
            number = int(value) if key in whole else float(value)
        except ValueError as error:
            raise Rejected(f"fault {kind}: {key}: found {value!r}; expected a number") from error
        if not low <= number <= high:
            raise Rejected(f"fault {kind}: {key}: found {value}; expected {low} to {high}")
