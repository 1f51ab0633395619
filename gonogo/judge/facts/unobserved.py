"""What was not observed of a run. It is listed with the verdict, and changes none of it."""

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from gonogo.contract.canonical import digest
from gonogo.contract.criterion import Metric
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.facts import Measure
from gonogo.contract.order import Order
from gonogo.contract.rules import Rules
from gonogo.contract.workload import is_ours
from gonogo.judge.facts.learning import find_unclear_learning
from gonogo.judge.facts.metrics import METRICS, may_be_sums
from gonogo.judge.facts.record import RunRecord

Kind = DoubtKind

PREDECESSOR = {
    "identity": "the lines do not record which model, data or code ran",
    "coverage": "the lines have no boot and no seq, so a lost line leaves no trace",
    "single steps": "the steps between two lines share the time between them",
}
_SUMS = (
    "the reported tokens rise with every step, as those of the whole run do;"
    " set identity.tokens_per_step in the plan"
)


def find_unobserved(
    record: RunRecord, rules: Rules, measures: Mapping[str, Measure]
) -> Iterator[Doubt]:
    """Yield what was not observed."""
    order = record.order
    yield from record.not_observed
    for name, text in PREDECESSOR.items() if record.predecessor else ():
        yield Doubt(kind=Kind.PREDECESSOR, name=name, found=text)
    for name, row in (
        ("order.json", order),
        ("watch.jsonl", record.watch),
        ("preflight.json", record.preflight),
        ("exit.json", record.exit),
    ):
        if row is None:
            yield Doubt(kind=Kind.RECORD_MISSING, name=name)
    if order is not None:
        yield from _nodes(record, order)
        if rules.first_step > 1:
            yield Doubt(kind=Kind.EARLIER_STEPS, step=rules.first_step - 1)
        if not is_ours(order.entry, order.command) and (order.init_from or order.resume_from):
            yield Doubt(kind=Kind.WEIGHTS_UNKNOWN)
        yield from _ranks(record, order)
        yield from find_unclear_learning(record.ranks)
    yield from _metrics(record, rules, measures)


def _nodes(record: RunRecord, order: Order) -> Iterator[Doubt]:
    """Yield the nodes whose processes nobody observed, or not all the time."""
    if record.watch is None or record.exit is None or record.exit.nodes is None:
        return
    seen = {order.node_of(rank) for rank in record.watch.looked}
    for node in range(order.nodes):
        silent_s = record.watch.silent_s.get(node, 0.0)
        if node not in seen:
            yield Doubt(kind=Kind.NODE_UNOBSERVED, name=str(node), found="all")
        elif silent_s > 0.0:
            yield Doubt(kind=Kind.NODE_UNOBSERVED, name=str(node), found=round(silent_s))


def _ranks(record: RunRecord, order: Order) -> Iterator[Doubt]:
    """Yield the ranks that made steps again, or whose configuration or code nothing is known of.

    An order without a plan is of one run: there is no other code to compare with.
    """
    identity = order.identity
    any_code = not order.has_plan or identity.git_sha is not None or "git_sha" in order.allow_drift
    any_config = not order.train or identity.config_digest is not None
    ordered = None if any_config else digest(order.train)
    for rank, steps in sorted(record.ranks.items()):
        for line in [boot.unobserved for boot in steps.boots]:
            if line is not None:
                found = f"{line.type}: {line.text}"[:200]
                yield Doubt(kind=Kind.OBSERVER_FAILED, rank=rank, step=line.step, found=found)
        again: list[JsonValue] = [*sorted({reached for reached, _ in steps.returns()})]
        if again:
            yield Doubt(kind=Kind.STEPS_REPEATED, rank=rank, expected=order.steps, found=again)
        said = steps.identity()
        if said is None:
            continue
        if not any_config and said.config_digest not in (None, ordered):
            yield Doubt(kind=Kind.IDENTITY_UNVERIFIED, rank=rank, name="the configuration")
        if not any_code and said.git_sha is None:
            yield Doubt(kind=Kind.IDENTITY_UNVERIFIED, rank=rank, name="the code")


def _metrics(record: RunRecord, rules: Rules, measures: Mapping[str, Measure]) -> Iterator[Doubt]:
    """Yield the metrics that nothing records: utilisation, and those of the gate."""
    ranks = record.ranks.values()
    recorded = {
        row.metric: any(rank.samples for rank in measures[row.id].ranks.values())
        for row in rules.gate
        if row.id in measures
    }
    gpu_util = METRICS[Metric.GPU_UTIL].samples
    recorded[Metric.GPU_UTIL] = any(gpu_util(steps, rules) for steps in ranks)
    for metric in sorted(name for name, is_there in recorded.items() if not is_there):
        sums = metric == Metric.TOKS_PER_S and any(may_be_sums(steps, rules) for steps in ranks)
        found = _SUMS if sums else "nothing records it"
        yield Doubt(kind=Kind.METRIC_MISSING, name=str(metric), found=found)
