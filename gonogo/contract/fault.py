"""Which fault is injected on demand? The table of SPECs, parsed and refused in one place.

A SPEC is `kind` or `kind:key=value,…`; `phase` (default `smoke`) says in which phase it strikes,
in every attempt of it. The trainer acts on the SPEC, without the phase.
"""

from dataclasses import dataclass

from gonogo.contract.errors import Rejected
from gonogo.contract.plan import Plan

DEFAULT_PHASE = "smoke"

KINDS: dict[str, dict[str, str]] = {
    "hang": {"rank": "1", "step": "12", "section": "backward"},
    "freeze": {"rank": "0", "step": "9"},
    "slow": {"factor": "5", "from": "20"},
    "nan": {"step": "15"},
    "crash": {"rank": "1", "step": "8"},
    "exit": {"code": "3", "rank": "0", "step": "8"},
    "wrong-config": {},
}
"""Kind → its keys and their defaults."""

SECTIONS = ("data", "forward", "backward", "optimizer", "log", "checkpoint", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A parsed SPEC; `spec` is whole (defaults filled in) and without its phase."""

    kind: str
    phase: str
    values: dict[str, str]

    @property
    def spec(self) -> str:
        """Return the SPEC that the trainer gets."""
        pairs = ",".join(f"{key}={value}" for key, value in self.values.items())
        return f"{self.kind}:{pairs}" if pairs else self.kind


def parse_fault(spec: str, plan: Plan) -> Fault:
    """Return the fault that `spec` describes.

    Raises:
        Rejected: an unknown kind, key, phase, rank or section, a step that the phase does not
            have, or a value that is no number.
    """
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        raise Rejected(f"fault: found {kind!r}; expected one of {', '.join(KINDS)}")
    values = dict(KINDS[kind])
    phase_name = DEFAULT_PHASE
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if key == "phase" and equals:
            phase_name = value
        elif key in values and equals:
            values[key] = value
        else:
            known = ", ".join([*values, "phase"])
            raise Rejected(f"fault {kind}: found {pair!r}; expected KEY=VALUE with KEY of {known}")
    phase = plan.phase(phase_name)
    _check_values(kind, values, plan.workload.world_size, phase.steps)
    return Fault(kind=kind, phase=phase_name, values=values)


def _check_values(kind: str, values: dict[str, str], world_size: int, steps: int) -> None:
    bounds = {
        "rank": (0, world_size - 1),
        "step": (1, steps),
        "from": (1, steps),
        "code": (1, 255),
        "factor": (1, 1000),
    }
    for key, value in values.items():
        if key == "section":
            if value not in SECTIONS:
                raise Rejected(
                    f"fault {kind}: section: found {value!r}; expected {', '.join(SECTIONS)}"
                )
            continue
        low, high = bounds[key]
        try:
            number = float(value) if key == "factor" else int(value)
        except ValueError as error:
            raise Rejected(f"fault {kind}: {key}: found {value!r}; expected a number") from error
        if not low <= number <= high:
            raise Rejected(f"fault {kind}: {key}: found {value}; expected {low} to {high}")
