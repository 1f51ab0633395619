"""Whether the steps of a training changed the model: one doubt for each sign that none did.

Each rule looks at the whole training. What stops in the middle of a run is the watch's part
(`frozen`, `non_finite`). A program that is only read reports no identity; its learning rate and
gradient norm are not judged.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, variance

from gonogo.contract.canonical import rounded
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.heartbeat import Identity, Msg
from gonogo.contract.order import Rules
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
    yield from _nothing_updated(ranks, rules)
    yield from _same_loss(ranks, rules)
    yield from _apart(ranks, rules)


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


def _nothing_updated(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield what shows that most steps updated nothing; one rank excuses all ranks."""
    scaled = SCALING_STEPS * (rules.identity.dtype in (None, "fp16"))
    rows = [row for row in ranks.values() if row.identity() not in (None, Identity())]
    rates, norms = (
        [
            (len(told), sum(not 0.0 < value < math.inf for value in told))
            for told in (row.samples(name).values() for row in rows)
        ]
        for name in ("lr", "grad_norm")
    )
    for name, counts, least, found in (
        ("the update", list(map(_updates, ranks.values())), scaled + 1, "skipped"),
        ("the learning rate", rates, ALIKE_STEPS, 0.0),
        ("the gradient norm", norms, ALIKE_STEPS, 0.0),
    ):
        told = [(steps, idle) for steps, idle in counts if steps]
        enough = max(told, default=(0, 0))[0] >= least
        if enough and all(_is_most(idle, steps) for steps, idle in told):
            yield _nothing(name, min(idle for _, idle in told), found)


def _updates(steps: RankSteps) -> tuple[int, int]:
    """Return how many steps were reported, and how many skipped their update or lost their loss."""
    told = {step for step, _ in steps.steps.steps_of(Msg.PROGRESS)}
    lost = {step for step, loss in steps.samples("loss").items() if not math.isfinite(loss)}
    return len(told), len(told & (steps.steps.skipped() | lost))


def _is_most(count: int, steps: int) -> bool:
    """Say whether so many of a training's steps speak for it: all of a few, most of many."""
    return count == steps or (steps >= ALIKE_STEPS and 2 * count > steps)


def _same_loss(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield that the loss, or the validation loss, of every rank is bit-equal."""
    norms = {norm for row in ranks.values() for norm in row.samples("grad_norm").values()}
    losses = [row.samples("loss") for row in ranks.values()] if len(norms) <= 1 else []
    said = rules.watch.get("frozen.loss_steps")
    alike = max(ALIKE_STEPS, said.value if said and isinstance(said.value, int) else 0)
    for name, rows, fewest, span in (
        ("the loss", losses, alike, 0),
        ("the validation loss", [row.evals for row in ranks.values()], ALIKE_EVALUATIONS, alike),
    ):
        told = [row for row in rows if row]
        if not told or min(map(len, told)) < fewest or max(map(_span, told)) < span:
            continue
        values = [value for row in told for value in row.values()]
        empty = span and rules.identity.vocab and not any(values)  # the mean over an empty set
        if empty or _is_one(values):
            yield _nothing(name, min(map(len, told)), values[0])


def _span(row: Mapping[int, float]) -> int:
    return max(row) - min(row)


def _is_one(values: Sequence[float]) -> bool:
    """Say whether numbers are one, which is neither rounded nor of half precision, nor zero."""
    one = values[0]
    if not math.isfinite(one) or any(value != one for value in values):
        return False
    unrounded = round(one, DECIMALS) != one and float(f"{one:.{DECIMALS - 1}e}") != one
    return unrounded and not math.ldexp(math.frexp(one)[0], HALF_BITS).is_integer()


def _nothing(name: str, steps: int, found: str | float) -> Doubt:
    return Doubt(kind=DoubtKind.NOTHING_LEARNED, name=name, expected=steps, found=found)


def _apart(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield the ranks that share no gradient, or report another norm of averaged gradients.

    A forward pass outside of the wrapper averages nothing, and `no_sync` sends nothing.
    """
    kind, alone = DoubtKind.RANKS_APART, (rules.world_size or 0) < 2
    for rank, row in sorted(ranks.items()) if not alone else ():
        sent = row.samples("comm_mb").values() if row.backend in (DDP, FSDP) else ()
        if sent and not any(sent):
            yield Doubt(kind=kind, rank=rank, name="comm_mb", expected=rank, found=len(sent))
    told = {rank: row for rank, row in sorted(ranks.items()) if row.backend == DDP}
    first, *others = told or [0]
    for rank in others:
        one, other = (told[row].samples("grad_norm") for row in (first, rank))
        pairs = [(one[step], other[step]) for step in one.keys() & other.keys()]
        known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        count = sum(abs(a - b) > APART_RATIO * max(abs(a), abs(b)) for a, b in known)
        if len(known) >= ALIKE_STEPS and _is_most(count, len(known)):
            yield Doubt(kind=kind, rank=rank, name="grad_norm", expected=first, found=count)
            return
