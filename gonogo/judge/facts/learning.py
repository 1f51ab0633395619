"""Did the steps that were taken change the model? One sentence for each sign that none of them did.

Each rule looks at a whole training, from its first step to its last: of a run of several in a row
at each, for the steps of one are laid over those of the one before. What a trainer holds for a
while, or what stops changing in mid-run, is the watchdog's (D9, D10).
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from statistics import fmean, variance

from gonogo.contract.heartbeat import Identity, Msg
from gonogo.contract.rules import Rules
from gonogo.judge.facts.steps import RankSteps, Span
from gonogo.watch.detectors.frozen import SMALL, is_exact, is_round

UNFALLEN_STEPS = 200
"""Of fewer the loss of a model that learns may not have fallen by more than its noise."""
UNFALLEN_SHARE = 5
"""The first losses that are held against the last ones are a fifth of a run, as are those."""
NOISE_X = 2.0
"""So many standard errors a loss has to have fallen."""
SCALING_STEPS = 8
"""Of so many each may be left out where a loss is scaled: each halves the scale, from 2^16."""
ALIKE_STEPS = 20
"""Steps of which no model has the bit-equal loss."""
ALIKE_EVALUATIONS = 4
"""So many on one set, `ALIKE_STEPS` apart, do not find the bit-equal loss where a weight moved."""
SHARES = ((10_000, 1e-12), (256, 1e-7))
"""Of so many examples at most an evaluation may tell the share that was wrong, which stays equal
where weights move, and how far off a number may be that is one: in double and single precision."""
PERCENT = 100.0
TAKEN_EVALUATIONS = 2
"""So many do not find the bit-equal exact loss of the step before them."""
RATE_ERROR_RATIO = 1e-6
"""Of the largest rate, so much on either side of 0 is 0: a sum that ends there may come to it, and
no weight in single precision moves by it."""
LEAST_RATE = 1e-10
"""Weights of usual size in single precision move by none below it where gradients are scaled, as by
Adam; where they are not, they may be as large as it is small."""
MOST_OF_THEM = 0.5
"""Share of its steps that a training may have left as they were, at a rate of 0 or by a skip, where
it is one of `ALIKE_STEPS`; a few tell too little of the others."""
APART_RATIO = 1e-3
"""Gradients that were averaged differ less between ranks, however each of them adds them up."""
DDP, FSDP = "DDP", "FSDP"
"""Backends whose ranks take the same step: each tells the norm of all gradients, and it may be that
of its own shard."""
NOT_AVERAGED = (
    "their gradients were not averaged, or each told that of its own (tell the norm of the averaged"
    " gradients of all parts of the model, or none)"
)
NOT_SHARED = "each trained a model of its own (one whose gradients were not counted leaves it out)"
TOGETHER = 2
"""So many ranks have gradients to share."""
TWO_COURSES = (
    "they did not take the same steps, or each told that of its own (tell the largest of all)"
)
CHANGED_NOTHING = "they changed nothing (of several rates tell the largest)"
RAISED = "they raised what they were to lower"
NO_GRADIENT = "they changed nothing (one that was not computed is left out)"
LEFT_OUT = (
    "its update was left out (skipped, not finite, or its loss scale lowered; one that was not due,"
    " of gradient accumulation, is not left out, and tells no `skipped`)"
)
STOOD_STILL = "they changed nothing, or told again what one of them had"
ALONE = "those of another rank moved, and it did not train with it"
BETWEEN = "the steps between changed nothing"
OR_OF_ONE = f"{BETWEEN}, or it is that of one of them"
NOT_EVALUATED = "nothing was evaluated"
NONE_TO_EVALUATE = f"{NOT_EVALUATED} (an empty set, or labels that are all left out)"
IN_WEIGHTS = (
    *(CHANGED_NOTHING, RAISED, NO_GRADIENT, LEFT_OUT, STOOD_STILL, ALONE),
    *(NOT_AVERAGED, NOT_SHARED, TWO_COURSES, BETWEEN, OR_OF_ONE),
)
"""How sentences end about what most steps did, or did not, to the weights that they leave."""
UNEVALUATED = (NOT_EVALUATED, NONE_TO_EVALUATE)
"""How sentences end about evaluations that looked at nothing."""
MOST_TOLD = 4
"""Losses that a sentence names."""

Training = Mapping[int, RankSteps]
"""Rank → its steps."""


def find_nothing_learnt(ranks: Training, rules: Rules) -> Iterator[str]:
    """Yield why the steps of a training changed nothing, one sentence each."""
    trainings = [*_trainings_before(ranks, rules), ranks]
    for number, training in enumerate(trainings, 1):
        which = "" if number == len(trainings) else f"training {number} of {len(trainings)}: "
        for rule in RULES:
            yield from (which + text for text in rule(training, rules))


def _trainings_before(ranks: Training, rules: Rules) -> list[Training]:
    """Return the trainings in a row that went to the last step, but the last of them."""
    if not rules.known or rules.steps is None:
        return []
    told = {
        rank: row.trainings_before(rules.first_step, rules.steps) for rank, row in ranks.items()
    }
    count = max(map(len, told.values()), default=0)
    return [
        {rank: parts[number] for rank, parts in told.items() if number < len(parts)}
        for number in range(count)
    ]


def _nothing_applied(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare that a rank took steps with what it says of each update.

    In half precision a scaled loss overflows until its scale has been lowered, so the first updates
    of a healthy run are left out; of a run that does not say its precision that may be, too.
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
            yield f"rank {rank} says of {_of_steps(count, len(told), 'its ')} that {LEFT_OUT}"


def _overflowed(scales: Mapping[int, float]) -> set[int]:
    """Return the steps whose update a loss scale shows to have been left out: it was lowered.

    Where it is told before the update the step after shows it. What it was before the first step
    nobody says, so that one counts as the others do.
    """
    told = sorted(scales)
    found = {
        step
        for before, step in pairwise(told)
        if scales[step] < scales[before] or not scales[step] > 0.0
    }
    return found | set(told[:1]) if found else found


def _one_loss(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare that ranks took steps with their loss, which no step of a model leaves as it was.

    Nor do losses come back one after the other, as those of data that is not shuffled do where the
    weights stay. D9 halts on one loss after many more steps, for a trainer may hold it for a while.
    What is rounded, of half precision or zero may stay equal, where no exact gradient norm comes
    back with it, and a loss or a norm that moves on one rank excuses all, but for a rank that held
    its own for the whole of a training of which another told as many losses as may not be alike.
    Ranks may each tell the loss of their own share.
    """
    told = {rank: (row.samples("loss"), row.samples("grad_norm")) for rank, row in ranks.items()}
    still: dict[int, tuple[int, int]] = {}
    excused = moving = False
    for rank, (losses, norms) in sorted(told.items()):
        period = _period(list(losses.values()))
        comes_back = len(losses) - period + 1 >= _alike_steps(rules)
        moving |= not comes_back and len(set(losses.values())) >= _alike_steps(rules)
        exact = _mostly_exact(losses.values()) or _exact_norms(norms, losses, _alike_steps(rules))
        held = _moves(norms, losses, period) or not exact
        excused |= held or (period > 1 and not comes_back)
        if comes_back and not held:
            still[rank] = len(losses), period
    if moving:
        for rank, (steps, period) in still.items():
            of = _alike(told[rank][0].values(), steps, period)
            yield f"rank {rank}: {of} {ALONE}"
    elif still and not excused:
        steps, period = max(still.values())
        every = chain.from_iterable(losses.values() for losses, _ in told.values())
        of = _alike(every, steps, period, sum(1 for losses, _ in told.values() if losses))
        yield f"{of} {STOOD_STILL}"


