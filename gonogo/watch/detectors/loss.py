"""Losses, gradients and gates: D9 frozen, D10 non_finite, D11 divergence, D12 gradients, D13
gate_collapse, D26 first_loss.

A restart in place (`Step.again`) counts values again.

Not covered: losses that rise while all is well (of a policy, of two networks that play against each
other, or after a warm restart of the learning rate) are warned of. A program that repeats its last
loss or its clipped gradient norm for longer than the limit of `frozen` is warned of. A loss of
exactly zero and a gradient norm that has never moved are no evidence of frozen values.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.timeline.step import Step
from gonogo.watch.detector import Detector, Seen, replace
from gonogo.watch.view import Beat, Run, View

SIGMA_OF_MAD = 1.4826
"""Standard deviation of a normal distribution per median absolute deviation."""
_FP16, _BF16 = ("fp16", "float16"), ("bf16", "bfloat16")
SEARCH_STEPS = 40
"""So many steps may be skipped while a loss scale is searched, from 2**32 to 1 at most."""
HOLDS_SHARE = 0.95
"""A rise holds if the later half of its losses keeps this share of the height of the first half."""
NO_GATES = (None, None, None)
MANY_LAYERS = 100
"""Without a number of layers in the order, one layer is a small share."""


@dataclass(frozen=True, kw_only=True)
class Overflows:
    """The last steps of one process under a loss scaler."""

    rank: int | None = None
    """The first rank that reported a number; all ranks skip the same steps."""
    boot: str = ""
    running: int = 0
    searching: bool = True
    """Whether no step was applied yet, or the scale has fallen since the first of these."""
    scale: float | None = None
    """Loss scale of the first of them."""
    recent: tuple[int, ...] = ()
    """The skipped steps within the window that were no search for a scale."""


class NonFinite(Detector[Overflows]):
    """D10: a loss or gradient norm of an applied step is not finite.

    A loss scaler (fp16, mixed precision) skips steps on overflow by design: several in a row count,
    or too many of the last hundred. A search for the loss scale does not count: its skipped steps
    lower the scale. If the order names no dtype, a norm that is not finite beside a finite loss may
    be such an overflow. A validation loss that is not finite warns: the set may be empty.
    """

    name = Name.NON_FINITE
    sentence = (
        "The first loss or gradient norm that is not finite. With a loss scaler (fp16, mixed"
        " precision): `fp16_running` skipped steps in a row (40 while they lower the scale), or"
        " `fp16_skipped` of the last `fp16_window_steps`. In bf16: `fp16_window_steps` skipped"
        " steps in a row. Warns of a validation loss that is not finite."
    )
    State = Overflows
    lines = frozenset({Msg.PROGRESS, Msg.EVAL})
    blind = "no loss was reported"
    unobserved = "No line records a loss."

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._dtype = run.order.identity.dtype or run.order.train.get("dtype")

    def observe_line(self, own: Overflows, event: Beat, view: View) -> Seen[Overflows]:
        line, is_eval = event.line, event.line.msg == Msg.EVAL
        name, value = ("validation loss", line.val_loss) if is_eval else ("loss", line.loss)
        if not is_eval and (value is None or math.isfinite(value)):
            name, value = "gradient norm", line.grad_norm
        is_bad = value is not None and not math.isfinite(value)
        if is_bad and (is_eval or not self._may_be_overflow(line, name)):
            severity = Severity.WARN if is_eval else Severity.HALT
            text, episode = f"the {name} is {value} at step {line.step}", name.replace(" ", "_")
            return own, [self.finding(event, view, severity, episode, text, value=value)]
        skipped = is_bad or line.skipped is True
        says_nothing = line.loss is None and line.grad_norm is None and not skipped
        if is_eval or says_nothing or own.rank not in (None, line.rank):
            return own, []
        if line.boot != own.boot:
            own = Overflows(rank=line.rank, boot=line.boot)
        if skipped:
            return self._count(own, event, view)
        waits = own.searching or own.running
        return (replace(own, running=0, searching=False) if waits else own), []

    def _may_be_overflow(self, line: Heartbeat, name: str) -> bool:
        """Return whether a loss scaler may have skipped the step of a number that is not finite."""
        if self._dtype in _FP16 or self._dtype in _BF16:
            return self._dtype in _FP16
        if line.skipped is not None or name == "loss":
            return line.skipped is True
        return self._dtype is None or line.loss_scale is not None

    def _count(self, own: Overflows, event: Beat, view: View) -> Seen[Overflows]:
        """Count a skipped step, and halt if there are too many."""
        step, most = event.line.step, self.settings.fp16_window_steps
        scale = event.line.loss_scale
        first = own.scale if own.running else scale
        falls = scale is not None and first is not None and scale < first
        searching = own.searching or falls
        recent = own.recent if searching else (*own.recent, step)
        recent = tuple(number for number in recent if number > step - most)
        own = replace(own, running=own.running + 1, searching=searching, scale=first, recent=recent)
        if own.running >= self._limit(own):
            text = f"{own.running} steps in a row were skipped or not finite"
        elif self._dtype not in _BF16 and len(recent) >= self.settings.fp16_skipped:
            text = f"{len(recent)} of the last {most} steps were skipped or not finite"
        else:
            return own, []
        value = float(max(own.running, len(recent)))
        return own, [self.finding(event, view, Severity.HALT, "skipped", text, value=value)]

    def _limit(self, own: Overflows) -> int:
        """Return how many steps in a row may be skipped."""
        if self._dtype in _BF16:
            return int(self.settings.fp16_window_steps)
        return SEARCH_STEPS if own.searching else int(self.settings.fp16_running)

    def armed(self, own: Overflows, view: View) -> bool:
        return any(stream.loss is not None for stream in view.streams.values())

    def measure(self, own: Overflows, view: View, mono: float) -> Near:
        return Near(value=float(own.running), limit=float(self._limit(own)), unit="steps")


def warn_of_spikes(
    detector: Detector[Any], step: Step, view: View, values: Sequence[float], limit: float,
    what: str,
) -> list[Finding]:  # fmt: skip
    """Return a warning if `spike_count` of the last `spike_of` values are above a limit."""
    settings = detector.settings
    spikes = sum(value > limit for value in values[-settings.spike_of :])
    if spikes < settings.spike_count:
        return []
    text = f"{spikes} of the last {settings.spike_of} {what} are above {limit:.4g}"
    return [
        detector.finding(
            step, view, Severity.WARN, "spikes", f"{text}; the last is {values[-1]:.4g}",
            setting="spike_count", value=values[-1], threshold=limit,
        )
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The loss so far."""

    losses: int = 0
    """Losses since the start of the run, or since it went back to an earlier step."""
    smooth: float = 0.0
    """A plain mean at first, then an exponential one."""
    best: float | None = None
    """Lowest smoothed loss; None before the mean is smooth."""
    window: tuple[float, ...] = ()


