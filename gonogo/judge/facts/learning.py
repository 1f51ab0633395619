"""Whether the steps of a training changed the model: one doubt for each sign that none did.

Each rule looks at the whole training. What stops in the middle of a run is the watch's part
(`frozen`, `non_finite`). A program that is only read reports no identity; its learning rate and
gradient norm are not judged.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, variance

from gonogo.contract.canonical import rounded
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.heartbeat import Identity, Msg
from gonogo.contract.rules import Rules
from gonogo.timeline.rank_steps import RankSteps

UNFALLEN_STEPS = 200
"""With fewer steps, the loss of a model that learns may not have fallen by more than its noise."""
UNFALLEN_SHARE = 5
"""The first fifth of the losses is compared with the last fifth."""
NOISE_X = 2.0
"""Standard errors by which a loss must have fallen."""
SCALING_STEPS = 8
"""A loss scale begins at 2^16 and halves, so the first updates may be skipped."""
ALIKE_STEPS = 20
"""No model has the bit-equal loss at so many steps."""
ALIKE_EVALUATIONS = 4
"""So many evaluations, `ALIKE_STEPS` apart, are bit-equal only if no weight moved."""
APART_RATIO = 1e-3
"""Averaged gradients differ less between ranks, in whatever order each rank adds them up."""
DDP, FSDP = "DDP", "FSDP"
"""Backends whose ranks take the same step; under FSDP a rank may report its shard's norm."""
DECIMALS, HALF_BITS = 6, 11
"""Numbers are often printed with six decimals. A half-precision number has 11 significant bits."""

Training = Mapping[int, RankSteps]
"""Rank → its steps."""


