"""How does a run's record become its facts? Measured, rounded, and compared with itself.

Facts say what was seen and never what it means: that is the gate's. The same record and rules give
the same facts, byte for byte, on any machine and in whatever order lines came.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from gonogo.contract.canonical import digest, rounded
from gonogo.contract.criterion import Criterion, Metric
from gonogo.contract.facts import (
    BootFacts,
    ExitFacts,
    Facts,
    FindingFacts,
    Measure,
    NodeChecks,
    OutcomeFacts,
    PreflightFacts,
    ProcessExit,
    SaidIdentity,
    WatchFacts,
)
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, OutcomeClass, OutcomeCode
from gonogo.contract.records import CheckOutcome, Preflight
from gonogo.contract.rules import Rules
from gonogo.contract.workload import is_ours
from gonogo.judge.facts.contradictions import find_contradictions
from gonogo.judge.facts.files import UNWATCHED
from gonogo.judge.facts.learning import (
    find_doubtful_losses,
    find_doubtful_rates,
    find_untold_sharing,
)
from gonogo.judge.facts.measure import PARTIAL_SHARE, build_measure
from gonogo.judge.facts.metrics import METRICS
from gonogo.judge.facts.rank_facts import build_pace, build_rank_facts
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.facts.samples import may_be_sums
from gonogo.judge.facts.signs import signs_at_end
from gonogo.judge.facts.steps import BootSteps, RankSteps
from gonogo.rundir import preflight_name
from gonogo.watch.registry import cause_of, shown_by_lines

EVALUATIONS = (Metric.VAL_LOSS, Metric.EVAL_S)

_BY_PERSON = (OutcomeCode.HALTED, OutcomeCode.SUPERSEDED)
"""Ends by a person's word after which the phase goes on; one that is cancelled has no verdict."""

MADE_TWICE = ("given up: ", "made again: ", "gone back: ")
"""How what was not observed of steps begins in whose place others were made."""
MOST_TOLD = 4
"""Beginnings of which a sentence tells."""


NEAR_UNTRAINED = 0.25
"""So far below ln(vocab) the first loss of a language model that has learnt anything lies."""


def build_facts(record: RunRecord, rules: Rules) -> Facts:
    """Return the facts of a run.

    Args:
        record: what the run left behind.
        rules: whose criteria are measured.

    Returns:
        facts of the rules' version; `judge(facts, rules)` needs nothing else.
    """
    ranks = record.ranks
    failures: list[str] = []
    measures = _measures(ranks, rules, failures)
    return Facts(
        source="predecessor" if record.predecessor else "gonogo",
        outcome=outcome_of(record, rules),
        exit=_exit_facts(record),
        rank_exits={
            str(rank): ProcessExit(code=row.code, signal=row.signal)
            for rank, row in sorted(record.rank_exits.items())
        },
        preflight=_preflight_facts(record),
        findings=[_finding_facts(finding) for finding in record.findings],
        ranks={
            str(rank): build_rank_facts(ranks[rank], record.lines.get(rank, {}), rules)
            for rank in sorted(ranks)
        },
        identity=_identities(ranks),
        pace={str(rank): build_pace(ranks[rank]) for rank in sorted(ranks)},
        signs=sorted(signs_at_end(record.exit).union(*(steps.signs for steps in ranks.values()))),
        measures=measures,
        boots={
            str(rank): [_boot_facts(boot) for boot in ranks[rank].boots] for rank in sorted(ranks)
        },
        watch=_watch_facts(record),
        files=dict(record.files),
        devices=record.devices,
        config_digest=None if record.order is None else digest(record.order.train),
        contradictions=find_contradictions(record, rules),
        unrecorded=list(record.unrecorded),
        unreadable=list(record.unreadable),
        not_observed=[*not_observed(record, rules, measures), *dict.fromkeys(failures)],
    )