class Divergence(Detector[Trend]):
    """D11: the loss rises and stays up.

    The smoothed loss and each of the last losses have to be above the best smoothed loss, so a
    noisy loss is none. The last losses must not come down, so a spike that decays is none.
    """

    name = Name.DIVERGENCE
    sentence = (
        "The smoothed loss and each of the last `over_steps` losses are above the best "
        "smoothed loss by more than `above` and `above_ratio`, and do not come down, after "
        "`after_step` losses. Warns of `spike_count` spikes in `spike_of` losses."
    )
    State = Trend
    steps = True
    unobserved = "Too few losses were reported: divergence was not observed."

    def observe_step(self, own: Trend, step: Step, view: View) -> Seen[Trend]:
        if step.again:
            own = Trend(best=None if view.is_another(step.ranks) else own.best)
        loss, settings = step.loss, self.settings
        if loss is None or not math.isfinite(loss):
            return own, []
        losses, best = own.losses + 1, own.best
        smooth = own.smooth + max(settings.alpha, 1.0 / losses) * (loss - own.smooth)
        if losses * settings.alpha >= 1.0 or losses >= settings.after_step:
            best = smooth if best is None else min(best, smooth)
        window = (*own.window, loss)[-max(settings.window_steps, settings.over_steps) :]
        own = replace(own, losses=losses, smooth=smooth, best=best, window=window)
        findings = list[Finding]()
        if len(window) > settings.window_steps // 2 and loss > min(window) + settings.spike_least:
            middle = statistics.median(window)
            sigma = SIGMA_OF_MAD * statistics.median(abs(value - middle) for value in window)
            limit = middle + max(settings.spike_least, settings.spike_mad_x * sigma)
            findings += warn_of_spikes(self, step, view, window, limit, "losses")
        if best is not None and losses > settings.after_step and loss - best > settings.above:
            findings += self._rise(own, best, step, view)
        return own, findings

    def _rise(self, own: Trend, best: float, step: Step, view: View) -> list[Finding]:
        """Return a halt if the last losses have risen and do not come down."""
        settings, last = self.settings, own.window[-self.settings.over_steps :]
        limit = max(settings.above, settings.above_ratio * abs(best))
        if len(last) < settings.over_steps or min(own.smooth, *last) - best <= limit:
            return []
        half = len(last) // 2
        earlier, later = statistics.median(last[: half + 1]), statistics.median(last[half:])
        if later - best < HOLDS_SHARE * (earlier - best):
            return []
        text = (
            f"the smoothed loss is {own.smooth:.4g}; its best was {best:.4g}. Each of the last"
            f" {len(last)} losses is more than {limit:.3g} above its best"
        )
        value, name = own.smooth - best, "above"
        found = self.finding(
            step, view, Severity.HALT, "rise", text, setting=name, value=value, threshold=limit
        )
        return [found]

    def armed(self, own: Trend, view: View) -> bool:
        return own.losses > int(self.settings.after_step)

    def measure(self, own: Trend, view: View, mono: float) -> Near:
        best = own.smooth if own.best is None else own.best
        limit = max(float(self.settings.above), float(self.settings.above_ratio) * abs(best))
        return Near(value=own.smooth - best, limit=limit)


