"""Turn a run's record into its facts: measured, rounded, and compared with itself.

Facts say what was seen and never what it means: that is the gate's part. The same record and rules
give the same facts, byte for byte, on any machine and in whatever order lines came.
"""

import hashlib
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from pydantic import JsonValue

from gonogo.contract.canonical import canonical_bytes, digest, rounded
from gonogo.contract.criterion import Metric
from gonogo.contract.facts import (
    BootFacts,
    ExitFacts,
    Facts,
    FindingFacts,
    Measure,
    Missing,
    NodeChecks,
    OutcomeFacts,
    PaceFacts,
    PreflightFacts,
    ProcessExit,
    RankFacts,
    SaidIdentity,
    WatchFacts,
)
from gonogo.contract.finding import Doubt, DoubtKind, Finding, Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.order import Order, Rules
from gonogo.contract.outcome import Actor, OutcomeClass, OutcomeCode
from gonogo.contract.records import Preflight, RankExit
from gonogo.contract.workload import is_ours
from gonogo.judge.facts.contradictions import find_contradictions, find_unclear_learning
from gonogo.judge.facts.metrics import METRICS, build_measure, may_be_sums, skipped
from gonogo.judge.facts.record import UNWATCHED, RunRecord
from gonogo.judge.failures import find_failure
from gonogo.log_errors import MOST_ERROR_CHARS
from gonogo.timeline.columns import NEVER, SECTIONS, STEP_MESSAGES
from gonogo.timeline.lines import LineRecord
from gonogo.timeline.rank_steps import BootSteps, RankSteps
from gonogo.watch.registry import cause_of, shown_by_lines

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
    """Yield the ranks that made steps again, or whose configuration or code nothing is known of."""
    identity = order.identity
    any_code = not order.has_plan or identity.git_sha is not None or "git_sha" in order.allow_drift
    any_config = not order.train or identity.config_digest is not None
    ordered = None if any_config else digest(order.train)
    for rank, steps in sorted(record.ranks.items()):
        for line in [boot.unobserved for boot in steps.boots]:
            if line is not None:
                found = f"{line.type}: {line.text}"[:MOST_ERROR_CHARS]
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


EXAMPLES = 3
"""How many missing lines are named per rank."""

_BY_PERSON = (OutcomeCode.HALTED, OutcomeCode.SUPERSEDED)
"""Ends by a person after which the phase continues; a cancelled one has no verdict."""


def build_facts(record: RunRecord, rules: Rules) -> Facts:
    """Return the facts of a run."""
    ranks = dict(sorted(record.ranks.items()))
    failures: list[Doubt] = []
    wanted = rules.criteria() if rules.known else {}
    measures = {name: build_measure(row, ranks, rules, failures) for name, row in wanted.items()}
    doubts = [
        *find_unobserved(record, rules, measures),
        *failures,
        *record.unreadable,
        *find_contradictions(record, rules),
        *record.unrecorded,
        *_watch_doubts(record),
    ]
    boots = {str(rank): [_boot_facts(boot) for boot in row.boots] for rank, row in ranks.items()}
    said = {rank: [row.identity for row in rows if row.identity] for rank, rows in boots.items()}
    outcome = outcome_of(record, rules)
    completed = outcome is not None and outcome.code is OutcomeCode.COMPLETED
    return Facts(
        source="predecessor" if record.predecessor else "gonogo",
        outcome=outcome,
        exit=_exit_facts(record),
        rank_exits={
            str(rank): _process_exit(row) for rank, row in sorted(record.rank_exits.items())
        },
        preflight=_preflight_facts(record),
        findings=[_finding_facts(finding) for finding in record.findings],
        ranks={
            str(rank): _rank_facts(row, record.lines.get(rank), rules)
            for rank, row in ranks.items()
        },
        identity={rank: rows[-1] for rank, rows in said.items() if rows},
        pace={str(rank): _pace(row) for rank, row in ranks.items()},
        failure=None if completed else _failure(record, rules),
        measures=measures,
        boots=boots,
        watch=_watch_facts(record),
        files=dict(record.files),
        devices=record.devices,
        config_digest=None if record.order is None else digest(record.order.train),
        doubts=list({row.model_dump_json(): row for row in doubts}.values()),
    )


