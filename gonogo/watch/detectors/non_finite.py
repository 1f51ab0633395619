"""D10: is a loss or gradient norm not finite?

bf16 and fp32: any of an applied step halts on its line. fp16 skips steps on overflow by design:
several running, or a share of the last hundred, halt, but not what one search of the loss scale in
mid-run skipped, each step of which lowers it. `skipped` steps were not applied. Mixed
precision keeps its weights in fp32: there a step that the trainer calls skipped is excused as in
fp16, and one of which it tells the loss scale, a finite loss and a norm that is not, for then a
scaler has skipped it, which does not say so; no other. Of a program whose printed lines are read
nobody knows whether it took the step: a norm beside a finite loss counts as in fp16. A validation
loss that is not finite is a warning: the set may be empty.

In bf16 a trainer may leave updates out by a rule of its own, and say `skipped` beside numbers that
are finite. That is its way, unless it does nothing else any more: then nothing is learnt.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby, pairwise, takewhile
from operator import itemgetter
from typing import Any

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import Beat, View, found

_EVAL, _PROGRESS = Msg.EVAL, Msg.PROGRESS
SEARCH_STEPS = 16
"""fp16: so many steps may be skipped running before the first is applied, while the scale is
sought and nobody tells it."""
FALLING_STEPS = 40
"""The same while they lower the scale, as overflows are meant to do, and it is still 1 or more:
from 2**32, where some begin, to 1."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Updates that one rank, the first that told of one, left out running: bf16."""

    rank: int
    boot: str
    step: int = 0
    """The last step that it told."""
    running: int = 0
    told: bool = False


@dataclass(frozen=True, kw_only=True)
class Overflows:
    """What has happened so far; `bad_from` is the step of the episode that was raised."""

    bad_from: int | None = None
    steps: tuple[tuple[int, bool, float | None], ...] = ()
    """fp16: the last steps, whether each overflowed or was skipped, and its loss scale."""
    rank: int | None = None
    """The first rank that told of such a step; others may never tell, and theirs are no proof that
    a step was applied."""
    left_out: LeftOut | None = None
    boots: dict[int, str] = field(default_factory=dict)
    """fp16: rank → the process that told its last step."""

    def told_by(self, line: Heartbeat) -> "Overflows":
        """Return the same, or what is known of a process that has started anew: nothing.

        It may seek its scale anew, and the steps before it say nothing of those that it repeats.
        """
        known = self.boots.get(line.rank)
        if known == line.boot:
            return self
        boots = {**self.boots, line.rank: line.boot}
        return (
            replace(self, boots=boots) if known is None else Overflows(rank=self.rank, boots=boots)
        )


def _dtype(view: View) -> Any:
    return view.run.order.identity.dtype or view.run.order.train.get("dtype")


def is_fp16(view: View) -> bool:
    """Whether the run trains in fp16, where overflows are skipped and not applied."""
    return _dtype(view) in ("fp16", "float16")


def _scales_loss(view: View, line: Heartbeat) -> bool:
    """Whether the line tells of a scaled loss (mixed precision), whose overflow was skipped.

    What a program prints tells neither scale nor skipped steps.
    """
    if line.loss_scale is None and line.skipped is None and not view.reads_output():
        return False
    dtype = _dtype(view)
    if dtype in ("bf16", "bfloat16"):
        return False
    bad = _bad_number(line)[0]
    return line.skipped is True or bad is None or (line.skipped is None and bad == "grad_norm")


def _bad_number(line: Heartbeat) -> tuple[str | None, float | None]:
    loss, grad_norm = line.loss, line.grad_norm
    if loss is not None and not math.isfinite(loss):
        return "loss", loss
    if grad_norm is not None and not math.isfinite(grad_norm):
        return "grad_norm", grad_norm
    return None, None


def _observe_fp16(own: Overflows, event: Beat, view: View) -> tuple[Overflows, list[Finding]]:
    """Observe one fp16 step; ranks tell the same step once each, bad if any says so."""
    settings = view.run.watch.non_finite
    line = event.line
    own = own.told_by(line)
    bad = bool(line.skipped) or _bad_number(line)[0] is not None
    rank = line.rank if own.rank is None and bad else own.rank
    if not bad and rank not in (None, line.rank):
        return own, []
    known = {step: (overflowed, scale) for step, overflowed, scale in own.steps}
    before, scale = known.get(line.step, (False, None))
    known[line.step] = (before or bad, scale if line.loss_scale is None else line.loss_scale)
    steps = tuple((at, *row) for at, row in sorted(known.items())[-settings.fp16_window_steps :])
    if not steps[-1][1] and all(row[1] for row in steps[:-1]):
        # the first applied step ends the search, and what it skipped is forgotten
        steps = steps[-1:]
    scales = [row[2] for row in takewhile(lambda row: row[1], reversed(steps))]
    running, skipped = len(scales), sum(row[1] for row in steps)
    falls = running > 1 and _falls(scales)
    sought = falls or running == len(steps)
    patience = SEARCH_STEPS if sought else settings.fp16_running
    if falls and (scales[0] or 0.0) >= 1.0:
        patience = FALLING_STEPS
    searched = running if sought else 0
    if skipped - searched >= settings.fp16_skipped:
        searched = max(searched, _longest_search(steps))
    over = running >= patience or skipped - searched >= settings.fp16_skipped
    own = replace(own, steps=steps, rank=rank)
    if not over:
        return replace(own, bad_from=None), []
    if own.bad_from is not None:
        return own, []
    text = f"{running} fp16 steps running, {skipped} of {len(steps)}, were skipped or not finite"
    finding = _finding(view, event, line.step, float(max(running, skipped)), text)
    return replace(own, bad_from=line.step), [finding]


