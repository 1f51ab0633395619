"""Which fault is this run told to suffer? Injected on purpose, to prove that a watcher sees it.

A SPEC is `kind:key=value,…`; what is left out has the default of `_DEFAULTS`. `phase=` is the
business of whoever writes the order and is ignored here.
"""

import os
import signal
import time
from dataclasses import dataclass, replace

from nsa.config import TrainConfig
from nsa.errors import BadConfig

_DEFAULTS: dict[str, dict[str, str]] = {
    "hang": {"rank": "1", "step": "12", "section": "backward"},
    "freeze": {"rank": "0", "step": "9", "section": "data"},
    "slow": {"rank": "all", "factor": "5", "from": "20"},
    "nan": {"rank": "all", "step": "15"},
    "crash": {"rank": "1", "step": "8", "section": "data"},
    "exit": {"rank": "0", "step": "8", "section": "data", "code": "3"},
    "wrong-config": {},
}
_SECTIONS = ("boot", "data", "forward", "backward", "optimizer", "log", "checkpoint", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, as it concerns this rank: `kind` is None where another rank suffers it."""

    kind: str | None = None
    step: int = 0
    section: str = ""
    factor: float = 1.0
    code: int = 0

    def strike(self, section: str, step: int) -> None:
        """Called on entering a section: hang, stop, kill or leave when it is time."""
        if section != self.section or (section != "boot" and step < self.step):
            return
        if self.kind == "hang":
            while True:
                time.sleep(3600)
        if self.kind == "freeze" and (step == self.step or section == "boot"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.kind == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "exit":
            os._exit(self.code)

    def poisons(self, step: int) -> bool:
        """Whether the weights become NaN before this step's forward pass."""
        return self.kind == "nan" and step == self.step

    def drag(self, step: int, natural_s: float) -> None:
        """Make a step that took `natural_s` so far take `factor` times as long."""
        if self.kind == "slow" and step >= self.step:
            time.sleep((self.factor - 1.0) * natural_s)


def parse_fault(spec: str | None, *, rank: int, world_size: int) -> Fault:
    """The fault of a SPEC as it concerns one rank.

    Raises:
        BadConfig: an unknown kind or key, a value that is no number, or a rank that is not there.
    """
    if spec is None:
        return Fault()
    kind, _, rest = spec.partition(":")
    if kind not in _DEFAULTS:
        raise BadConfig(f"unknown fault {kind!r}; known: {', '.join(_DEFAULTS)}")
    values = dict(_DEFAULTS[kind])
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if key == "phase":
            continue
        if key not in values or not equals:
            raise BadConfig(f"fault {spec!r}: {pair!r} does not fit; keys: {', '.join(values)}")
        values[key] = value
    try:
        return _fault(kind, values, rank, world_size)
    except ValueError as error:
        raise BadConfig(f"fault {spec!r}: {error}") from error


def toy_instead_of(config: TrainConfig) -> TrainConfig:
    """What `wrong-config` trains: one layer of 128 dims on 128-byte sequences (R70)."""
    toy = replace(
        config.model, dim=128, layers=1, heads=4, groups=2, head_dim=32, ffn_width=512, seq_len=128
    )
    return replace(config, model=toy)


def _fault(kind: str, values: dict[str, str], rank: int, world_size: int) -> Fault:
    target = values.get("rank", "all")
    if target != "all" and not 0 <= int(target) < world_size:
        raise ValueError(f"there is no rank {target} among {world_size}")
    section = values.get("section", "")
    if section and section not in _SECTIONS:
        raise ValueError(f"unknown section {section!r}; known: {', '.join(_SECTIONS)}")
    factor = float(values.get("factor", 1.0))
    if not 1.0 <= factor < float("inf"):
        raise ValueError("factor must be at least 1")
    return Fault(
        kind=kind if target == "all" or int(target) == rank else None,
        step=int(values.get("step", values.get("from", 0))),
        section=section,
        factor=factor,
        code=int(values.get("code", 0)),
    )