def find_nothing_learned(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield why the steps of a training changed nothing."""
    for rule in RULES:
        yield from rule(ranks, rules)


def find_unclear_learning(ranks: Training) -> Iterator[Doubt]:
    """Yield that no rank's loss fell. The loss of an agent, or of adversaries, need not fall."""
    longest = max((row.samples("loss") for row in ranks.values()), key=len, default={})
    losses = [loss for _, loss in sorted(longest.items()) if math.isfinite(loss)]
    if len(losses) < UNFALLEN_STEPS:
        return
    part = len(losses) // UNFALLEN_SHARE
    scale = max(map(abs, losses)) or 1.0  # the squares of a diverged loss overflow
    first, last = ([loss / scale for loss in row] for row in (losses[:part], losses[-part:]))
    before, after = fmean(first), fmean(last)
    noise = math.sqrt((variance(first, before) + variance(last, after)) / part)
    if after >= before - NOISE_X * noise:
        yield Doubt(
            kind=DoubtKind.LEARNING_UNCLEAR,
            name="loss",
            expected=rounded(before * scale),
            found=rounded(after * scale),
        )


def _nothing(name: str, steps: int, found: str | float, rank: int | None = None) -> Doubt:
    kind = DoubtKind.NOTHING_LEARNED
    return Doubt(kind=kind, rank=rank, name=name, expected=steps, found=found)


def _updates_skipped(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield the ranks that skipped most updates, or whose loss is no number at most steps."""
    scaled = rules.identity.dtype in (None, "fp16")
    for rank, steps in sorted(ranks.items()):
        told = {step for step, _ in steps.steps.steps_of(Msg.PROGRESS)}
        losses = steps.samples("loss").items()
        lost = steps.skipped() | {step for step, loss in losses if not math.isfinite(loss)}
        count = len(lost & told)
        if len(told) > SCALING_STEPS * scaled and _is_most(count, len(told)):
            yield _nothing("the update", count, "skipped", rank)


def _same_loss(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield that the loss is bit-equal at every step of every rank, and so are gradient norms."""
    losses = [found for row in ranks.values() if (found := [*row.samples("loss").values()])]
    norms = {norm for row in ranks.values() for norm in row.samples("grad_norm").values()}
    fewest = min(map(len, losses), default=0)
    if len(norms) <= 1 and fewest >= _alike_steps(rules) and all(map(_is_one, losses)):
        yield _nothing("the loss", fewest, losses[0][0])


def _same_validation(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield that every evaluation of every rank found the bit-equal loss."""
    told = [row.evals for row in ranks.values() if row.evals]
    apart = max((max(row) - min(row) for row in told), default=0)
    count = max(map(len, told), default=0)
    if count < ALIKE_EVALUATIONS or apart < _alike_steps(rules):
        return
    values = [loss for row in told for loss in row.values()]
    empty = bool(rules.identity.vocab) and not any(values)  # the mean over an empty set
    if empty or _is_one(values):
        yield _nothing("the validation loss", count, values[0])


def _is_one(values: Sequence[float]) -> bool:
    """Say whether numbers are one, which is neither rounded nor of half precision, nor zero."""
    one = values[0]
    if not math.isfinite(one) or any(value != one for value in values):
        return False
    unrounded = round(one, DECIMALS) != one and float(f"{one:.{DECIMALS - 1}e}") != one
    return unrounded and not math.ldexp(math.frexp(one)[0], HALF_BITS).is_integer()


def _nothing_applied(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield that learning rates or gradient norms are not above 0; one rank excuses all ranks."""
    for name, called in (("lr", "the learning rate"), ("grad_norm", "the gradient norm")):
        told = [found for row in _reporting(ranks) if (found := [*row.samples(name).values()])]
        counts = [sum(not 0.0 < value < math.inf for value in row) for row in told]
        steps = max(map(len, told), default=0)
        if steps >= ALIKE_STEPS and all(map(_is_most, counts, map(len, told))):
            yield _nothing(called, min(counts), 0.0)


def _is_most(count: int, steps: int) -> bool:
    """Say whether so many of a training's steps speak for it: all of a few, most of many."""
    return count == steps or (steps >= ALIKE_STEPS and 2 * count > steps)


def _apart(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield that ranks which average their gradients report different norms.

    A forward pass outside of the wrapper averages nothing.
    """
    told = {rank: row for rank, row in sorted(ranks.items()) if row.backend == DDP}
    first, *others = told or [0]
    for rank in others:
        count, steps = _differing(*(told[row].samples("grad_norm") for row in (first, rank)))
        if steps >= ALIKE_STEPS and _is_most(count, steps):
            kind = DoubtKind.RANKS_APART
            yield Doubt(kind=kind, rank=rank, name="grad_norm", expected=first, found=count)
            return


def _differing(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[int, int]:
    """Return at how many steps two ranks differ, and how many steps both report."""
    pairs = [(one[step], other[step]) for step in one.keys() & other.keys()]
    known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    return sum(abs(a - b) > APART_RATIO * max(abs(a), abs(b)) for a, b in known), len(known)


def _nothing_shared(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield the ranks that never sent a gradient: `no_sync` at every step."""
    for rank, row in sorted(ranks.items()):
        sent = row.samples("comm_mb").values() if row.backend in (DDP, FSDP) else ()
        if (rules.world_size or 0) > 1 and sent and not any(sent):
            kind, count = DoubtKind.RANKS_APART, len(sent)
            yield Doubt(kind=kind, rank=rank, name="comm_mb", expected=rank, found=count)


def _reporting(ranks: Training) -> list[RankSteps]:
    """Return the ranks that report an identity."""
    return [row for row in ranks.values() if row.identity() not in (None, Identity())]


def _alike_steps(rules: Rules) -> int:
    """Return how many steps may have one loss: as many as `frozen` allows."""
    said = rules.watch.get("frozen.loss_steps")
    return max(ALIKE_STEPS, said.value if said and isinstance(said.value, int) else 0)


RULES: tuple[Callable[[Training, Rules], Iterator[Doubt]], ...] = (
    _updates_skipped,
    _same_loss,
    _same_validation,
    _nothing_applied,
    _apart,
    _nothing_shared,
)
"""Each yields why a training learned nothing; a new one is one row."""