def _alike(losses: Iterable[float], steps: int, period: int, ranks: int = 1) -> str:
    """Return how the losses of steps are alike."""
    if period > 1:
        return f"the losses of {steps} steps are those of the first {period}, again and again:"
    values = sorted(set(losses))
    listed = ", ".join(f"{value:.9g}" for value in values[:MOST_TOLD])
    whose = "the loss is" if len(values) == 1 else f"of {ranks} ranks the loss is each its own,"
    return f"{whose} {listed} at each of {steps} steps:"


def _mostly_exact(losses: Collection[float]) -> bool:
    """Say whether most losses are neither rounded nor of half precision, nor zero."""
    exact = sum(1 for loss in losses if math.isfinite(loss) and is_exact(loss))
    return 2 * exact >= len(losses)


def _exact_norms(norms: Mapping[int, float], losses: Mapping[int, float], least: int) -> bool:
    """Say whether the gradient norms of losses that may be rounded are neither that nor a limit.

    Updates of weights in half precision that are too small for it change none, nor what it tells.
    """
    exact = [norm for norm in norms.values() if not is_round(norm)]
    return any(losses.values()) and len(exact) >= least and _mostly_exact(exact)


def _moves(norms: Mapping[int, float], losses: Mapping[int, float], period: int) -> bool:
    """Say whether a gradient norm differs where the loss came back."""
    steps = sorted(losses)
    lag = steps[period] - steps[0] if len(steps) > period else 1
    known: dict[int, float] = {}
    return any(known.setdefault(step % lag, norm) != norm for step, norm in norms.items())