class EqualValues(NamedTuple):
    """Equal values of one number in a row; steps without the number do not count."""

    value: float
    steps: int
    since_step: int
    moved: bool
    """Whether the number was another before."""


@dataclass(frozen=True, kw_only=True)
class Still:
    """How long the loss and the gradient norm have been equal."""

    equal: Mapping[str, EqualValues] = field(default_factory=dict)
    """`loss` or `grad_norm` → its last values."""


class Frozen(Detector[Still]):
    """D9: steps advance while the loss or the gradient norm stays bit-equal."""

    name = Name.FROZEN
    sentence = (
        "The loss is bit-equal on `halt_x` times `loss_steps` applied steps in a row, or the"
        " gradient norm on `halt_x` times `grad_norm_steps`, after it was another."
    )
    State = Still
    armed_by = "equal"
    steps = True
    unobserved = "Neither loss nor gradient norm was reported: frozen values were not observed."

    def observe_step(self, own: Still, step: Step, view: View) -> Seen[Still]:
        if step.again:
            own = Still()
        if not step.applied:
            return own, []
        equal, findings = dict(own.equal), list[Finding]()
        for name, value in (("loss", step.loss), ("grad_norm", step.grad_norm)):
            if value is None or not math.isfinite(value):
                continue
            run = equal.get(name)
            if run is None or run.value != value:
                equal[name] = EqualValues(value, 1, step.step, run is not None)
                continue
            equal[name] = run = run._replace(steps=run.steps + 1)
            limit = self.settings.halt_x * getattr(self.settings, f"{name}_steps")
            if not value or run.steps < limit or not (run.moved or name == "loss"):
                continue
            text = f"the {name} has been {value:.9g} on {run.steps} steps in a row"
            halt = self.finding(
                step, view, Severity.HALT, f"{name}/step{run.since_step}",
                f"{text}, since step {run.since_step}", setting=f"{name}_steps",
                value=float(run.steps), threshold=limit,
            )  # fmt: skip
            findings.append(halt)
        return Still(equal=equal), findings

    def measure(self, own: Still, view: View, mono: float) -> Near:
        count = own.equal["loss"].steps if "loss" in own.equal else 0
        limit = self.settings.halt_x * self.settings.loss_steps
        return Near(value=float(count), limit=limit, unit="steps")