def _longest_search(steps: Iterable[tuple[int, bool, float | None]]) -> int:
    """Return how many steps running the longest search of a loss scale skipped among these."""
    runs = (list(rows) for skipped, rows in groupby(steps, key=itemgetter(1)) if skipped)
    scales = ([scale for _, _, scale in reversed(rows)] for rows in runs)
    return max((len(row) for row in scales if _falls(row) and (row[0] or 0.0) >= 1.0), default=0)


def _falls(scales: list[float | None]) -> bool:
    """Whether the skipped steps lower the scale; the latest comes first.

    Each, or every second one: some scalers wait for a second overflow (hysteresis).
    """
    known = [scale for scale in scales if scale is not None]
    return (
        len(known) == len(scales)
        and all(later <= earlier for later, earlier in pairwise(known))
        and all(later < earlier for later, earlier in zip(known, known[2:], strict=False))
        and known[0] < known[-1]
    )


def _observe_left_out(own: Overflows, event: Beat, view: View) -> tuple[Overflows, list[Finding]]:
    """Count the updates that are left out running beside finite numbers."""
    line, known = event.line, own.left_out
    if known is None and line.skipped is not True:
        return own, []
    if known is None or (line.rank == known.rank and line.boot != known.boot):
        known = LeftOut(rank=line.rank, boot=line.boot)
    if line.rank != known.rank or line.step <= known.step:
        return own, []
    if line.skipped is not True:
        return replace(own, left_out=LeftOut(rank=line.rank, boot=line.boot, step=line.step)), []
    known = replace(known, step=line.step, running=known.running + 1)
    limit = view.run.watch.non_finite.fp16_window_steps
    tells = known.running >= limit and not known.told
    own = replace(own, left_out=replace(known, told=known.told or tells))
    if not tells:
        return own, []
    text = f"{known.running} steps running were skipped: the weights have not moved"
    return own, [_finding(view, event, line.step, float(known.running), text)]


def _of_validation(event: Beat, view: View) -> list[Finding]:
    value = event.line.val_loss
    if value is None or math.isfinite(value):
        return []
    return [
        found(
            view,
            Name.NON_FINITE,
            Severity.WARN,
            episode="val_loss",
            at=event.tick.ts,
            step=event.line.step,
            value=value,
            text=f"the validation loss is {value} at step {event.line.step}",
        )
    ]


def _finding(view: View, event: Beat, step: int, value: float | None, text: str) -> Finding:
    return found(
        view,
        Name.NON_FINITE,
        Severity.HALT,
        episode=f"step{step}",
        at=event.tick.ts,
        step=step,
        value=value,
        text=text,
    )


class NonFinite(Detector[Overflows]):
    """D10: is a loss or gradient norm not finite?"""

    name = Name.NON_FINITE
    sentence = (
        "Halts at the first loss or gradient norm that is not finite; in fp16 and mixed "
        "precision, at several skipped steps running (more while they lower the loss scale) or "
        "too many of the last hundred; in bf16, at `fp16_window_steps` skipped steps running. A"
        " program that is only read may be such a one, unless the order says bf16: a norm that is"
        " not finite counts so, a loss halts. Warns of a validation loss that is not finite."
    )
    """2: outside fp16 `skipped` excuses nothing; in fp16 it counts without numbers too. Where the
    order names no dtype, steps that were applied count between those that were skipped. 3: what one
    search of the loss scale in mid-run skipped is none of too many, also once it has ended."""
    State = Overflows
    lines = frozenset({Msg.PROGRESS, Msg.STEP_END, Msg.EVAL})

    def observe_line(self, own: Overflows, event: Beat, view: View) -> Seen[Overflows]:
        """Observe a line that carries a loss or a gradient norm."""
        line = event.line
        msg = line.msg
        if msg == _EVAL:
            return own, _of_validation(event, view)
        name, value = _bad_number(line)
        if msg == _PROGRESS and (
            is_fp16(view)
            or _scales_loss(view, line)
            or (own.steps and name is None)  # what came after skipped steps was applied
        ):
            return _observe_fp16(own, event, view)
        if name is None:
            told = line.loss is not None or line.grad_norm is not None
            if told and own.bad_from is not None and line.step > own.bad_from:
                own = replace(own, bad_from=None)
            return _observe_left_out(own, event, view) if msg == _PROGRESS else (own, [])
        if own.bad_from is not None:
            return own, []
        text = f"{name} is {value} at step {line.step}"
        return replace(own, bad_from=line.step), [_finding(view, event, line.step, value, text)]

    def armed(self, own: Overflows, view: View) -> bool:
        """Whether a loss has been told."""
        return any(stream.loss is not None for stream in view.streams.values())