def outcome_of(record: RunRecord, rules: Rules) -> OutcomeFacts | None:
    """Return why the run ended, or None when nothing says that it did.

    exit.json says it, unless that is an accident, an operator's halt or takeover, of a run that its
    own lines had shown to fail: it waited for a checkpoint, or for its keeper, when its host was
    taken. Without one, a halt finding or every rank's `done` stands for it.
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
        ranks={
            rank: ProcessExit(code=said.code, signal=said.signal)
            for rank, said in sorted(row.ranks.items())
        },
        agent=None if agent is None else ProcessExit(code=agent.code, signal=agent.signal),
    )


def _preflight_facts(record: RunRecord) -> PreflightFacts | None:
    if record.preflight is None:
        return _preflight_behind(record)
    checks = record.preflight.checks
    return PreflightFacts(
        passed=record.preflight.passed,
        failed=sorted(check.id for check in checks if check.outcome is CheckOutcome.FAIL),
        warned=sorted(check.id for check in checks if check.outcome is CheckOutcome.WARN),
        checks=len(checks),
        outcomes=_outcomes(record.preflight),
        unchecked=_unchecked_nodes(record),
        nodes=dict(_other_checks(record, record.preflight)),
    )


def _preflight_behind(record: RunRecord) -> PreflightFacts | None:
    """Return what the other nodes say where the first left no record; None where none did."""
    rows = record.preflights.values()
    if not rows:
        return None
    return PreflightFacts(
        passed=all(row.passed for row in rows),
        failed=[],
        warned=[],
        checks=0,
        unchecked=[0, *_unchecked_nodes(record)],
        nodes=dict(_other_checks(record, None)),
    )


def _other_checks(record: RunRecord, first: Preflight | None) -> Iterator[tuple[str, NodeChecks]]:
    """Yield the nodes behind the first whose preflight did not say what the first one's did."""
    usual = None if first is None else NodeChecks(passed=first.passed, outcomes=_outcomes(first))
    for node, row in sorted(record.preflights.items()):
        checks = NodeChecks(passed=row.passed, outcomes=_outcomes(row))
        if checks != usual:
            yield str(node), checks


def _outcomes(record: Preflight) -> dict[str, CheckOutcome]:
    """Return what each check said; of one that stands there twice, the worse."""
    found: dict[str, CheckOutcome] = {}
    for check in record.checks:
        found[check.id] = max(found.get(check.id, check.outcome), check.outcome, key=_BADNESS.index)
    return found


_BADNESS = (CheckOutcome.PASS, CheckOutcome.WARN, CheckOutcome.FAIL)


def _unchecked_nodes(record: RunRecord) -> list[int]:
    """Return the nodes behind the first of which no tick holds what their preflight said."""
    nodes = 1 if record.order is None else record.order.nodes
    seen = {} if record.watch is None else record.watch.files
    return [node for node in range(1, nodes) if preflight_name(node) not in seen]


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
    )


def _identities(ranks: Mapping[int, RankSteps]) -> dict[str, SaidIdentity]:
    said = ((rank, ranks[rank].identity()) for rank in sorted(ranks))
    return {
        str(rank): SaidIdentity.model_validate(identity.model_dump())
        for rank, identity in said
        if identity is not None
    }


def _boot_facts(boot: BootSteps) -> BootFacts:
    line, identity = boot.boot_line, boot.identity()
    return BootFacts(
        boot=boot.boot,
        lines=boot.count,
        run=None if line is None else line.run,
        attempt=None if line is None else line.attempt,
        said=line is not None,
        ended_steps=boot.ended_steps,
        pids=boot.pids,
        identity=None if identity is None else SaidIdentity.model_validate(identity.model_dump()),
    )


def _watch_facts(record: RunRecord) -> WatchFacts | None:
    watch = record.watch
    if watch is None:
        return None
    problems = list(watch.problems)
    for name, seal in sorted(watch.files.items()):
        if record.files.get(name) != seal and not name.endswith(".jsonl"):
            problems.append(f"{name} is not the one that the watcher saw")
    for name in sorted(record.files.keys() - watch.files.keys() - UNWATCHED):
        problems.append(f"{name} was not there while the run was watched")
    return WatchFacts(
        ticks=watch.ticks,
        digest=watch.digest,
        starts=list(watch.starts),
        chained=watch.chained,
        reaches=watch.reaches and watch.agrees,
        longest_gap_s=rounded(watch.longest_gap_s),
        sealed=record.watch_sealed,
        problems=problems,
    )


def _measures(
    ranks: Mapping[int, RankSteps], rules: Rules, failures: list[str]
) -> dict[str, Measure]:
    """Return what each criterion sees: those of a gate by id, those of conditions by theirs."""
    if not rules.known:
        return {}
    wanted: dict[str, Criterion] = {row.id: row for row in (*rules.gate, *rules.measured)}
    wanted |= {row.condition.id: row.criterion for row in rules.conditions}
    return {name: build_measure(row, ranks, rules, failures) for name, row in wanted.items()}