def _failure(record: RunRecord, rules: Rules) -> str | None:
    """Return the known failure that a run shows, by name.

    The error of the rank that failed first decides, as exit.json holds it. Without one, the last
    errors that ranks reported count, but not those of ranks that waited for another one.
    """
    lines = [] if record.exit is None else record.exit.error
    match = find_failure(lines, rules.failures) if lines else None
    for _, steps in sorted(record.ranks.items()):
        last = steps.last_boot
        if match is None and last is not None and last.errors:
            told = [line for _, (_, rows) in sorted(last.errors.items()) for line in rows]
            found = find_failure(told, rules.failures)
            match = None if found is None or found.victim else found
    return None if match is None else match.name


def outcome_of(record: RunRecord, rules: Rules) -> OutcomeFacts | None:
    """Return why the run ended, or None when nothing says that it did.

    exit.json gives the reason. An accident, or an operator's halt or takeover, does not count if
    the run's own lines had shown before that it fails: then it only waited for a checkpoint or its
    keeper. Without exit.json, a halt finding or every rank's `done` gives the reason.
    """
    halt = next((row for row in record.findings if row.severity is Severity.HALT), None)
    if record.exit is not None:
        ended = OutcomeFacts(code=record.exit.reason, actor=record.exit.ended_by)
        excuses = ended.klass is OutcomeClass.INFRA or ended.code in _BY_PERSON
        failed = shown_by_lines(record.findings) if excuses else None
        if failed is None:
            return ended
        return OutcomeFacts(code=cause_of(failed), actor=Actor.WATCHDOG)
    if halt is not None:
        return OutcomeFacts(code=cause_of(halt), actor=Actor.WATCHDOG)
    done = [
        rank in record.ranks and record.ranks[rank].done_step is not None for rank in rules.ranks()
    ]
    if done and all(done):
        return OutcomeFacts(code=OutcomeCode.COMPLETED, actor=Actor.TRAINER)
    return None


def _exit_facts(record: RunRecord) -> ExitFacts | None:
    row = record.exit
    if row is None:
        return None
    seen = record.watch.files.get("exit.json") if record.watch is not None else None
    agent = None if row.requests else row.agent  # who is asked to end is ended by the keeper
    return ExitFacts(
        code=row.code,
        signal=row.signal,
        run=row.run,
        attempt=row.attempt,
        order_sha256=row.order_sha256,
        sealed=None if seen is None else seen == record.files.get("exit.json"),
        ranks={rank: _process_exit(said) for rank, said in sorted(row.ranks.items())},
        agent=None if agent is None else _process_exit(agent),
    )


def _process_exit(row: RankExit) -> ProcessExit:
    return ProcessExit(code=row.code, signal=row.signal)


def _preflight_facts(record: RunRecord) -> PreflightFacts | None:
    """Return what was checked on each node before the launch."""
    made = dict(record.preflights)
    if record.preflight is not None:
        made[0] = record.preflight
    if not made:
        return None
    nodes = 1 if record.order is None else record.order.nodes
    return PreflightFacts(
        nodes={str(node): _node_checks(row) for node, row in sorted(made.items())},
        unchecked=[node for node in range(nodes) if node not in made],
    )


def _node_checks(record: Preflight) -> NodeChecks:
    outcomes = {check.id: check.outcome for check in record.checks}
    return NodeChecks(passed=record.passed, outcomes=outcomes)


def _finding_facts(finding: Finding) -> FindingFacts:
    """Return a finding without its times, its texts and its paths."""
    return FindingFacts(
        detector=finding.detector,
        severity=finding.severity,
        rank=finding.rank,
        section=finding.section,
        step=finding.step,
        value=None if finding.value is None else rounded(finding.value),
        threshold=None if finding.threshold is None else rounded(finding.threshold),
        source=finding.source,
        act=finding.act,
        held=finding.held,
    )


