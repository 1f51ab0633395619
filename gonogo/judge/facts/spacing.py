"""How fast was the predecessor, by its own lines? Δsteps over Δts, never what it reports of itself.

Its progress lines come every `log_every` steps and say when, so the mean step between two of them
is known exactly and no single step is. What it reports in `toks_per_s` is only held against that
(R16, R70): the two together imply how many tokens a step took.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector

FLOPS_PER_PARAM = 6
"""Two forward and four backward for each parameter and token; attention is not counted."""

LEAST_S = 1e-6
"""No step is shorter than what a clock shows."""
MOST_STEPS = 1_000_000
"""Steps that are told apart: a line may claim any step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spacing:
    """The distances between one rank's progress lines."""

    step_s: dict[int, float]
    """Step → mean seconds of the steps between the two lines around it."""
    reported_tok_s: float | None
    """Median of the tokens per second that its lines report."""

    @property
    def median_s(self) -> float:
        """Median over the steps of their mean seconds."""
        return statistics.median(self.step_s.values())

    @property
    def implied_tokens(self) -> float | None:
        """Tokens of a step, if what the lines report were true."""
        return None if self.reported_tok_s is None else self.reported_tok_s * self.median_s


def advancing(beats: Iterable[Heartbeat]) -> list[Heartbeat]:
    """Return the lines that brought a higher step than any before."""
    kept: list[Heartbeat] = []
    highest = 0
    for beat in beats:
        if beat.step > highest and beat.msg in (Msg.PROGRESS, Msg.STEP_END):
            highest = beat.step
            kept.append(beat)
    return kept


def find_spacing(beats: Iterable[Heartbeat]) -> Spacing | None:
    """Return the distances between one rank's progress lines, None where there are no two.

    A process that starts again begins anew: the time between two processes is no step's. Of a step
    that both took, the later process counts.
    """
    boots: dict[str, list[Heartbeat]] = {}
    for beat in beats:
        boots.setdefault(beat.boot, []).append(beat)
    step_s: dict[int, float] = {}
    told: list[float] = []
    for lines in boots.values():
        progress = advancing(beat for beat in lines if beat.msg == Msg.PROGRESS)
        told += [beat.toks_per_s for beat in progress if beat.toks_per_s is not None]
        for before, after in pairwise(progress):
            count = after.step - before.step
            seconds = (after.ts - before.ts) / count
            if seconds >= LEAST_S and len(step_s) + count <= MOST_STEPS:
                step_s |= dict.fromkeys(range(before.step + 1, after.step + 1), seconds)
    if not step_s:
        return None
    return Spacing(step_s=step_s, reported_tok_s=statistics.median(told) if told else None)


def hardware_share(order: Order, tok_s: float) -> float | None:
    """Return the share of the profile's peak that the ordered model takes at a global speed.

    None where the hardware table names no peak for the profile, or nobody knows the parameters.
    """
    profile = hardware_profiles().get(order.profile)
    identity = order.identity
    if profile is None or profile.peak_flops is None or not identity.params:
        return None
    multiplied = identity.params - (identity.vocab or 0) * (identity.dim or 0)
    if multiplied <= 0:
        return None
    return FLOPS_PER_PARAM * multiplied * tok_s / (profile.peak_flops * order.world_size)


def observe_speed(
    beats: Mapping[int, Sequence[Heartbeat]],
    spacings: Mapping[int, Spacing],
    order: Order | None,
) -> list[Finding]:
    """Return D21, as a warning, for reports that the lines' own distances do not bear out (R70).

    Nobody measured the device's peak and the identity is unknown, so this never halts.
    """
    tokens = order.identity.tokens_per_step if order is not None else None
    if order is None or not tokens:
        return []
    found = []
    for rank, spacing in spacings.items():
        derived, told = tokens / spacing.median_s, spacing.reported_tok_s
        differ = order.watch.implausible_speed.differ_ratio
        share = hardware_share(order, derived)
        if told is not None and abs(told - derived) > differ * derived:
            limit = (1.0 + differ if told > derived else 1.0 - differ) * derived
            text = (
                f"rank {rank} reports {told:.4g} tokens/s; {spacing.median_s:.4g} s a step between"
                f" its lines are {derived:.5g} at the {tokens} tokens a step that were ordered:"
                f" either a step took {spacing.implied_tokens:.0f} tokens, or the report is false"
            )
            found.append(_speed_finding(beats[rank], rank, told, limit, text))
        if share is not None and share > 1.0:
            text = (
                f"rank {rank}: {derived:.5g} tokens/s of the ordered model would be"
                f" {share:.3g} times what profile {order.profile} can multiply"
            )
            found.append(_speed_finding(beats[rank], rank, derived, derived / share, text))
    return found


def _speed_finding(
    stream: Sequence[Heartbeat], rank: int, value: float, limit: float, text: str
) -> Finding:
    return Finding(
        detector=Detector.IMPLAUSIBLE_SPEED,
        severity=Severity.WARN,
        rank=rank,
        step=stream[-1].step,
        value=value,
        threshold=limit,
        at=stream[-1].ts,
        key=f"implausible_speed:{rank}:{limit:.9g}",
        text=text,
    )


def unseen_speed(spacings: Mapping[int, Spacing], order: Order | None) -> Iterator[Doubt]:
    """Yield what the distances between lines show of speed, and what they leave open."""
    tokens = order.identity.tokens_per_step if order is not None else None
    for rank, spacing in sorted(spacings.items()):
        every = f"{spacing.median_s:.4g} s a step, the mean between two lines"
        if order is None or not tokens:
            implied = spacing.implied_tokens
            of = "" if implied is None else (
                f"; the reported {spacing.reported_tok_s:.4g} tokens/s would mean"
                f" {implied:.0f} tokens a step"
            )  # fmt: skip
            yield predecessor_doubt("tokens", f"{every}; nobody recorded how many tokens{of}", rank)
            continue
        tok_s = tokens / spacing.median_s
        share = hardware_share(order, tok_s)
        of = "" if share is None or share > 1.0 else (
            f", {100 * share:.2g} % of what profile {order.profile} can multiply"
        )  # fmt: skip
        yield predecessor_doubt("speed", f"{every}: {tok_s:.5g} tokens/s{of}", rank)


def predecessor_doubt(name: str, found: str, rank: int | None = None) -> Doubt:
    """Return what the predecessor's lines do not record."""
    return Doubt(kind=DoubtKind.PREDECESSOR, rank=rank, name=name, found=found)
