"""The simulated faults: what happens, and which detector must answer how strongly.

A row holds for one fault that a stream can show, from its onset on.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from gonogo.contract.finding import Severity
from gonogo.contract.outcome import Detector as Name
from lab.noise import Pause, Script, Who

ONSET_STEP = 260
"""After warm-up and baseline (20 + 200 steps), where a fault may begin at any step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault and the answer that is due."""

    name: str
    by: tuple[Name, ...]
    """Detectors of which one must answer."""
    severity: Severity = Severity.HALT
    rank: int | None = None
    """Culprit that must be named; None where the fault has none."""
    section: str | None = None
    onset_step: int = ONSET_STEP
    within_s: float = 1200.0
    """How long after the onset an answer is waited for."""
    hang: bool = False
    """Whether `rank` stays in `section` for ever."""
    silent: bool = False
    """Whether it cannot speak meanwhile."""
    state: str | None = None
    """How its process is found."""
    code: int | None = None
    together: bool = False
    """Whether its peers cannot speak either, so that all ranks are silent at once."""
    rounds: bool = False
    """Whether every rank goes from section to section and ends no step."""
    lingers: bool = False
    """Whether `rank` is done and does not exit."""
    tie: bool = False
    """Whether the ranks cannot be distinguished: no rank may be named."""
    step_x: float = 1.0
    """Factor on every rank's step."""
    own_x: float = 1.0
    """Factor on the step of `rank` 1 alone."""
    fetch_share: float = 0.0
    """Share of a step that is spent fetching."""
    numbers: str | None = None
    """What happens to loss, gradient or gates: see `series.py`."""
    backwards: bool = False
    claim_x: float = 1.0
    """Factor on the tokens a second that the trainer reports."""
    boot: str | None = None
    """What goes wrong at the start: `absent`, `stuck`, `foreign`."""
    watch: dict[str, Any] = field(default_factory=dict)
    """Settings that the fault needs (a limit to leak towards)."""
    step_s: tuple[float, ...] = (1.0, 2.4, 25.0)
    """Step times at which it is simulated."""
    script: Script | None = None
    """The calls of a script that attached our library; None: our own trainer reports."""

    @property
    def slows(self) -> bool:
        """Whether the run also becomes slow: then it has no floor, which would answer first."""
        return self.step_x != 1.0 or self.own_x != 1.0 or self.fetch_share > 0.0


def _hang(section: str, by: Name) -> Fault:
    return Fault(name=f"hang_{section}", by=(by,), rank=1, section=section, hang=True)


_ALONE = Script(
    names_data=True,
    evaluates=Pause(every=100, seconds=40.0, who=Who.FIRST),
    saves=Pause(every=50, seconds=20.0, who=Who.FIRST_AWAITED),
)
"""Rank 0 evaluates and saves for all; before the fault it has done so, and all was well."""


def _script(section: str, by: Name, script: Script = _ALONE, **more: Any) -> Fault:
    """Return a hang of a script that attached our library, by default of rank 1."""
    row = {"rank": 1, "section": section, "script": script, "hang": True, **more}
    return Fault(name=f"script_{section}", by=(by,), **row)


STALLS = (Name.STALL, Name.ALIVE_LOST)
FAULTS: tuple[Fault, ...] = (
    _hang("data", Name.SECTION_DEADLINE),
    _hang("forward", Name.STALL),
    _hang("backward", Name.STALL),
    _hang("optimizer", Name.STALL),
    _hang("log", Name.SECTION_DEADLINE),
    Fault(
        name="hang_together", by=(Name.STALL,), section="backward", hang=True, tie=True
    ),
    Fault(
        name="freeze", by=STALLS, rank=1, section="backward", hang=True, silent=True,
        state="stopped",
    ),
    Fault(name="mute", by=STALLS, rank=1, section="forward", hang=True, silent=True),
    Fault(
        name="mute_together", by=(Name.STALL,), rank=1, section="forward", hang=True, silent=True,
        together=True, within_s=2400.0,  # 15 minutes, and again once if the watcher was away
    ),
    Fault(
        name="rounds", by=(Name.SECTION_DEADLINE,), rounds=True, tie=True,
        within_s=16_000.0,  # twice all limits; a checkpoint's is eight times those before it
    ),
    Fault(
        name="lingers", by=(Name.SECTION_DEADLINE,), rank=1, lingers=True, within_s=2400.0,
    ),
    Fault(
        name="death", by=(Name.PROCESS_DEATH,), rank=1, section="backward", hang=True, silent=True,
        state="dead", code=1,
    ),
    Fault(name="never_speaks", by=(Name.NO_FIRST_HEARTBEAT,), rank=1, boot="absent"),
    Fault(name="stuck_boot", by=(Name.NO_FIRST_HEARTBEAT,), section="boot", boot="stuck"),
    Fault(name="foreign", by=(Name.IDENTITY,), boot="foreign"),
    Fault(name="half_speed", by=(Name.SLOW,), step_x=2.1, within_s=9000.0),
    Fault(
        name="third_slower", by=(Name.SLOW,), severity=Severity.WARN, step_x=1.55, within_s=9000.0
    ),
    Fault(
        name="straggler", by=(Name.STRAGGLER,), severity=Severity.WARN, rank=1, own_x=1.5,
        within_s=9000.0,
    ),
    Fault(name="nan", by=(Name.NON_FINITE,), numbers="nan"),
    Fault(name="divergence", by=(Name.DIVERGENCE,), numbers="divergence", within_s=9000.0),
    Fault(name="frozen_loss", by=(Name.FROZEN,), numbers="frozen_loss", within_s=9000.0),
    Fault(name="zero_gradients", by=(Name.GRADIENTS,), numbers="zero_gradients"),
    Fault(
        name="gate_collapse", by=(Name.GATE_COLLAPSE,), numbers="gate_collapse", onset_step=510,
        within_s=9000.0,
    ),
    Fault(
        name="starvation", by=(Name.LOADER,), fetch_share=0.8, within_s=9000.0,
    ),
    Fault(
        name="leak", by=(Name.MEMORY_LEAK,), severity=Severity.WARN, numbers="leak",
        within_s=9000.0, watch={"memory_leak": {"limit_mb": 64_000}}, step_s=(1.0, 2.4),
    ),
    Fault(name="claims", by=(Name.IMPLAUSIBLE_SPEED,), claim_x=25.0, within_s=3000.0),
    Fault(name="backwards", by=(Name.HYGIENE,), rank=1, backwards=True),
    _script("data", Name.SECTION_DEADLINE),
    _script("forward", Name.STALL, replace(_ALONE, names_computing=True)),
    _script("backward", Name.SECTION_DEADLINE, rank=None, tie=True),  # it names no computing
    _script("log", Name.SECTION_DEADLINE, replace(_ALONE, logs_every=1)),
    _script("eval", Name.SECTION_DEADLINE, rank=0, within_s=4200.0),  # again, if nobody watched
    _script("checkpoint", Name.SECTION_DEADLINE, rank=0),
    Fault(
        name="first_loss", by=(Name.FIRST_LOSS,), severity=Severity.WARN, numbers="first_loss",
        onset_step=1,
    ),
)  # fmt: skip