def _boot_facts(boot: BootSteps) -> BootFacts:
    line, identity = boot.boot_line, boot.identity()
    return BootFacts(
        boot=boot.boot,
        lines=boot.count,
        run=None if line is None else line.run,
        attempt=None if line is None else line.attempt,
        said=line is not None,
        ended_steps=boot.ended_steps,
        identity=None if identity is None else SaidIdentity.model_validate(identity.model_dump()),
    )


def _watch_facts(record: RunRecord) -> WatchFacts | None:
    watch = record.watch
    if watch is None:
        return None
    return WatchFacts(
        ticks=watch.ticks,
        digest=watch.digest,
        starts=list(watch.starts),
        chained=watch.chained,
        reaches=watch.reaches and watch.agrees,
        sealed=record.watch_sealed,
    )


def _watch_doubts(record: RunRecord) -> Iterator[Doubt]:
    """Yield what is wrong with the record of the watch, and the files that it did not see."""
    watch = record.watch
    if watch is None:
        return
    yield from watch.problems
    changed = {name for name, seal in watch.files.items() if record.files.get(name) != seal}
    added = record.files.keys() - watch.files.keys() - UNWATCHED
    for name in sorted(changed | added):
        yield Doubt(kind=DoubtKind.FILE_UNWATCHED, name=name)


def _rank_facts(steps: RankSteps, lines: LineRecord | None, rules: Rules) -> RankFacts:
    """Return what one rank's lines come to."""
    digests = [
        (boot, row.count, row.digest())
        for boot, row in sorted({} if lines is None else lines.boots.items())
    ]
    table, boot = steps.steps, steps.last_boot
    finite = {step for step, loss in table.samples("loss").items() if math.isfinite(loss)}
    tokens = {table.tokens[row] for _, row in table.steps_of(Msg.STEP_END)} - {NEVER}
    return RankFacts(
        count=steps.count,
        digest=hashlib.sha256(canonical_bytes(digests)).hexdigest(),
        boots=len(steps.boots),
        gaps=steps.gaps,
        last_step=steps.last_step,
        last_section=None if boot is None else boot.section,
        done_step=steps.done_step,
        tokens=sorted(tokens)[:EXAMPLES],
        missing=_missing(steps, rules) if rules.known else None,
        without_loss=_without_loss(steps, rules, finite) if rules.known else None,
        with_loss=len(finite) if rules.known else None,
    )


def _missing(steps: RankSteps, rules: Rules) -> Missing:
    """Return how many of the required lines are missing, and the first of them."""
    owed, table = rules.owed_steps(), steps.steps
    there = sum(1 for msg in STEP_MESSAGES for step, _ in table.steps_of(msg) if step in owed)
    count = len(STEP_MESSAGES) * len(owed) - there
    absent = (
        f"{msg.value} {step}" for step in owed for msg in STEP_MESSAGES if not table.said(msg, step)
    )
    return Missing(count=count, first=list(islice(absent, min(count, EXAMPLES))))


def _without_loss(steps: RankSteps, rules: Rules, finite: Collection[int]) -> Missing:
    """Return the required steps whose progress line has no finite loss; fp16 may skip a step."""
    owed = rules.owed_steps()
    excused = skipped(steps, rules)
    told = (step for step, _ in steps.steps.steps_of(Msg.PROGRESS) if step in owed)
    absent = [step for step in told if step not in excused and step not in finite]
    return Missing(count=len(absent), first=[f"loss {step}" for step in absent[:EXAMPLES]])


def _pace(steps: RankSteps) -> PaceFacts:
    """Return how many steps were timed, their median and that of each section, in seconds."""
    times = list(steps.steps.step_times().values())
    medians = zip(SECTIONS, map(_median, steps.steps.sections()), strict=True)
    return PaceFacts(
        steps=len(times),
        median_step_s=_median(times),
        sections_s={name: median for name, median in medians if median is not None},
    )


def _median(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return rounded(statistics.median(finite)) if finite else None