@dataclass(frozen=True, kw_only=True)
class Norms:
    """The gradient norms of applied steps."""

    moved: bool = False
    """Whether a norm other than zero was reported."""
    zeros: int = 0
    window: tuple[float, ...] = ()
    counted: int = 0
    clipped: int = 0
    """Among the last `counted` norms, those above the clipping limit."""


class Gradients(Detector[Norms]):
    """D12: gradient norms of zero, spikes, and steps that are always clipped.

    A norm of zero counts only after another norm was reported, because some trainers write 0 for a
    norm that they never computed. It does not count beside a loss of exactly zero (equal rewards).
    """

    name = Name.GRADIENTS
    sentence = (
        "The gradient norm is exactly zero on `zero_steps` applied steps in a row, after it "
        "was another. Warns of `spike_count` spikes in `spike_of` norms, and when more than "
        "`clip_share` of `clip_steps` norms are clipped."
    )
    State = Norms
    armed_by = "moved"
    steps = True
    unobserved = "No gradient norm was reported: gradients were not observed."

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        optim = run.order.train.get("optim")
        clip = optim.get("clip") if isinstance(optim, dict) else None
        self._clip = float(clip) if isinstance(clip, int | float) and clip > 0 else math.inf

    def observe_step(self, own: Norms, step: Step, view: View) -> Seen[Norms]:
        if step.again:
            own = Norms(moved=own.moved)
        norm = step.grad_norm
        if norm is None or not 0.0 <= norm < math.inf or not (own.moved or norm):
            return own, []
        settings, clipped = self.settings, norm > self._clip
        begins = own.counted == settings.clip_steps
        own = Norms(
            moved=True,
            zeros=0 if norm else own.zeros + (step.loss != 0.0),
            window=(*own.window, norm)[-settings.window_steps :],
            counted=1 if begins else own.counted + 1,
            clipped=clipped if begins else own.clipped + clipped,
        )
        halt, findings, window = Severity.HALT, list[Finding](), own.window
        if own.zeros >= settings.zero_steps:
            text, name = (
                f"the norm was exactly 0 on {own.zeros} applied steps in a row",
                "zero_steps",
            )
            zeros = float(own.zeros)
            findings.append(self.finding(step, view, halt, name, text, setting=name, value=zeros))
        if len(window) > settings.window_steps // 2 and norm > settings.spike_x * min(window):
            limit = settings.spike_x * statistics.median(window)
            if limit:
                findings += warn_of_spikes(self, step, view, window, limit, "gradient norms")
        share, name = own.clipped / own.counted, "clip_share"
        if own.counted == settings.clip_steps and share > settings.clip_share:
            text = f"{share:.0%} of the last {own.counted} gradient norms were clipped"
            text, warn = f"{text} (limit {self._clip:g})", Severity.WARN
            findings.append(self.finding(step, view, warn, name, text, setting=name, value=share))
        return own, findings

    def measure(self, own: Norms, view: View, mono: float) -> Near:
        return Near(value=float(own.zeros), limit=float(self.settings.zero_steps), unit="steps")


@dataclass(frozen=True, kw_only=True)
class Gates:
    """What was seen of the gates."""

    reported: bool = False
    seen: tuple[tuple[int, float], ...] = ()
    """The last collapsed gates that were seen far enough apart, without sound ones in between: step
    and share of layers."""


