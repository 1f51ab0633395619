"""D10: is a loss or gradient norm not finite?

bf16 and fp32: any of an applied step halts on its line. fp16 skips steps on overflow by design:
several running, or a share of the last hundred, halt. `skipped` steps were not applied.
"""

import math
from dataclasses import dataclass, replace

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.outcome import Detector
from gonogo.judge.watch.view import Beat, Event, View, found


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflows:
    """What has happened so far; `bad_from` is the step of the episode that was raised."""

    bad_from: int | None = None
    steps: tuple[tuple[int, bool], ...] = ()
    """fp16: the last steps and whether each overflowed or was skipped."""


def observe(own: Overflows, event: Event, view: View) -> tuple[Overflows, list[Finding]]:
    """Observe a line that carries a loss or a gradient norm."""
    if not isinstance(event, Beat):
        return own, []
    line = event.line
    if line.loss is None and line.grad_norm is None:
        return own, []
    if is_fp16(view):
        return _observe_fp16(own, event, view)
    name, value = _bad_number(line)
    if name is None:
        if own.bad_from is not None and line.step > own.bad_from:
            own = replace(own, bad_from=None)
        return own, []
    if line.skipped or own.bad_from is not None:
        return own, []
    text = f"{name} is {value} at step {line.step}"
    return replace(own, bad_from=line.step), [_finding(view, event, line.step, value, text)]


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
    known = dict(own.steps)
    known[line.step] = known.get(line.step, False) or bad
    steps = tuple(sorted(known.items())[-settings.fp16_window_steps :])
    running = 0
    for _, overflowed in reversed(steps):
        if not overflowed:
            break
        running += 1
    skipped = sum(overflowed for _, overflowed in steps)
    over = running >= settings.fp16_running or skipped >= settings.fp16_skipped
    if not over:
        return Overflows(steps=steps), []
    if own.bad_from is not None:
        return replace(own, steps=steps), []
    text = f"{running} fp16 steps running, {skipped} of {len(steps)}, were skipped or not finite"
    finding = _finding(view, event, line.step, float(max(running, skipped)), text)
    return Overflows(bad_from=line.step, steps=steps), [finding]


def _finding(view: View, event: Beat, step: int, value: float | None, text: str) -> Finding:
    return found(
        view,
        Detector.NON_FINITE,
        Severity.HALT,
        episode=f"step{step}",
        at=event.tick.ts,
        step=step,
        value=value,
        text=text,
    )


def armed(view: View, own: Overflows) -> bool:
    """Whether a loss has been told."""
    return any(stream.loss is not None for stream in view.streams.values())
