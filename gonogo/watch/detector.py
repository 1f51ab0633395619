"""What is a detector? A small pure object: settings from the order, a state of its own, no clock.

Three kinds of event, one method each: a line (`Beat`), a tick of the watcher, and a `Step`: one
completed step, merged over ranks. A method gets the detector's own state and returns the next one
with what it found; what it never looks at, it does not override. The same object runs live, offline
and in replay, so nothing but the arguments may decide.

A new detector is one module in `detectors/` and one row in `registry.py`; its settings are a model
in `gonogo.contract.watch`. Another package brings one through the entry point `gonogo.detectors`.
`tests/data/plugin/gonogo_example.py` is an example.
"""

import sys
from dataclasses import replace as checked_replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import Tick
from gonogo.contract.watch import ProgramKind
from gonogo.timeline.step import Step
from gonogo.watch.view import Beat, Run, View, found

S = TypeVar("S")
Seen = tuple[S, list[Finding]]

RANKS = "ranks"
"""In `observes`: probes of the ranks' processes."""
WHILE_ALL_TRAIN = sys.float_info.max
"""`quiet_s` of a detector that finds nothing while all ranks train."""
NOTHING_YET = "nothing to measure yet"
"""Why a detector is blind whose numbers have not come."""
_new, _set = object.__new__, object.__setattr__

if TYPE_CHECKING:
    replace = checked_replace
else:

    def replace(state, /, **fields):
        """Return a copy with other `fields`: `dataclasses.replace` at a tenth of its cost.

        A fold makes some thirty states of each step. It calls no `__init__`, and the dataclass must
        have no slots.
        """
        before = state.__dict__
        values = before | fields
        if len(values) != len(before):
            return checked_replace(state, **fields)  # which says what is wrong
        made = _new(state.__class__)
        _set(made, "__dict__", values)
        return made


class Detector(Generic[S]):
    """One rule. Its state is a frozen dataclass of plain values (or None), to be saved."""

    name: ClassVar[str]
    sentence: ClassVar[str]
    """What it finds and when, for docs/detectors.md."""
    State: ClassVar[Any] = None
    """Class of its state, made without arguments at the start; None for a rule without one."""
    Settings: ClassVar[type[BaseModel] | None] = None
    """A plug-in's settings; those of D1 to D26 are in `gonogo.contract.watch.Watch`."""
    lines: frozenset[str] = frozenset()
    """Messages of the lines that `observe_line` is given."""
    steps: ClassVar[bool] = False
    """Whether `observe_step` is called."""
    ticks: bool = False
    """Whether `observe_tick` is called; a tick that brings nothing leaves the state equal."""
    observes: ClassVar[frozenset[str] | None] = None
    """Kinds of observation that `observe_tick` reads, or `RANKS`. It is not called for a tick that
    brings none of them. None: it reads the clock, too."""
    after: ClassVar[str | None] = None
    """`observe_tick` is not called before a tick has delivered an observation of this kind."""
    quiet_s: float = -1.0
    """`observe_tick` is not called while every rank has ended a step within so many seconds and
    no process is dead; see `WatchState.on_tick`."""
    deadline: ClassVar[bool] = False
    """Whether a late tick is UNKNOWN to it: `observe_tick` is not called then."""
    probes: ClassVar[bool] = False
    """Whether it sees nothing without a watcher's probes and clock."""
    armed_by: ClassVar[str] = ""
    """Field of the state that is true once it could find something; none: it always could."""
    blind: ClassVar[str] = NOTHING_YET
    """Why it finds nothing while it is not armed."""
    unobserved: ClassVar[str] = ""
    """What the decision says if steps ended and it was never armed."""
    ours: ClassVar[bool] = False
    """Whether nsa.train alone is expected to report what it observes."""
    code: ClassVar[OutcomeCode | None] = None
    """Cause of a failure that a plug-in's halt names, else `diverged`; those of D1 to D26 are in
    `gonogo.contract.outcome`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        if self.Settings is None:
            self.settings: Any = getattr(run.watch, self.name, None)
        else:
            self.settings = self.Settings.model_validate(run.watch.plugins.get(self.name, {}))

    def begin(self) -> S:
        """Return the state before the first event."""
        state: Any = None if self.State is None else self.State()
        return state  # type: ignore[no-any-return]  # `State` is the class of S

    def observe_line(self, own: S, beat: Beat, view: View) -> Seen[S]:
        """Observe one accepted line."""
        return own, []

    def observe_step(self, own: S, step: Step, view: View) -> Seen[S]:
        """Observe one step that every rank has completed."""
        return own, []

    def observe_tick(self, own: S, tick: Tick, view: View) -> Seen[S]:
        """Observe the watcher's clock and what it saw besides lines."""
        return own, []

    def armed(self, own: S, view: View) -> bool:
        """Whether it could find something now; a silent disarming is to be seen."""
        return not self.armed_by or bool(getattr(own, self.armed_by))

    def near(self, own: S, view: View, mono: float) -> Near:
        """Return how near it is to its limit at `mono`, in active time, or why it is blind."""
        return self.measure(own, view, mono) if self.armed(own, view) else Near(blind=self.blind)

    def measure(self, own: S, view: View, mono: float) -> Near:
        """Return its value beside its limit; asked for while it is armed."""
        return Near()

    def missing(self, own: S, view: View) -> str | None:
        """Return what it could not observe, as a sentence for the decision, or None."""
        expected = not self.ours or self.run.order.program_kind is ProgramKind.OURS
        unseen = bool(self.unobserved and expected and view.steps.made)
        return self.unobserved if unseen and not self.armed(own, view) else None

    def finding(
        self,
        event: Beat | Step | Tick,
        view: View,
        severity: Severity,
        episode: str,
        text: str,
        *,
        setting: str = "",
        **fields: Any,
    ) -> Finding:
        """Return a finding at an event, at the event's step.

        Args:
            episode: one finding is made of each episode.
            setting: name of the setting, of this detector, that is or gives the threshold.
            **fields: further arguments of `found`; the step among them replaces the event's.
        """
        if isinstance(event, Tick):
            at, step = event.ts, None
        else:
            at = event.tick.ts
            step = event.step if isinstance(event, Step) else event.line.step
        fields = {"step": step, **fields}
        if setting:
            limit, source = getattr(self.settings, setting), f"{self.name}.{setting}"
            fields = {"threshold": limit, "source": self.run.source(source), **fields}
        return found(view, self.name, severity, episode=episode, at=at, text=text, **fields)
