"""D10: is a loss or gradient norm not finite?

bf16 and fp32: any of an applied step halts on its line. fp16 skips steps on overflow by design:
several running, or a share of the last hundred, halt. `skipped` steps were not applied.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.judge.watch.detector import Detector, Seen
from gonogo.judge.watch.view import Beat, View, found

SEARCH_STEPS = 16
"""fp16: so many steps may be skipped running while the scale is sought: before the first is
applied, and later while each of them lowers the scale, as an overflow is meant to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflows:
    """What has happened so far; `bad_from` is the step of the episode that was raised."""

    bad_from: int | None = None
    steps: tuple[tuple[int, bool, float | None], ...] = ()
    """fp16: the last steps, whether each overflowed or was skipped, and its loss scale."""


def is_fp16(view: View) -> bool:
    """Whether the run trains in fp16, where overflows are skipped and not applied."""
    dtype = view.run.order.identity.dtype or view.run.order.train.get("dtype")
    return dtype in ("fp16", "float16")


def _bad_number(line: Heartbeat) -> tuple[str | None, float | None]:
    for name, value in (("loss", line.loss), ("grad_norm", line.grad_norm)):
        if value is not None and not math.isfinite(value):
            return name, value
    return None, None


def _observe_fp16(own: Overflows, event: Beat, view: View) -> tuple[Overflows, list[Finding]]:
    """Observe one fp16 step; ranks tell the same step once each, bad if any says so."""
    settings = view.run.watch.non_finite
    line = event.line
    bad = bool(line.skipped) or _bad_number(line)[0] is not None
    known = {step: (overflowed, scale) for step, overflowed, scale in own.steps}
    before, scale = known.get(line.step, (False, None))
    known[line.step] = (before or bad, scale if line.loss_scale is None else line.loss_scale)
    steps = tuple((at, *row) for at, row in sorted(known.items())[-settings.fp16_window_steps :])
    scales = [row[2] for row in takewhile(lambda row: row[1], reversed(steps))]
    running, skipped = len(scales), sum(row[1] for row in steps)
    sought = running == len(steps) or (running > 1 and _falls(scales))
    patience = SEARCH_STEPS if sought else settings.fp16_running
    over = running >= patience or skipped - sought * running >= settings.fp16_skipped
    if not over:
        return Overflows(steps=steps), []
    if own.bad_from is not None:
        return replace(own, steps=steps), []
    text = f"{running} fp16 steps running, {skipped} of {len(steps)}, were skipped or not finite"
    finding = _finding(view, event, line.step, float(max(running, skipped)), text)
    return Overflows(bad_from=line.step, steps=steps), [finding]


def _falls(scales: list[float | None]) -> bool:
    """Whether each skipped step lowered the scale; the latest comes first."""
    return all(
        later is not None and earlier is not None and later < earlier
        for later, earlier in pairwise(scales)
    )


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
        "Halts at the first loss or gradient norm that is not finite; in fp16, at several "
        "skipped steps running (16 while each lowers the loss scale) or too many of the last "
        "hundred."
    )
    version = 2
    """2: outside fp16 `skipped` excuses nothing; in fp16 it counts without numbers too."""
    State = Overflows
    lines = frozenset({Msg.PROGRESS, Msg.STEP_END})

    def observe_line(self, own: Overflows, event: Beat, view: View) -> Seen[Overflows]:
        """Observe a line that carries a loss or a gradient norm."""
        line = event.line
        if is_fp16(view) and line.msg == Msg.PROGRESS:
            return _observe_fp16(own, event, view)
        if line.loss is None and line.grad_norm is None:
            return own, []
        name, value = _bad_number(line)
        if name is None:
            if own.bad_from is not None and line.step > own.bad_from:
                own = replace(own, bad_from=None)
            return own, []
        if own.bad_from is not None:
            return own, []
        text = f"{name} is {value} at step {line.step}"
        return replace(own, bad_from=line.step), [_finding(view, event, line.step, value, text)]

    def armed(self, own: Overflows, view: View) -> bool:
        """Whether a loss has been told."""
        return any(stream.loss is not None for stream in view.streams.values())
