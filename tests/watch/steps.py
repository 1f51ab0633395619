"""Steps as the fold makes them, without lines or a fold: what a detector of steps is fed.

`Ran` is a run that ends steps; `feed` gives them to one detector and keeps what it found.

Example::

    ran = Ran(order_of({}))
    for number in range(1, 60):
        ran.step(loss=4.2)
    assert [finding.severity for finding in feed(Frozen, ran).findings] == ["suspect", "halt"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat, StepSections
from gonogo.contract.order import Order
from gonogo.contract.records import Tick
from gonogo.timeline.lines import Arrival
from gonogo.timeline.rank import RankStream
from gonogo.timeline.step import RankStep, Step
from gonogo.watch.detector import Detector
from gonogo.watch.view import Beat, Run, View
from tests.watch.streams import EPOCH, T0, order_of

Told = Mapping[str, Any] | Sequence[Mapping[str, Any]]


_DEFAULTS: dict[str, Any] = {
    name: field.default for name, field in Heartbeat.model_fields.items() if not field.is_required()
}


@dataclass(slots=True)
class Ran:
    """Completed steps of one run, each `dt_s` after the one before unless given otherwise."""

    order: Order = field(default_factory=lambda: order_of({}))
    dt_s: float = 1.0
    ranks: int = 0
    """How many; 0 for as many as are ordered."""
    labelled: bool = True
    number: int = 0
    mono: float = T0
    boot: str = "boot"
    steps: list[Step] = field(default_factory=list)
    peak_flops: float | None = None
    peak_of: str | None = None

    def step(
        self,
        *,
        dt_s: float | Sequence[float | None] | None = -1.0,
        sections: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
        tokens: int | None = None,
        between_s: float = 0.0,
        silent: Sequence[int] = (),
        each: Sequence[Mapping[str, Any]] | None = None,
        **fields: Any,
    ) -> Ran:
        """End one more step.

        Args:
            dt_s: seconds of the step, one for all or one a rank; None = not known.
            sections: of `step_end`, one for all or one a rank.
            tokens: of `step_end`.
            between_s: seconds of the step before the rank reported its start.
            silent: ranks that write no progress line.
            each: what each rank's progress line has besides `fields`.
            **fields: of every progress line.
        """
        count = self.ranks or self.order.world_size
        if isinstance(dt_s, int | float) and dt_s < 0.0:
            dt_s = self.dt_s if self.number else None
        times = list(dt_s) if isinstance(dt_s, Sequence) else [dt_s] * count
        passed_s = max((seconds or 0.0 for seconds in times), default=0.0)
        self.number += 1
        self.mono += passed_s
        now = EPOCH + self.mono - T0
        tick = Tick(n=self.number, mono=self.mono, ts=now, interval_s=0.25)
        rows = {}
        for rank in range(count):
            own = sections if isinstance(sections, Mapping | None) else sections[rank]
            said = {**fields, **(each[rank] if each else {})}
            progress = None if rank in silent else self._line(rank, "progress", **said)
            rows[rank] = RankStep(
                rank=rank,
                boot=self.boot,
                step=self.number,
                dt_s=times[rank],
                progress=progress,
                tokens=tokens,
                sections=None if own is None else StepSections(**own),
                between_s=between_s,
            )
        again = bool(self.steps) and self.number <= self.steps[-1].step
        self.steps.append(Step(step=self.number, ranks=rows, tick=tick, again=again))
        return self

    def many(self, count: int, **fields: Any) -> Ran:
        """End `count` steps that say the same."""
        for _ in range(count):
            self.step(**fields)
        return self

    def back_to(self, number: int, boot: str = "boot2") -> Ran:
        """Restart in place at an earlier step; the first step's time is not known."""
        self.number, self.boot = number, boot
        return self

    def _line(self, rank: int, msg: str, **fields: Any) -> Heartbeat:
        """One line, made without validation: a test feeds tens of thousands of them."""
        line = Heartbeat.__new__(Heartbeat)
        said = {
            **_DEFAULTS,
            "ts": EPOCH + self.mono - T0,
            "mono": self.mono,
            "pid": 100 + rank,
            "rank": rank,
            "boot": self.boot,
            "seq": self.number,
            "step": self.number,
            "msg": msg,
            **fields,
        }
        object.__setattr__(line, "__dict__", said)
        object.__setattr__(line, "__pydantic_fields_set__", set(fields))
        return line

    def view(self) -> View:
        """What the detectors may look at besides the step."""
        count = self.ranks or self.order.world_size
        return View(
            run=Run(order=self.order),
            streams={r: RankStream(rank=r, labelled=self.labelled) for r in range(count)},
        )


@dataclass(slots=True)
class Fed:
    """What a detector made of a run."""

    detector: Detector[Any]
    own: Any
    findings: list[Finding]
    view: View

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]

    @property
    def halts(self) -> list[Finding]:
        """Return the findings that halt."""
        return self.of(Severity.HALT)

    @property
    def severities(self) -> list[tuple[Severity, int | None]]:
        """Return severity and step of each finding."""
        return [(finding.severity, finding.step) for finding in self.findings]

    @property
    def armed(self) -> bool:
        """Whether it could find something now."""
        return self.detector.armed(self.own, self.view)

    @property
    def missing(self) -> str | None:
        """Return what it says that it did not observe."""
        return self.detector.missing(self.own, self.view)


def feed(
    kind: type[Detector[Any]], ran: Ran, *, after: Callable[[Fed], None] = lambda fed: None
) -> Fed:
    """Feed a run's steps to a detector, as the fold does: one finding for each key.

    Args:
        kind: the detector's class.
        ran: the run.
        after: called after each step, with what that step alone raised.
    """
    assert kind.steps or kind.lines, "the fold would show it none"
    view = ran.view()
    detector = kind(view.run)
    own, said, findings = detector.begin(), set(), []
    if ran.peak_flops is not None:
        peak = {"preflight_peak": {"flops": ran.peak_flops, "of": ran.peak_of}}
        own, _ = detector.observe_tick(own, Tick(n=0, mono=T0, ts=EPOCH, observations=peak), view)
    for step in ran.steps:
        view.steps.made = step.step
        found = list[Finding]()
        for row in step.ranks.values() if kind.lines else ():
            if row.progress is not None:
                beat = Beat(row.progress, Arrival.NEW, step.tick)
                own, seen = detector.observe_line(own, beat, view)
                found += seen
        if kind.steps:
            own, seen = detector.observe_step(own, step, view)
            found += seen
        after(Fed(detector=detector, own=own, findings=found, view=view))
        for finding in found:
            if finding.key not in said:
                said.add(finding.key)
                findings.append(finding)
    return Fed(detector=detector, own=own, findings=findings, view=view)
