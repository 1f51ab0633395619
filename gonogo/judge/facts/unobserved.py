"""What was not observed of a run? Listed with the verdict, and changing none of it."""

import math
from collections.abc import Iterator, Mapping

from gonogo.contract.canonical import digest, rounded
from gonogo.contract.criterion import Metric
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.facts import Measure
from gonogo.contract.order import Order
from gonogo.contract.rules import Rules
from gonogo.contract.workload import is_ours
from gonogo.judge.facts.learning import find_unclear_learning
from gonogo.judge.facts.measure import PARTIAL_SHARE
from gonogo.judge.facts.metrics import METRICS
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.facts.samples import may_be_sums

Kind = DoubtKind

EVALUATIONS = (Metric.VAL_LOSS, Metric.EVAL_S)
NEAR_UNTRAINED = 0.25
"""A language model that has learned anything has a first loss so far below ln(vocab)."""
_DEVICE_METRICS = frozenset({Metric.GPU_UTIL, Metric.GPU_UTIL_RATIO})


def find_unobserved(
    record: RunRecord, rules: Rules, measures: Mapping[str, Measure]
) -> Iterator[Doubt]:
    """Yield what was not observed, of our own lines and of the predecessor's."""
    yield from record.not_observed
    order = record.order
    if order is None and not record.predecessor:
        yield _missing("order.json")
        return
    if not record.predecessor and order is not None:
        for name, row in (
            ("watch.jsonl", record.watch),
            ("preflight.json", record.preflight),
            ("exit.json", record.exit),
        ):
            if row is None:
                yield _missing(name)
        yield from _nodes(record, order)
        yield from _other_steps(record, rules)
        yield from _early_evaluation(record, rules)
        yield from _loaded_weights(record, rules, order)
        yield from _identity(record, order)
        yield from find_unclear_learning(record.ranks)
    yield from _metrics(record, rules, measures)


def _missing(name: str) -> Doubt:
    return Doubt(kind=Kind.RECORD_MISSING, name=name)


def _nodes(record: RunRecord, order: Order) -> Iterator[Doubt]:
    """Yield the nodes whose processes nobody observed, or not all the time."""
    if record.watch is None or record.exit is None or record.exit.nodes is None:
        return
    seen = {order.node_of(rank) for rank in record.watch.looked}
    for node in range(order.nodes):
        silent_s = record.watch.silent_s.get(node, 0.0)
        if node not in seen:
            yield Doubt(kind=Kind.NODE_UNOBSERVED, name=str(node), found="all the")
        elif silent_s > 0.0:
            yield Doubt(kind=Kind.NODE_UNOBSERVED, name=str(node), found=round(silent_s))


def _other_steps(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Yield the steps that another run made, and those that a later process made again."""
    if not rules.known:
        return
    first, last = rules.first_step, rules.steps
    if first > 1:
        yield Doubt(kind=Kind.EARLIER_STEPS, step=first - 1)
    if last is None:
        return
    for rank, steps in sorted(record.ranks.items()):
        again = {
            *steps.given_up(first, last),
            *steps.made_again(first, last),
            *(reached for reached, _ in steps.gone_back(first, last)),
            *(last for _ in steps.unfinished(first, last)),
        }
        if again:
            yield Doubt(kind=Kind.STEPS_REPEATED, rank=rank, expected=last, found=[*sorted(again)])


def _early_evaluation(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Yield that a gate asks for evaluations whose last one is of an earlier step.

    Where the order does not say when evaluations are due, only the reported ones are required.
    """
    asked = [*rules.gate, *(row.criterion for row in rules.conditions)]
    if rules.steps is None or rules.eval_every_steps:
        return
    if any(row.metric in EVALUATIONS for row in asked):
        last = max((step for row in record.ranks.values() for step in row.evaluated), default=0)
        if 0 < last < rules.steps:
            yield Doubt(kind=Kind.EVALUATED_EARLY, step=last, expected=rules.steps)


def _loaded_weights(record: RunRecord, rules: Rules, order: Order) -> Iterator[Doubt]:
    """Yield that only the program knows which weights it loaded.

    A program of the user may pass over the checkpoint and continue counting: the loss of its first
    step is then that of an untrained model.
    """
    ours = is_ours(order.entry, order.command)
    if order.init_from is not None and (
        order.resume_from is None or (order.resume_from.step == 0 and not ours)
    ):
        yield Doubt(kind=Kind.WEIGHTS_UNKNOWN, name="init_from", expected=order.init_from)
    vocab, first = rules.identity.vocab, rules.first_step
    if not (rules.known and vocab and first > 1) or ours:
        return
    told = [row.samples("loss").get(first) for row in record.ranks.values()]
    losses = [loss for loss in told if loss is not None]
    if losses and min(losses) >= math.log(vocab) - NEAR_UNTRAINED:
        found = rounded(min(losses))
        yield Doubt(kind=Kind.WEIGHTS_UNKNOWN, name="resume_from", step=first, found=found)


def _identity(record: RunRecord, order: Order) -> Iterator[Doubt]:
    """Yield the ranks whose configuration, or code, is compared with nothing."""
    unverified = order.identity.config_digest is None and bool(order.train)
    ordered = digest(order.train) if unverified else None
    # an order without a plan is of one run: there is no other code to compare with
    untold = bool(order.plan) and order.identity.git_sha is None
    untold = untold and "git_sha" not in order.allow_drift
    for rank, steps in sorted(record.ranks.items()):
        said = steps.identity()
        if said is None:
            continue
        if unverified and said.config_digest not in (None, ordered):
            yield Doubt(kind=Kind.CONFIG_UNVERIFIED, rank=rank)
        if untold and said.git_sha is None:
            yield Doubt(kind=Kind.CODE_UNKNOWN, rank=rank)


def _metrics(record: RunRecord, rules: Rules, measures: Mapping[str, Measure]) -> Iterator[Doubt]:
    """Yield the metrics that nothing records: utilisation, and those of the gate."""
    ranks = sorted(record.ranks.items())
    told = {rank: len(METRICS[Metric.GPU_UTIL].samples(row, rules)) for rank, row in ranks}
    if not any(told.values()):
        yield _unrecorded(Metric.GPU_UTIL, "no device sample records it")
    else:
        owed = len(rules.owed_steps())
        for rank, count in told.items():
            if count < PARTIAL_SHARE * owed:
                found = f"{count} of {owed} steps have a sample"
                yield Doubt(kind=Kind.METRIC_MISSING, rank=rank, name="gpu_util", found=found)
    for row in rules.gate:
        seen = measures[row.id].ranks.values() if row.id in measures else ()
        if row.metric not in _DEVICE_METRICS and not any(rank.samples for rank in seen):
            speed = row.metric == Metric.TOKS_PER_S
            sums = speed and any(may_be_sums(steps, rules) for steps in record.ranks.values())
            yield _unrecorded(row.metric, _SUMS if sums else "nothing records it")


def _unrecorded(metric: str, why: str) -> Doubt:
    return Doubt(kind=Kind.METRIC_MISSING, name=str(metric), found=why)


_SUMS = (
    "the reported tokens rise with every step, as those of the whole run do;"
    " set identity.tokens_per_step in the plan"
)
