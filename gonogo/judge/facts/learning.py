"""Did the steps that were taken change the model? One doubt for each sign that none of them did.

Each rule looks at a whole training, from its first step to its last. Of a run of several trainings
in a row it looks at each. What stops in mid-run is the watchdog's part (`frozen`, `non_finite`).
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import chain, pairwise
from statistics import fmean, variance

from gonogo.contract.canonical import rounded
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.heartbeat import Identity, Msg
from gonogo.contract.rules import Rules
from gonogo.judge.facts.exact import SMALL, is_exact
from gonogo.judge.facts.steps import RankSteps, Span

Kind = DoubtKind

UNFALLEN_STEPS = 200
"""With fewer steps, the loss of a model that learns may not have fallen by more than its noise."""
UNFALLEN_SHARE = 5
"""The first fifth of the losses is compared with the last fifth."""
NOISE_X = 2.0
"""Standard errors by which a loss must have fallen."""
SCALING_STEPS = 8
"""A loss scale begins at 2^16 and halves: so many first updates may be skipped."""
ALIKE_STEPS = 20
"""No model has the bit-equal loss at so many steps."""
ALIKE_EVALUATIONS = 4
"""So many evaluations, `ALIKE_STEPS` apart, are bit-equal only where no weight moved."""
SHARES = ((10_000, 1e-12), (256, 1e-7))
"""A validation loss may be the share of a few examples. Number of examples → rounding error."""
PERCENT = 100.0
TAKEN_EVALUATIONS = 2
"""So many evaluations do not find the bit-equal loss of the step before them."""
RATE_ERROR_RATIO = 1e-6
"""A rate below this share of the largest one moves no weight in single precision."""
MOST_OF_THEM = 0.5
"""Share of at least `ALIKE_STEPS` steps that speaks for the whole training."""
APART_RATIO = 1e-3
"""Averaged gradients differ less between ranks, in whatever order each rank adds them up."""
DDP, FSDP = "DDP", "FSDP"
"""Backends whose ranks take the same step; under FSDP a rank may report its shard's norm."""
TOGETHER = 2
"""So many ranks have gradients to share."""

Training = Mapping[int, RankSteps]
"""Rank → its steps."""