def not_observed(record: RunRecord, rules: Rules, measures: Mapping[str, Measure]) -> list[str]:
    """Return what nothing was seen of, one sentence each."""
    texts = list(record.not_observed)
    if record.predecessor:
        return list(dict.fromkeys([*texts, *_without_source(record, rules, measures)]))
    if record.order is None:
        return [*texts, "order: there is no order.json, so nobody knows what was ordered"]
    if record.watch is None:
        texts.append("watch: there is no watch.jsonl, so nobody watched")
    if record.preflight is None:
        texts.append("preflight: nothing is recorded")
    if record.exit is None:
        texts.append("end: there is no exit.json, so nobody knows how the run ended")
    texts += [*_unseen_nodes(record), *_made_before(rules)]
    texts += _begun_anew(record, rules)
    texts += _evaluated_early(record, rules)
    texts += [*_weights_loaded(record.order), *_begun_untrained(record, rules, record.order)]
    texts += _other_config(record, record.order)
    texts += find_untold_sharing(record.ranks, rules)
    texts += find_doubtful_losses(record.ranks, rules)
    texts += find_doubtful_rates(record.ranks, rules)
    texts += _code_untold(record, record.order, rules)
    return list(dict.fromkeys([*texts, *_without_source(record, rules, measures)]))


def _unseen_nodes(record: RunRecord) -> Iterator[str]:
    """Yield the nodes whose processes nobody looked at, or not all the time."""
    if record.order is None or record.watch is None or record.exit is None:
        return
    seen = {record.order.node_of(rank) for rank in record.watch.looked}
    for node in range(record.order.nodes) if record.exit.nodes is not None else ():
        if node not in seen:
            yield f"node {node}: its follower was never heard, so nobody looked at its processes"
        elif (silent_s := record.watch.silent_s.get(node, 0.0)) > 0.0:
            yield f"node {node}: silent for {silent_s:.0f} s; nobody looked at its processes then"


def _made_before(rules: Rules) -> Iterator[str]:
    """Yield the steps that the run did not make: whatever they were like, its gate has not seen."""
    if rules.known and rules.first_step > 1:
        yield (
            f"steps 1 to {rules.first_step - 1}: another run made them, before the checkpoint that"
            " this one went on from; the gate saw those after them"
        )