def _period(values: Sequence[float | Span]) -> int:
    """Return after how many values they come back, all of them, to the last; at most all.

    By the prefix function of Knuth, Morris and Pratt (1977).
    """
    borders, border = [0] * len(values), 0
    for place in range(1, len(values)):
        while border and values[place] != values[border]:
            border = borders[border - 1]
        border += values[place] == values[border]
        borders[place] = border
    return len(values) - borders[-1] if values else 0


def _no_rate(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare that ranks took steps with the rate at which they say that they learnt.

    One that rises from 0 or ends there is 0 for a while, and what an unchanged program prints may
    be rounded to it. A rank that had a rate for long enough excuses all.
    """
    rates = [found for row in _of_our_protocol(ranks) if (found := row.samples("lr").values())]
    largest = _largest(chain(*rates))
    still = [sum(not _is_rate(rate, largest) for rate in row) for row in rates]
    steps = max(map(len, rates), default=0)
    if steps < ALIKE_STEPS or not all(map(_is_most, still, map(len, rates))):
        return
    if largest == 0.0:
        at = f"0 or not finite at each of {steps} steps"
    else:
        at = f"0, next to it or not finite at {_of_steps(min(still), steps)}"
    yield f"the learning rate is {at}: {CHANGED_NOTHING}"


def _largest(rates: Iterable[float]) -> float:
    return max((abs(rate) for rate in rates if math.isfinite(rate)), default=0.0)


def _is_rate(value: float, largest: float) -> bool:
    return math.isfinite(value) and abs(value) > RATE_ERROR_RATIO * largest


def _is_most(count: int, steps: int) -> bool:
    """Say whether so many of a training's steps speak for it: all of a few, most of many."""
    return count == steps or (steps >= ALIKE_STEPS and count > MOST_OF_THEM * steps)


def _of_steps(count: int, steps: int, whose: str = "") -> str:
    return f"{'each' if count == steps else count} of {whose}{steps} steps"


def find_doubtful_rates(ranks: Training, rules: Rules) -> Iterator[str]:
    """Yield that no rate was as large as weights need to move, where nobody knows the gradients.

    A schedule in another unit (steps for epochs, a warm-up of all tokens) has such rates for long.
    """
    rates = [found for row in _of_our_protocol(ranks) if (found := row.samples("lr").values())]
    steps, largest = max(map(len, rates), default=0), _largest(chain(*rates))
    if steps >= ALIKE_STEPS and 0.0 < largest < LEAST_RATE:
        yield (
            f"lr: it is {largest:.3g} at most at each of {steps} steps: whether any weight moved by"
            " it only the program knows"
        )


def _negative_rate(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare that ranks took steps with a rate that goes the other way.

    A schedule that goes on behind its end falls below 0, and no optimizer refuses that. Who asks it
    once it has gone on tells with each step the rate of the next one: that of the last step alone
    was taken by none, also where a resumed attempt has told no other.
    """
    rates = [row.samples("lr") for row in _of_our_protocol(ranks)]
    least = -RATE_ERROR_RATIO * _largest(chain.from_iterable(row.values() for row in rates))
    below = [{step for step, rate in row.items() if rate < least} for row in rates]
    resumed_to = rules.steps if rules.first_step > 1 else None
    taken = [
        found
        for found, row in zip(below, rates, strict=True)
        if found != {max(row, default=0)} or (len(row) == 1 and found != {resumed_to})
    ]
    if steps := max(map(len, taken), default=0):
        yield f"the learning rate is negative at {steps} steps: {RAISED}"


def _no_gradient(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare that ranks took steps with gradients of which none was more than 0.

    A step of equal rewards, or within a hinge, has none, and a loss of 0 with it: D12 halts on no
    such steps, for others may follow. Where none did nothing was learnt.
    """
    norms = [row.samples("grad_norm").values() for row in _of_our_protocol(ranks)]
    steps = max(map(len, norms), default=0)
    if steps >= ALIKE_STEPS and not any(chain(*norms)):
        yield f"the gradient norm is 0 at each of {steps} steps: {NO_GRADIENT}"


def _apart(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare what ranks that average their gradients tell of the step that they all take.

    A forward pass around the wrapper averages nothing, and a schedule that rank 0 alone goes
    through is another one: each rank then has a model of its own, and one of them is evaluated.
    """
    for name, backends, what, why in (
        ("grad_norm", {DDP}, "gradient norm", NOT_AVERAGED),
        ("lr", {DDP, FSDP}, "learning rate", TWO_COURSES),
    ):
        told = {rank: row for rank, row in sorted(ranks.items()) if row.backend in backends}
        if (apart := _first_apart(told, name)) is not None:
            backend = ranks[apart.rank].backend
            yield f"the {what} of ranks {apart.words()} ({backend}): {why}"


def _nothing_shared(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare that ranks say how they share their gradients with how much of them they sent.

    Under `no_sync` at every step no gradient comes to the hook that counts: each rank trains a
    model of its own, and the number that nothing was sent passes any bound.
    """
    if (rules.world_size or 0) < TOGETHER:
        return
    for rank, row in sorted(ranks.items()):
        sent = row.samples("comm_mb").values() if row.backend in (DDP, FSDP) else ()
        if sent and not any(sent):
            yield (
                f"rank {rank} says that it is one of several ({row.backend}), and of each of its"
                f" {len(sent)} steps that no gradient was given to the others (comm_mb is 0):"
                f" {NOT_SHARED}"
            )


def find_untold_sharing(ranks: Training, rules: Rules) -> Iterator[str]:
    """Yield that ranks may each have trained a model of their own, where nobody can say.

    One that averages gradients by means of its own may tell the norm of its own share: who tells no
    backend is no contradiction, and one that was never wrapped looks the same.
    """
    told = {
        rank: row
        for rank, row in sorted(ranks.items())
        if row.backend in (None, DDP) and row.identity() not in (None, Identity())
    }
    untold = next((rank for rank, row in told.items() if row.backend is None), None)
    if untold is not None and (apart := _first_apart(told, "grad_norm")) is not None:
        yield (
            f"backend: rank {untold} does not say by what gradients are averaged, and the gradient"
            f" norm of ranks {apart.words()}: whether they trained one model nobody knows"
            " (attach(model=…) sees it of a model that is wrapped)"
        )


@dataclass(frozen=True, slots=True)
class _Apart:
    """A rank that tells another number than the first one, at most of the steps of both."""

    first: int
    rank: int
    count: int
    steps: int

    def words(self) -> str:
        """Return who differs where, as a sentence goes on with it."""
        return f"{self.first} and {self.rank} differs at {_of_steps(self.count, self.steps)}"


def _first_apart(told: Training, name: str) -> _Apart | None:
    """Return the first rank that tells another number than the lowest does, if one does."""
    first, *others = told or [0]
    for rank in others:
        count, steps = _differing(told[first].samples(name), told[rank].samples(name))
        if steps >= ALIKE_STEPS and _is_most(count, steps):
            return _Apart(first, rank, count, steps)
    return None


def _differing(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[int, int]:
    """Return at how many steps two ranks tell another number, and at how many both tell one."""
    pairs = [(one[step], other[step]) for step in one.keys() & other.keys()]
    known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    return sum(abs(a - b) > APART_RATIO * max(abs(a), abs(b)) for a, b in known), len(known)


def _no_tokens(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare that ranks took steps with what they say that these carried; one rank excuses all."""
    tokens = [row.steps.tokens_told().values() for row in _of_our_protocol(ranks)]
    steps = max(map(len, tokens), default=0)
    if steps and not any(chain(*tokens)):
        yield (
            f"tokens is 0 at each of {steps} steps: they learnt from none (a step whose data has no"
            " tokens leaves `tokens` out)"
        )


def _of_our_protocol(ranks: Training) -> list[RankSteps]:
    """Return the ranks that say what they are: an unchanged program, which is read, does not."""
    return [row for row in ranks.values() if row.identity() not in (None, Identity())]


def _one_validation(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare that ranks took steps with what their evaluations found, on one set or on several.

    As in `_one_loss` what may be rounded does not count, nor does the share of a few examples, and
    one that moves on a rank excuses all.
    """
    told = [_found(row) for row in ranks.values() if row.evals]
    spans = {span for rows in told for span in rows.values()}
    if any(not math.isfinite(low) or not _is_exact(low, high) for low, high in spans):
        return
    most = 0, 0
    for rows in told:
        period = _period([span for _, span in sorted(rows.items())])
        often = len(rows) - period + 1 >= ALIKE_EVALUATIONS
        if often and max(rows) - sorted(rows)[period - 1] >= _alike_steps(rules):
            most = max(most, (len(rows), period))
        elif period > 1:
            return
    count, period = most
    if period > 1:
        of = f"the validation losses of {count} evaluations are those of the first {period}"
        yield f"{of}, again and again: {BETWEEN}"
    elif count:
        at = f"{min(low for low, _ in spans):.9g} at each of {count} evaluations"
        yield f"the validation loss is {at}: {OR_OF_ONE}"


def _nothing_evaluated(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare what evaluations found with the loss of the step before each.

    An update lies between them, and other data: who tells the same number has evaluated nothing.
    """
    for row in _of_our_protocol(ranks):
        losses = row.samples("loss")
        found = [(loss, losses[step]) for step, loss in row.evals.items() if step in losses]
        exact = sum(is_exact(loss) for loss, _ in found)
        if exact >= TAKEN_EVALUATIONS and all(loss == trained for loss, trained in found):
            yield (
                f"the validation loss of each of {len(found)} evaluations is the loss of the step"
                f" before it: {NOT_EVALUATED}"
            )
            return


def _nothing_to_evaluate(ranks: Training, rules: Rules) -> Iterator[str]:
    """Compare evaluations of a language model that found a loss of 0 with what its steps told.

    The mean over no batch, or over labels that are all left out, is 0 where the script keeps from
    dividing by 0, and passes any bound. Of a model without a vocabulary it may be a share, or a
    distance that all examples keep (`find_doubtful_losses`).
    """
    if rules.identity.vocab and (text := _zero_evaluations(ranks)) is not None:
        yield f"{text}: {NONE_TO_EVALUATE}"


def find_doubtful_losses(ranks: Training, rules: Rules) -> Iterator[str]:
    """Yield which losses may be those of no training, or of nothing, where nobody can say."""
    text = None if rules.identity.vocab else _zero_evaluations(ranks)
    if text is not None:
        yield f"val_loss: {text}: whether anything was evaluated nobody knows"
    yield from _few_equal_evaluations(ranks, rules)
    if rules.identity.vocab:
        yield from _negative_losses(ranks)
    losses = [row.samples("loss").values() for row in ranks.values()]
    steps = max(map(len, losses), default=0)
    norms = any(row.samples("grad_norm") for row in ranks.values())
    if steps >= ALIKE_STEPS and not norms and not any(chain(*losses)):
        yield (
            f"loss: it is 0 at each of {steps} steps, as of labels that are all left out, and no"
            " gradient norm is told: whether anything was learnt nobody knows"
        )
    elif (text := _unfallen(ranks)) is not None:
        yield text


def _unfallen(ranks: Training) -> str | None:
    """Return that no rank's loss fell, as of an optimizer that has the weights of another model.

    On batches that change it moves all the same, and no gradient norm shows it either. That of an
    agent, or of two networks against each other, need not fall.
    """
    longest = max((row.samples("loss") for row in ranks.values()), key=len, default={})
    losses = [loss for _, loss in sorted(longest.items()) if math.isfinite(loss)]
    if len(losses) < UNFALLEN_STEPS:
        return None
    part = len(losses) // UNFALLEN_SHARE
    scale = max(map(abs, losses)) or 1.0  # squares of a diverged loss are beyond any float
    first, last = ([loss / scale for loss in row] for row in (losses[:part], losses[-part:]))
    before, after = fmean(first), fmean(last)
    noise = math.sqrt((variance(first, before) + variance(last, after)) / part)
    if after < before - NOISE_X * noise:
        return None
    before, after = before * scale, after * scale
    return (
        f"loss: it is {before:.4g} in the first {part} of {len(losses)} steps and {after:.4g} in"
        f" the last {part}: whether anything was learnt only the program knows"
    )


def _negative_losses(ranks: Training) -> Iterator[str]:
    """Yield that a language model's loss is no cross entropy: a policy's may well be negative.

    `nll_loss` of probabilities, and not of their logarithms, lies between -1 and 0 from the first
    step on, and below any bound.
    """
    steps = [sum(loss < 0 for loss in row.samples("loss").values()) for row in ranks.values()]
    evaluations = [sum(low < 0 for low, _ in _found(row).values()) for row in ranks.values()]
    for name, counts, what in (
        ("loss", steps, "steps"),
        ("val_loss", evaluations, "evaluations"),
    ):
        if count := max(counts, default=0):
            yield (
                f"{name}: it is negative at {count} {what} of a language model, as a policy's may"
                " be and no cross entropy is: what it measures only the program knows"
            )


def _few_equal_evaluations(ranks: Training, rules: Rules) -> Iterator[str]:
    """Yield that the only two or three evaluations found one exact loss; more contradict."""
    told = [_found(row) for row in ranks.values() if row.evals]
    count = max(map(len, told), default=0)
    moved = any(len(set(rows.values())) > 1 for rows in told)
    if not TAKEN_EVALUATIONS <= count < ALIKE_EVALUATIONS or moved:
        return
    low, high = min(span for rows in told for span in rows.values())
    apart = max(max(rows) - min(rows) for rows in told)
    if _is_exact(low, high) and apart >= _alike_steps(rules):
        yield (
            f"val_loss: it is {low:.9g} at each of {count} evaluations: whether the steps between"
            " changed anything nobody knows"
        )


def _zero_evaluations(ranks: Training) -> str | None:
    """Return that all evaluations found exactly 0, and no step a loss that is small."""
    counts = [len(row.evals) for row in ranks.values()]
    losses = list(chain(*(row.samples("loss").values() for row in ranks.values())))
    spans = {span for row in ranks.values() for span in _found(row).values()}
    count, least = max(counts, default=0), min(losses, default=0.0)
    if count < TAKEN_EVALUATIONS or spans != {(0.0, 0.0)} or not least >= SMALL:
        return None
    return (
        f"the validation loss is 0 at each of {count} evaluations, and that of no step is below"
        f" {least:.3g}"
    )


def _found(row: RankSteps) -> dict[int, Span]:
    """Return step → lowest and highest validation loss: it may have evaluated on several sets."""
    apart = row.eval_spans()
    return {step: apart.get(step, (loss, loss)) for step, loss in row.evals.items()}


def _is_exact(low: float, high: float) -> bool:
    """Say whether one of the numbers is neither rounded nor of half precision, zero nor a share."""
    return any(is_exact(value) and not _is_share(value) for value in (low, high))


def _is_share(value: float) -> bool:
    """Say whether a number may be the share of a few examples that were wrong, or in percent."""
    for part in (value, value / PERCENT):
        for most, error in SHARES:
            share = Fraction(part).limit_denominator(most)
            if 0 < abs(share) <= 1 and abs(part - share) <= error:
                return True
    return False


def _alike_steps(rules: Rules) -> int:
    """Return how many steps may have one loss: as many as D9 has no suspicion of."""
    said = rules.watch.get("frozen.loss_steps")
    return max(ALIKE_STEPS, said.value if said and isinstance(said.value, int) else 0)


RULES = (
    _nothing_applied,
    _one_loss,
    _no_rate,
    _negative_rate,
    _no_gradient,
    _apart,
    _nothing_shared,
    _one_validation,
    _nothing_evaluated,
    _nothing_to_evaluate,
    _no_tokens,
)
"""Each yields why a training learnt nothing; a new one is one row."""