class GateCollapse(Detector[Gates]):
    """D13: the branch gates choose one branch only.

    A progress line reports which share of the layers has collapsed gates (`gate_collapse_frac`).
    A trainer may report the mean normalised entropy over layers, or the largest gate. The mean is
    compared with the entropy limit, and the largest gate proves one layer.
    """

    name = Name.GATE_COLLAPSE
    sentence = (
        "After step `after_step`, the gates of more than `layer_share` of the layers have collapsed"
        " on `distinct` steps at least `apart_steps` apart, without a step of sound gates in"
        " between. Collapsed: normalised entropy below `entropy`, or a gate above `max_gate`. Warns"
        " of one layer."
    )
    State = Gates
    armed_by = "reported"
    steps = True
    ours = True
    blind = "no gate statistics were reported yet"
    unobserved = "No gate statistics were reported: a collapse of the gates was not observed."

    def observe_step(self, own: Gates, step: Step, view: View) -> Seen[Gates]:
        settings, seen = self.settings, () if step.again else own.seen
        lines = [row.progress for row in step.ranks.values() if row.progress is not None]
        reported = [
            self._share_of(line)
            for line in lines
            if (line.gate_collapse_frac, line.gate_entropy, line.gate_max) != NO_GATES
        ]
        share = min((share for share in reported if share is not None), default=None)
        if share is None:
            return replace(own, seen=seen), []
        if not share:
            seen = ()
        elif step.step <= settings.after_step:
            pass
        elif not seen or step.step - seen[-1][0] >= max(1, settings.apart_steps):
            seen = (*seen, (step.step, share))[-settings.distinct :]
        findings, lowest = [], min((found for _, found in seen), default=0.0)
        for severity, least in ((Severity.WARN, 0.0), (Severity.HALT, settings.layer_share)):
            if len(seen) < settings.distinct or lowest <= least:
                continue
            text = f"the gates of {lowest:.0%} of the layers have collapsed on {len(seen)} steps at"
            text = f"{text} least {settings.apart_steps} apart, since step {seen[0][0]}"
            findings.append(
                self.finding(
                    step, view, severity, "gates", text,
                    setting="layer_share", value=lowest, threshold=least,
                )
            )  # fmt: skip
        return Gates(reported=True, seen=seen), findings

    def _share_of(self, line: Heartbeat) -> float | None:
        """Return the share of collapsed layers that a rank reported, or None."""
        share, entropy, largest = line.gate_collapse_frac, line.gate_entropy, line.gate_max
        if share is not None:
            return share if math.isfinite(share) else None
        if entropy is not None and entropy < self.settings.entropy:
            return 1.0
        if largest is not None and largest > self.settings.max_gate:
            return 1.0 / (self.run.order.identity.layers or MANY_LAYERS)
        return None if entropy is None and largest is None else 0.0

    def measure(self, own: Gates, view: View, mono: float) -> Near:
        return Near(value=float(len(own.seen)), limit=float(self.settings.distinct), unit="steps")


@dataclass(frozen=True, kw_only=True)
class FirstSeen:
    """Whether the first loss was reported."""

    seen: bool = False


class FirstLoss(Detector[FirstSeen]):
    """D26: the first loss is not near ln(vocab), that of an untrained model (bytes: 5.545)."""

    name = Name.FIRST_LOSS
    sentence = "Warns when the loss of step 1 differs from ln(vocabulary) by more than `tolerance`."
    State = FirstSeen
    lines = frozenset({Msg.PROGRESS})
    blind = "the first loss was reported, the run resumes, or its vocabulary is not known"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        if not run.order.identity.vocab or run.order.resume_from is not None:
            self.lines = frozenset()  # no loss is its first

    def observe_line(self, own: FirstSeen, event: Beat, view: View) -> Seen[FirstSeen]:
        loss = event.line.loss
        if event.line.step != 1 or loss is None or own.seen:
            return own, []
        own, tolerance = FirstSeen(seen=True), self.settings.tolerance
        expected = math.log(self.run.order.identity.vocab or 1)
        if not math.isfinite(loss) or abs(loss - expected) <= tolerance:
            return own, []
        text = f"the first loss is {loss:.4g}; ln(vocab) is {expected:.4g} (tolerance {tolerance})"
        return own, [
            self.finding(event, view, Severity.WARN, "step1", text, setting="tolerance", value=loss)
        ]

    def armed(self, own: FirstSeen, view: View) -> bool:
        return bool(self.lines) and not own.seen