def find_nothing_learned(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield why the steps of a training changed nothing."""
    for training in (*_trainings_before(ranks, rules), ranks):
        for rule in RULES:
            yield from rule(training, rules)


def find_unclear_learning(ranks: Training) -> Iterator[Doubt]:
    """Yield that no rank's loss fell. The loss of an agent, or of adversaries, need not fall."""
    longest = max((row.samples("loss") for row in ranks.values()), key=len, default={})
    losses = [loss for _, loss in sorted(longest.items()) if math.isfinite(loss)]
    if len(losses) < UNFALLEN_STEPS:
        return
    part = len(losses) // UNFALLEN_SHARE
    scale = max(map(abs, losses)) or 1.0  # squares of a diverged loss are beyond any float
    first, last = ([loss / scale for loss in row] for row in (losses[:part], losses[-part:]))
    before, after = fmean(first), fmean(last)
    noise = math.sqrt((variance(first, before) + variance(last, after)) / part)
    if after >= before - NOISE_X * noise:
        yield Doubt(
            kind=Kind.LEARNING_UNCLEAR,
            name="loss",
            expected=rounded(before * scale),
            found=rounded(after * scale),
        )


def _trainings_before(ranks: Training, rules: Rules) -> list[Training]:
    """Return the trainings in a row that went to the last step, but the last of them."""
    if not rules.known or rules.steps is None:
        return []
    parts = {
        rank: row.trainings_before(rules.first_step, rules.steps) for rank, row in ranks.items()
    }
    return [
        {rank: rows[number] for rank, rows in parts.items() if number < len(rows)}
        for number in range(max(map(len, parts.values()), default=0))
    ]


def _nothing(name: str, steps: int, found: str | float, rank: int | None = None) -> Doubt:
    return Doubt(kind=Kind.NOTHING_LEARNED, rank=rank, name=name, expected=steps, found=found)


def _updates_skipped(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Compare the steps of a rank with the updates that it skipped.

    In half precision the first updates of a healthy run are skipped, until the loss scale fits.
    """
    for rank, steps in sorted(ranks.items()):
        told = [step for step, _ in steps.steps.steps_of(Msg.PROGRESS)]
        scaled = rules.identity.dtype in (None, "fp16") and len(told) <= SCALING_STEPS
        left_out = set() if scaled else set(steps.skipped()) | _overflowed(steps.loss_scales)
        for name in ("loss",) if scaled else ("loss", "grad_norm"):
            found = steps.samples(name).items()
            left_out.update(step for step, value in found if not math.isfinite(value))
        count = len(left_out.intersection(told))
        if told and _is_most(count, len(told)):
            yield _nothing("the update", count, "skipped", rank)


def _overflowed(scales: Mapping[int, float]) -> set[int]:
    """Return the steps whose update was skipped, as a lowered loss scale shows.

    Nobody knows the scale before the first step, so that step counts as the others do.
    """
    steps = sorted(scales)
    found = {
        step
        for before, step in pairwise(steps)
        if scales[step] < scales[before] or not scales[step] > 0.0
    }
    return found | set(steps[:1]) if found else found


def _one_loss(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Compare the losses of the steps: training leaves none of them bit-equal.

    Losses that come back one after the other count too: the data is not shuffled, and the weights
    stay. Rounded losses, losses of half precision and zero may be equal. A loss or a gradient norm
    that moves on one rank excuses all ranks.
    """
    still: dict[int, int] = {}
    for rank, row in sorted(ranks.items()):
        losses, norms = row.samples("loss"), row.samples("grad_norm")
        period = _period(list(losses.values()))
        comes_back = len(losses) - period + 1 >= _alike_steps(rules)
        moves = _moves(norms, losses, period) or not _mostly_exact(losses.values())
        if moves or (period > 1 and not comes_back):
            return
        if comes_back:
            still[rank] = len(losses)
    if still:
        yield _nothing("the loss", max(still.values()), "bit-equal, or comes back in order")


def _mostly_exact(losses: Collection[float]) -> bool:
    """Say whether most losses are neither rounded nor of half precision, nor zero."""
    exact = sum(1 for loss in losses if math.isfinite(loss) and is_exact(loss))
    return 2 * exact >= len(losses)


def _moves(norms: Mapping[int, float], losses: Mapping[int, float], period: int) -> bool:
    """Say whether a gradient norm differs where the loss came back."""
    steps = sorted(losses)
    lag = steps[period] - steps[0] if len(steps) > period else 1
    known: dict[int, float] = {}
    return any(known.setdefault(step % lag, norm) != norm for step, norm in norms.items())


def _period(values: list[float]) -> int:
    """Return after how many values they all come back; at most all.

    By the prefix function of Knuth, Morris and Pratt (1977).
    """
    borders, border = [0] * len(values), 0
    for place in range(1, len(values)):
        while border and values[place] != values[border]:
            border = borders[border - 1]
        border += values[place] == values[border]
        borders[place] = border
    return len(values) - borders[-1] if values else 0


def _no_rate(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Compare the steps with their learning rate; a rank with a rate excuses all ranks."""
    rates = [found for row in _reporting(ranks) if (found := row.samples("lr").values())]
    largest = _largest(chain(*rates))
    still = [sum(not _is_rate(rate, largest) for rate in row) for row in rates]
    steps = max(map(len, rates), default=0)
    if steps >= ALIKE_STEPS and all(map(_is_most, still, map(len, rates))):
        yield _nothing("the learning rate", min(still), 0.0)


def _largest(rates: Iterable[float]) -> float:
    return max((abs(rate) for rate in rates if math.isfinite(rate)), default=0.0)


def _is_rate(value: float, largest: float) -> bool:
    return math.isfinite(value) and abs(value) > RATE_ERROR_RATIO * largest


def _is_most(count: int, steps: int) -> bool:
    """Say whether so many of a training's steps speak for it: all of a few, most of many."""
    return count == steps or (steps >= ALIKE_STEPS and count > MOST_OF_THEM * steps)


def _negative_rate(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Compare the steps with the sign of their rate: a schedule may fall below 0 after its end.

    A script that advances the schedule first reports the rate of the next step: the rate of the
    last step alone was not used.
    """
    rates = [row.samples("lr") for row in _reporting(ranks)]
    least = -RATE_ERROR_RATIO * _largest(chain.from_iterable(row.values() for row in rates))
    below = [{step for step, rate in row.items() if rate < least} for row in rates]
    resumed_to = rules.steps if rules.first_step > 1 else None
    used = [
        found
        for found, row in zip(below, rates, strict=True)
        if found != {max(row, default=0)} or (len(row) == 1 and found != {resumed_to})
    ]
    if steps := max(map(len, used), default=0):
        yield Doubt(kind=Kind.NEGATIVE_RATE, found=steps)


def _no_gradient(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Compare the steps with their gradients: single steps may have none, not all of them."""
    norms = [row.samples("grad_norm").values() for row in _reporting(ranks)]
    steps = max(map(len, norms), default=0)
    if steps >= ALIKE_STEPS and not any(chain(*norms)):
        yield _nothing("the gradient norm", steps, 0.0)


def _no_tokens(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Compare the steps with their tokens; one rank with tokens excuses all ranks."""
    tokens = [row.steps.tokens_told().values() for row in _reporting(ranks)]
    steps = max(map(len, tokens), default=0)
    if steps and not any(chain(*tokens)):
        yield _nothing("tokens", steps, 0)


def _apart(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Compare what ranks that average their gradients report of the step that they all take.

    A forward pass outside of the wrapper averages nothing, and each rank may have another schedule.
    """
    for name, backends in (("grad_norm", {DDP}), ("lr", {DDP, FSDP})):
        told = {rank: row for rank, row in sorted(ranks.items()) if row.backend in backends}
        first, *others = told or [0]
        for rank in others:
            one, other = told[first].samples(name), told[rank].samples(name)
            count, steps = _differing(one, other)
            if steps >= ALIKE_STEPS and _is_most(count, steps):
                yield Doubt(
                    kind=Kind.RANKS_APART, rank=rank, name=name, expected=first, found=count
                )
                break


def _differing(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[int, int]:
    """Return at how many steps two ranks differ, and how many steps both report."""
    pairs = [(one[step], other[step]) for step in one.keys() & other.keys()]
    known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    return sum(abs(a - b) > APART_RATIO * max(abs(a), abs(b)) for a, b in known), len(known)


def _nothing_shared(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Compare how ranks share gradients with how much they sent: `no_sync` at every step."""
    if (rules.world_size or 0) < TOGETHER:
        return
    for rank, row in sorted(ranks.items()):
        sent = row.samples("comm_mb").values() if row.backend in (DDP, FSDP) else ()
        if sent and not any(sent):
            yield Doubt(
                kind=Kind.RANKS_APART, rank=rank, name="comm_mb", expected=rank, found=len(sent)
            )


def _reporting(ranks: Training) -> list[RankSteps]:
    """Return the ranks that report an identity: an unchanged program, which is read, does not."""
    return [row for row in ranks.values() if row.identity() not in (None, Identity())]


def _one_validation(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Compare the validation losses: bit-equal ones show that no weight moved.

    Rounded numbers and shares of a few examples do not count. A rank whose validation loss moves
    excuses all ranks.
    """
    told = [_found(row) for row in ranks.values() if row.evals]
    spans = {span for rows in told for span in rows.values()}
    if any(not math.isfinite(low) or not _is_exact(low, high) for low, high in spans):
        return
    if any(len(set(rows.values())) > 1 for rows in told):
        return
    counts = [
        len(rows)
        for rows in told
        if len(rows) >= ALIKE_EVALUATIONS and max(rows) - min(rows) >= _alike_steps(rules)
    ]
    if counts:
        yield _nothing("the validation loss", max(counts), rounded(min(low for low, _ in spans)))


def _not_evaluated(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Compare the validation losses with the loss of the step before each, and with 0.

    The mean over an empty set is 0 where the script avoids the division.
    """
    for row in _reporting(ranks):
        losses = row.samples("loss")
        found = [(loss, losses[step]) for step, loss in row.evals.items() if step in losses]
        exact = sum(is_exact(loss) for loss, _ in found)
        if exact >= TAKEN_EVALUATIONS and all(loss == trained for loss, trained in found):
            yield _unevaluated(len(found), "the loss of the step before")
            break
    if rules.identity.vocab and (count := _zero_evaluations(ranks)):
        yield _unevaluated(count, "0")


def _unevaluated(count: int, found: str) -> Doubt:
    return Doubt(kind=Kind.NOT_EVALUATED, name="the validation loss", expected=count, found=found)


def _zero_evaluations(ranks: Training) -> int:
    """Return how many evaluations found exactly 0, where all did and no step's loss is small."""
    count = max((len(row.evals) for row in ranks.values()), default=0)
    losses = chain(*(row.samples("loss").values() for row in ranks.values()))
    spans = {span for row in ranks.values() for span in _found(row).values()}
    if count < TAKEN_EVALUATIONS or spans != {(0.0, 0.0)} or not min(losses, default=0.0) >= SMALL:
        return 0
    return count


def _found(row: RankSteps) -> dict[int, Span]:
    """Return step → lowest and highest validation loss: it may have evaluated on several sets."""
    apart = row.eval_spans()
    return {step: apart.get(step, (loss, loss)) for step, loss in row.evals.items()}


def _is_exact(low: float, high: float) -> bool:
    """Say whether one of the numbers is neither rounded nor of half precision, zero nor a share."""
    return any(is_exact(value) and not _is_share(value) for value in (low, high))


def _is_share(value: float) -> bool:
    """Say whether a number may be the share of a few examples, or that in percent."""
    for part in (value, value / PERCENT):
        for most, error in SHARES:
            share = Fraction(part).limit_denominator(most)
            if 0 < abs(share) <= 1 and abs(part - share) <= error:
                return True
    return False


def _alike_steps(rules: Rules) -> int:
    """Return how many steps may have one loss: as many as `frozen` has no suspicion of."""
    said = rules.watch.get("frozen.loss_steps")
    return max(ALIKE_STEPS, said.value if said and isinstance(said.value, int) else 0)


RULES: tuple[Callable[[Training, Rules], Iterator[Doubt]], ...] = (
    _updates_skipped,
    _one_loss,
    _no_rate,
    _negative_rate,
    _no_gradient,
    _no_tokens,
    _apart,
    _nothing_shared,
    _one_validation,
    _not_evaluated,
)
"""Each yields why a training learned nothing; a new one is one row."""
