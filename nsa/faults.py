"""Faults that a run injects into itself on purpose, to prove that a watcher sees them.

A SPEC is `kind:key=value,…`; `_DEFAULTS` gives the rest. `phase=` is for the writer of the order.
"""

import errno
import mmap
import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

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
_OF_DEVICES = frozenset({"xid", "imbalance"})
"""Faults that the devices show; the trainer has no part in them."""
_SECTIONS = ("boot", "data", "forward", "backward", "optimizer", "log", "checkpoint", "eval")
_SLOWED = {"straggle": "forward", "starve": "data"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, as it concerns this rank: `kind` is None where another rank suffers it.

    `second_group`: every rank has to open one, even if another rank uses it.
    """

    kind: str | None = None
    step: int = 0
    section: str = ""
    factor: float = 1.0
    code: int = 0
    share: float = 0.0
    mb_per_step: int = 0
    second_group: bool = False
    _held: list[mmap.mmap] = field(default_factory=list, compare=False, repr=False)

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

    def stands_apart(self, step: int) -> bool:
        """Whether this rank enters one more collective in this step, which no other enters."""
        return self.kind == "desync" and step == self.step

    def drag(self, step: int, natural_s: float) -> None:
        """Make a step that took `natural_s` so far take `factor` times as long."""
        if self.kind == "slow" and step >= self.step:
            time.sleep((self.factor - 1.0) * natural_s)

    def delay_s(self, section: str, step: int, own_s: float) -> float:
        """How much longer a section has to take, when a step of this rank's own takes `own_s`."""
        if self.kind is None or _SLOWED.get(self.kind) != section or step < self.step:
            return 0.0
        if self.kind == "starve":
            return own_s * self.share / (1.0 - self.share)
        return own_s * (self.factor - 1.0)

    def data_step(self, step: int) -> int:
        """The step whose batch is served: a frozen loader serves the same one for ever."""
        return min(step, self.step) if self.kind == "frozen" else step

    def rate(self, step: int, rate: float) -> float:
        """The learning rate in place of `rate`: none moves nothing, a negative one climbs."""
        if step < self.step or self.kind not in ("frozen", "diverge"):
            return rate
        return 0.0 if self.kind == "frozen" else -rate

    def leak(self, step: int) -> None:
        """Keep and touch more host memory; mapped by itself, so that it was not resident before."""
        if self.kind == "leak" and step >= self.step:
            block = mmap.mmap(-1, self.mb_per_step * 2**20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for page in range(0, len(block), mmap.PAGESIZE):
                block[page] = 1
            self._held.append(block)

    def told_speed(self, step: int, tok_s: float) -> float:
        """The tokens per second that are reported: a boast is `factor` times what is true."""
        boasts = self.kind == "boast" and step >= self.step
        return tok_s * self.factor if boasts else tok_s

    def strike_write(self, step: int, file: Path) -> None:
        """Called for each file of a checkpoint once written: a full disk refuses, or it is cut."""
        if self.kind == "disk" and step >= self.step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kind == "truncate" and step >= self.step:
            os.truncate(file, file.stat().st_size - 1)


def parse_fault(spec: str | None, *, rank: int, world_size: int) -> Fault:
    """The fault of a SPEC as it concerns one rank; BadConfig where the SPEC is none."""
    if spec is None:
        return Fault()
    kind, _, rest = spec.partition(":")
    if kind in _OF_DEVICES:
        return Fault()
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


def fault_of(spec: str | None, config: TrainConfig, *, rank: int, world_size: int) -> Fault:
    """The same for a training: synthetic batches come from no loader, so nothing can starve."""
    fault = parse_fault(spec, rank=rank, world_size=world_size)
    return Fault() if fault.kind == "starve" and config.data == "synthetic" else fault


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
    if kind == "desync" and (target == "all" or world_size < 2):
        raise ValueError("desync needs one rank among several")
    section = values.get("section", "")
    if section and section not in _SECTIONS:
        raise ValueError(f"unknown section {section!r}; known: {', '.join(_SECTIONS)}")
    factor, share = float(values.get("factor", 1.0)), float(values.get("share", 0.0))
    mb_per_step = int(values.get("mb_per_step", 0))
    if not 1.0 <= factor < float("inf"):
        raise ValueError("factor must be at least 1")
    if not 0.0 <= share < 1.0 or mb_per_step < 0:
        raise ValueError("share must be at least 0 and below 1, mb_per_step at least 0")
    return Fault(
        kind=kind if target == "all" or int(target) == rank else None,
        step=int(values.get("step", values.get("from", 0))),
        section=section,
        factor=factor,
        code=int(values.get("code", 0)),
        share=share,
        mb_per_step=mb_per_step,
        second_group=kind == "desync",
    )
