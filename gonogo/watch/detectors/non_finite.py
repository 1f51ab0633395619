"""D10: a loss or gradient norm of an applied step is not finite.

In bf16 and fp32 the first one counts. A loss scaler (fp16, mixed precision) skips steps on overflow
by design: several in a row count, or too many of the last hundred. The search for a loss scale does
not count: each of its skipped steps lowers the scale.

Where the order names no dtype, a norm that is not finite beside a finite loss may be such an
overflow. A validation loss that is not finite is a warning, because the set may be empty.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.near import Near
from gonogo.contract.outcome import Detector as Name
from gonogo.timeline.step import Step
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import Beat, View, found

_EVAL = Msg.EVAL
_FP16, _BF16 = ("fp16", "float16"), ("bf16", "bfloat16")
SEARCH_STEPS = 16
"""So many steps may be skipped in a row before the first applied step. The scale begins at 2**16
and may be unknown."""
FALLING_STEPS = 40
"""So many may be skipped in a row while each lowers the scale: from 2**32 to 1 and some repeats."""


@dataclass(frozen=True, kw_only=True)
class Overflows:
    """The last steps under a loss scaler."""

    last_step: int = 0
    recent: tuple[bool, ...] = ()
    """Whether each of the last steps was skipped or not finite, and was no search for a scale."""
    applied: bool = False
    """Whether a step was applied."""
    running: int = 0
    """Steps in a row that were skipped or not finite."""
    scale: float | None = None
    """Loss scale of the last step."""
    falling: bool = False
    """Whether the steps that were skipped in a row have lowered the scale."""


class NonFinite(Detector[Overflows]):
    """D10 (module docstring)."""

    name = Name.NON_FINITE
    sentence = (
        "The first loss or gradient norm that is not finite. With a loss scaler (fp16, mixed"
        " precision): `fp16_running` skipped steps in a row (more while they lower the scale), or"
        " `fp16_skipped` of the last `fp16_window_steps`. In bf16: `fp16_window_steps` skipped"
        " steps in a row. Warns of a validation loss that is not finite."
    )
    State = Overflows
    lines = frozenset({Msg.PROGRESS, Msg.STEP_END, Msg.EVAL})
    steps = True

    def observe_line(self, own: Overflows, event: Beat, view: View) -> Seen[Overflows]:
        """Observe a line that carries a loss or a gradient norm."""
        line = event.line
        if line.msg == _EVAL:
            name, value = "validation loss", line.val_loss
        else:
            name, value = bad_number(line)
        if value is None or math.isfinite(value):
            return own, []
        if line.msg == _EVAL:
            severity = Severity.WARN
        elif _may_be_overflow(view, line):
            return own, []
        else:
            severity = Severity.HALT
        text = f"the {name} is {value} at step {line.step}"
        return own, [_finding(view, event.tick.ts, severity, line.step, name, value, text)]

    def observe_step(self, own: Overflows, step: Step, view: View) -> Seen[Overflows]:
        """Count skipped steps."""
        if step.step <= own.last_step:
            own = Overflows()
        lines = [row.progress for row in step.ranks.values() if row.progress is not None]
        if not lines:
            return own, []
        skipped = any(line.skipped is True or bad_number(line)[0] for line in lines)
        if not skipped and own.applied and not any(own.recent):
            return replace(own, last_step=step.step), []
        own = self._after(own, step.step, skipped=skipped, scale=_scale_of(lines))
        limit, text = self._limit(own, view), ""
        many = sum(own.recent)
        if own.running >= limit:
            text = f"{own.running} steps in a row were skipped or not finite"
        elif not _is(view, _BF16) and many >= self.settings.fp16_skipped:
            text = f"{many} of the last {len(own.recent)} steps were skipped or not finite"
        if not text or not skipped:
            return own, []
        value = float(max(own.running, many))
        ts = step.tick.ts
        return own, [_finding(view, ts, Severity.HALT, step.step, "skipped", value, text)]

    def _after(self, own: Overflows, step: int, *, skipped: bool, scale: float | None) -> Overflows:
        """Return the state after one more step."""
        lower = skipped and own.running > 0 and _is_lower(scale, own.scale)
        equal = skipped and own.running > 0 and scale is not None and scale == own.scale
        searching = lower or (skipped and not own.applied)
        return Overflows(
            last_step=step,
            recent=(*own.recent, skipped and not searching)[-self.settings.fp16_window_steps :],
            applied=own.applied or not skipped,
            running=own.running + 1 if skipped else 0,
            scale=scale,
            falling=lower or (own.falling and equal),
        )

    def _limit(self, own: Overflows, view: View) -> int:
        """Return how many steps in a row may be skipped."""
        if _is(view, _BF16):
            limit = self.settings.fp16_window_steps
        elif own.falling and (own.scale or 0.0) >= 1.0:
            limit = FALLING_STEPS
        elif not own.applied or own.falling:
            limit = SEARCH_STEPS
        else:
            limit = self.settings.fp16_running
        return int(limit)

    def armed(self, own: Overflows, view: View) -> bool:
        """Return whether a loss was reported."""
        return any(stream.loss is not None for stream in view.streams.values())

    def near(self, own: Overflows, view: View, mono: float) -> Near:
        """Return how many steps in a row were skipped."""
        if not self.armed(own, view):
            return Near(blind="no loss was reported")
        return Near(value=float(own.running), limit=float(self._limit(own, view)), unit="steps")


def bad_number(line: Heartbeat) -> tuple[str, float | None]:
    """Return the name and value of a number that is not finite, or an empty name."""
    for name, value in (("loss", line.loss), ("gradient norm", line.grad_norm)):
        if value is not None and not math.isfinite(value):
            return name, value
    return "", None


def is_fp16(view: View) -> bool:
    """Return whether the run trains in fp16, where overflows are skipped and not applied."""
    return _is(view, _FP16)


def _is(view: View, names: tuple[str, ...]) -> bool:
    return _dtype(view) in names


def _dtype(view: View) -> object:
    return view.run.order.identity.dtype or view.run.order.train.get("dtype")


def _may_be_overflow(view: View, line: Heartbeat) -> bool:
    """Return whether a loss scaler may have skipped the step of a number that is not finite."""
    if is_fp16(view) or _is(view, _BF16):
        return is_fp16(view)
    if line.skipped is not None or bad_number(line)[0] == "loss":
        return line.skipped is True
    return line.loss_scale is not None or _dtype(view) is None


def _scale_of(lines: Iterable[Heartbeat]) -> float | None:
    return min((line.loss_scale for line in lines if line.loss_scale is not None), default=None)


def _is_lower(scale: float | None, before: float | None) -> bool:
    return scale is not None and before is not None and scale < before


def _finding(
    view: View, ts: float, severity: Severity, step: int, name: str, value: float, text: str
) -> Finding:
    return found(
        view,
        Name.NON_FINITE,
        severity,
        episode=name.replace(" ", "_"),
        at=ts,
        step=step,
        value=value,
        text=text,
    )