def _begun_anew(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Yield after which steps the run began anew or went back: the gate saw those made last."""
    if not rules.known or rules.steps is None:
        return
    first, last, ranks = rules.first_step, rules.steps, record.ranks.values()
    given_up = max((steps.given_up(first, last) for steps in ranks), key=len, default=[])
    if given_up:
        yield (
            f"given up: it began anew after step {_some(given_up)} of {last}; the gate saw the"
            " steps that were made in place of those"
        )
    unfinished = max((steps.unfinished(first, last) for steps in ranks), key=len, default=[])
    if unfinished:
        yield (
            f"unfinished: of the trainings in a row number {_some(unfinished)} never said after its"
            " last step that it was done, and may have failed there; the gate saw its steps"
        )
    again = max((steps.made_again(first, last) for steps in ranks), key=len, default=[])
    if again:
        yield (
            f"made again: at its last step it went back to step {_some(again)} of {last}; the gate"
            " saw the steps that were made last"
        )
    every = {rank: steps.gone_back(first, last) for rank, steps in sorted(record.ranks.items())}
    back = max(every.values(), key=len, default=[])
    if back:
        told = [f"from step {reached} to step {to}" for reached, to in back]
        yield f"gone back: {_some(told)} of {last}; the gate saw the steps that were made last"
    lastly = {rank: found[-1][1] for rank, found in every.items() if found}
    if len(set(lastly.values())) > 1:
        told = [f"rank {rank} to step {to}" for rank, to in lastly.items()]
        yield (
            f"gone back: {_some(told)} of {last}, each to one of its own; whether the ranks share"
            " their weights since, only the program knows"
        )


def _evaluated_early(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Yield after which step nobody evaluated, where a gate asks what evaluations found.

    Only what was told is owed where the order does not say after which steps they are due.
    """
    asked = [*rules.gate, *(row.criterion for row in rules.conditions)]
    if rules.steps is None or rules.eval_every_steps:
        return
    if any(row.metric in EVALUATIONS for row in asked):
        told = max((step for row in record.ranks.values() for step in row.evaluated), default=0)
        if 0 < told < rules.steps:
            yield (
                f"evaluations: the last one is of step {told} of {rules.steps}, and the order does"
                " not say after which steps they are due (train.eval.every_steps); the gate saw"
                " those that were told"
            )


def _some(told: Sequence[int | str]) -> str:
    more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
    return ", ".join(map(str, told[:MOST_TOLD])) + more


def _weights_loaded(order: Order) -> Iterator[str]:
    """Yield with whose weights a run was to begin, where nothing tells whether it did."""
    if order.init_from is None:
        return
    begun = f"init_from: whether it began with the weights of {order.init_from}"
    if order.resume_from is None:
        yield f"{begun}: nobody handed it any, and only the program knows what it loaded"
    elif order.resume_from.step == 0 and not is_ours(order.entry, order.command):
        yield f"{begun} ({order.resume_from.path}): only the program knows what it loaded"


def _begun_untrained(record: RunRecord, rules: Rules, order: Order) -> Iterator[str]:
    """Yield that the first loss after a checkpoint is that of a model which has learnt nothing.

    A program of somebody's own may have passed over what it found there (keys that did not fit, a
    folder that it took for empty), and go on counting. One that was cut off early may be as far.
    """
    vocab, first = rules.identity.vocab, rules.first_step
    if not (rules.known and vocab and first > 1) or is_ours(order.entry, order.command):
        return
    told = [row.samples("loss").get(first) for row in record.ranks.values()]
    losses = [loss for loss in told if loss is not None]
    if losses and min(losses) >= math.log(vocab) - NEAR_UNTRAINED:
        yield (
            f"resume_from: the loss of step {first} is {min(losses):.4g}, as that of a model which"
            f" has learnt nothing (ln(vocab) is {math.log(vocab):.4g}): whether it went on with"
            " the weights of the checkpoint only the program knows"
        )


def _other_config(record: RunRecord, order: Order) -> Iterator[str]:
    """Yield the ranks whose configuration is not the order's, where the order compares none.

    A plan's `train` may be a part of what a program of somebody's own is told, or none of it.
    """
    if order.identity.config_digest is not None or not order.train:
        return
    ordered = digest(order.train)
    said = ((rank, steps.identity()) for rank, steps in sorted(record.ranks.items()))
    others = [
        rank
        for rank, identity in said
        if identity is not None and identity.config_digest not in (None, ordered)
    ]
    if others:
        yield (
            f"config_digest: that of rank {_some(others)} is of another configuration than the"
            " order's train, and the order compares none"
        )


def _code_untold(record: RunRecord, order: Order, rules: Rules) -> Iterator[str]:
    """Yield the ranks that say what they are, and not by which code, where no order asks for it.

    An order without a plan is of one run, whose code there is nothing to compare with.
    """
    if not order.plan or "git_sha" in order.allow_drift:
        return
    if order.identity.git_sha is not None:
        return
    said = ((rank, steps.identity()) for rank, steps in sorted(record.ranks.items()))
    silent = [rank for rank, told in said if told is not None and told.git_sha is None]
    if silent:
        yield (
            f"git_sha: rank {_some(silent)} does not say which code it runs (workload.files names"
            " it), so whether it is that of the experiment's other runs nobody knows"
        )


def _without_source(
    record: RunRecord, rules: Rules, measures: Mapping[str, Measure]
) -> Iterator[str]:
    """Yield what nothing told: devices, statistics of gates and selection, metrics of the gate."""
    ordered = {} if record.predecessor else rules.identity.nsa_env or {}
    is_off = ordered.get("NSA_DISABLE_AUX_STATS") == "1"
    ranks = sorted(record.ranks.items())
    off = "the auxiliary statistics are switched off" if is_off else None
    told = {rank: len(METRICS[Metric.GPU_UTIL].samples(row, rules)) for rank, row in ranks}
    if not any(told.values()):
        there = record.devices is not None
        yield f"gpu_util: {'no tick tells it of a step' if there else _NO_DEVICES}"
    else:
        owed = len(rules.owed_steps())
        for rank, count in told.items():
            if count < PARTIAL_SHARE * owed:
                yield f"gpu_util: of rank {rank} ticks tell it of {count} of {owed} steps"
    if not any(steps.samples("gate_entropy") for steps in record.ranks.values()):
        yield f"gate statistics: {off or 'no line tells them'}"
    yield f"selection: {off or 'no line tells which blocks attention selects'}"
    for row in rules.gate:
        seen = measures[row.id].ranks.values() if row.id in measures else ()
        if row.metric not in _TOLD_ABOVE and not any(rank.samples for rank in seen):
            speed = row.metric == Metric.TOKS_PER_S
            sums = speed and any(may_be_sums(steps, rules) for steps in record.ranks.values())
            why = _SUMS if sums else "nothing tells it"
            yield f"{row.metric}: {why}"


_SUMS = (
    "the tokens that lines tell rise with every step, as those of the whole run so far do;"
    " the plan's identity.tokens_per_step says how many a step has"
)
_NO_DEVICES = "no device line tells it (there is no devices.jsonl)"

_TOLD_ABOVE = frozenset({Metric.GPU_UTIL, Metric.GPU_UTIL_RATIO, Metric.GATE_ENTROPY})
