"""Facts are small, exact, and the digest is that of the canonical heartbeats."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.canonical import canonical_bytes, digest
from gonogo.contract.criterion import Metric
from gonogo.contract.decision import Decision
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.heartbeat import Heartbeat, StepSections, parse_heartbeat
from gonogo.contract.order import Order, RunReason
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.records import Check, CheckOutcome, ExitRecord, PartSeals, Preflight
from gonogo.contract.rules import Rules
from gonogo.contract.tick import FileSeal
from gonogo.judge.facts.facts import MADE_TWICE, build_facts, outcome_of
from gonogo.judge.facts.measure import MAX_BLOCKS, block_means
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.facts.steps import build_rank_steps
from gonogo.judge.gate.rules import build_rules
from gonogo.rundir import preflight_name
from tests.data.make_runs import HERE, STEPS, Rank, healthy_ranks, non_finite_ranks, order_of
from tests.judge.runs import (
    PREFLIGHT,
    SEAL,
    exit_record,
    facts_of,
    finding,
    lines_of,
    record_of,
    with_gate,
)


@pytest.mark.parametrize("ranks", [healthy_ranks, non_finite_ranks])
def test_the_digest_is_that_of_the_chain_of_canonical_heartbeats(ranks: object) -> None:
    lines = lines_of(ranks(order_of()))[0]  # type: ignore[operator]
    chain = bytes(32)
    for line in lines:
        said = canonical_bytes(parse_heartbeat(line).canonical())
        chain = hashlib.sha256(chain + hashlib.sha256(said).digest()[:16]).digest()
    found = facts_of(record_of(lines={0: lines})).ranks["0"]
    assert found.digest == digest([["boot0", len(lines), chain.hex()]])
    assert found.blocks == [chain.hex()[:16]]


RECORDED = sorted((HERE / "decisions").glob("*.json"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_recorded_facts_and_rules_are_read_and_written_without_a_change(file: Path) -> None:
    decision = Decision.model_validate_json(file.read_bytes())
    assert digest(Facts.model_validate(decision.facts).document()) == decision.facts_digest
    assert digest(Rules.model_validate(decision.rules).document()) == digest(decision.rules)


def test_a_diverged_loss_beyond_every_exact_integer_is_a_fact_like_any_other() -> None:
    ranks = healthy_ranks(order_of())
    for line in ranks[0].lines:
        if line["msg"] == "progress":
            line["loss"] = 1e30 * line["step"]
            line["grad_norm"] = float(2**60)
    facts = facts_of(record_of(order_of(), ranks)).document()
    assert digest(json.loads(json.dumps(facts))) == digest(facts)


@pytest.mark.parametrize(
    ("count", "blocks"), [(0, 0), (1, 1), (64, 64), (65, 33), (640, 64), (50_000, 64)]
)
def test_there_are_at_most_sixty_four_block_means(count: int, blocks: int) -> None:
    assert len(block_means([1.0] * count)) == blocks <= MAX_BLOCKS


def test_facts_stay_small_however_long_the_run_was() -> None:
    sizes = []
    for order in (order_of(), order_of(sets={"phases.smoke.steps": 600})):
        ranks = healthy_ranks(order)
        for line in (line for row in ranks for line in row.lines):
            for name in {"loss", "val_loss"} & line.keys():
                line[name] = 1.0 + abs(line[name])  # the generator's fall below 0 in so many steps
        sizes.append(len(canonical_bytes(facts_of(record_of(order, ranks)).document())))
    assert sizes[1] < 1.5 * sizes[0]


def test_facts_survive_their_own_file() -> None:
    facts = facts_of(record_of())
    text = json.dumps(facts.document(), allow_nan=False)
    assert Facts.model_validate_json(text) == facts
    rules = build_rules(order_of())
    assert Rules.model_validate_json(json.dumps(rules.document(), allow_nan=False)) == rules


def beat(seq: int, mono: float, msg: str, step: int, **fields: Any) -> Heartbeat:
    base = {"pid": 1, "rank": 0, "boot": "b", **fields}
    return Heartbeat(ts=mono, mono=mono, seq=seq, msg=msg, step=step, **base)


def facts_with(beats: list[Heartbeat], order: Order | None = None, **fields: Any) -> Facts:
    """The facts of one rank's lines."""
    order = order or order_of()
    record = RunRecord(order=order, ranks={0: build_rank_steps(beats)}, **fields)
    return build_facts(record, build_rules(order))


def ends(*monos: float) -> list[Heartbeat]:
    return [beat(step, mono, "step_end", step) for step, mono in enumerate(monos, start=1)]


@pytest.mark.parametrize(
    ("monos", "p50", "p90"),
    [
        ([], None, None),
        ([1.0], None, None),
        ([1.0, 4.0], 3.0, 3.0),  # a block of the one step between them
        ([float(mono) for mono in range(1, 10)], 1.0, 1.0),
        ([1.0, 2.0, 9.0], 4.0, 4.0),  # of the two
        # two blocks of eight steps, and a pause of 16 s in the second
        ([*range(1, 10), *range(26, 34)], 2.0, 2.8),
        # a tenth end after nine begins no second block
        ([*range(1, 10), 99.0], 1.0, 1.0),
    ],
)
def test_the_pace_is_that_of_blocks_of_eight_steps_with_their_pauses(
    monos: list[float], p50: float | None, p90: float | None
) -> None:
    pace = facts_with(ends(*monos)).pace["0"]
    assert (pace.block_p50_s, pace.block_p90_s) == (p50, p90)


@pytest.mark.parametrize(
    ("told", "medians"),
    [
        ([], {}),
        ([4.0], {"data": 4.0, "forward": 1.0, "backward": 0.0, "optimizer": 0.0, "wait": 0.0}),
        ([4.0, 6.0], {"data": 5.0, "forward": 1.0, "backward": 0.0, "optimizer": 0.0, "wait": 0.0}),
    ],
    ids=["told by no step", "told by one of three", "told by two of three"],
)
def test_sections_take_the_median_of_the_steps_that_told_them(
    told: list[float], medians: dict[str, float]
) -> None:
    steps = ends(1.0, 2.0, 3.0)
    for number, data_s in enumerate(told):
        sections = StepSections(data=data_s, forward=1.0)
        steps[number] = steps[number].model_copy(update={"step_sections": sections})
    assert facts_with(steps).pace["0"].sections_s == medians


def test_no_block_reaches_from_one_process_into_the_next() -> None:
    later = ends(*range(1, 10), *range(100, 108))[9:]
    again = [row.model_copy(update={"boot": "c"}) for row in later]
    assert facts_with([*ends(*range(1, 10)), *again]).pace["0"].block_p50_s == 1.0


def test_the_first_three_missing_lines_are_named_and_all_are_counted() -> None:
    missing = facts_with(ends(*range(1, STEPS + 1))).ranks["0"].missing
    assert missing is not None
    assert missing.count == 2 * STEPS
    assert missing.first == ["step_start 1", "progress 1", "step_start 2"]


@pytest.mark.parametrize(("dtype", "first"), [("fp16", ["loss 2"]), ("bf16", ["loss 2", "loss 4"])])
def test_only_fp16_may_tell_no_loss_of_a_step_that_it_skipped(dtype: str, first: list[str]) -> None:
    order = order_of()
    order = order.model_copy(
        update={"identity": order.identity.model_copy(update={"dtype": dtype})}
    )
    said: list[dict[str, Any]] = [{"loss": 1.0}, {}, {"loss": 1.0}, {"skipped": True}]
    beats = [beat(n, n, "progress", n, **fields) for n, fields in enumerate(said, start=1)]
    row = facts_with(beats, order).ranks["0"]
    assert row.without_loss is not None
    assert (row.without_loss.count, row.without_loss.first, row.with_loss) == (
        len(first),
        first,
        2,
    )


def test_a_preflight_is_counted_by_how_its_checks_ended() -> None:
    checks = [Check(id=row.value, outcome=row, text="") for row in CheckOutcome]
    found = facts_of(record_of(preflight=Preflight(passed=False, checks=checks))).preflight
    assert found is not None
    assert (found.failed, found.warned, found.checks) == (["fail"], ["warn"], 3)


TWO_NODES = order_of().model_copy(update={"nodes": 2})


@pytest.mark.parametrize(
    ("first", "sealed", "unchecked", "checks"),
    [
        (PREFLIGHT, True, [], len(PREFLIGHT.checks)),
        (PREFLIGHT, False, [1], len(PREFLIGHT.checks)),
        (None, True, [0], 0),
        (None, False, [0, 1], 0),
    ],
)
def test_a_node_of_which_no_tick_holds_a_preflight_is_unchecked(
    first: Preflight | None, sealed: bool, unchecked: list[int], checks: int
) -> None:
    whole = record_of(TWO_NODES, preflight=first)
    assert whole.watch is not None
    seals = {**whole.watch.files, **({preflight_name(1): SEAL} if sealed else {})}
    watch = replace(whole.watch, files=seals)
    found = facts_of(replace(whole, watch=watch, preflights={1: PREFLIGHT})).preflight
    assert found is not None
    assert (found.unchecked, found.checks, found.passed) == (unchecked, checks, True)


def test_without_an_order_or_a_second_node_none_is_unchecked() -> None:
    for record in (record_of(), replace(record_of(), order=None)):
        found = facts_of(record).preflight
        assert found is not None
        assert found.unchecked == []


NEVER_HEARD = "node 1: its follower was never heard, so nobody looked at its processes"
SILENT = "node 1: silent for {:.0f} s; nobody looked at its processes then"


@pytest.mark.parametrize(
    ("looked", "silent_s", "sealed", "told"),
    [
        ({0, 1}, {}, True, []),
        ({0, 1}, {0: 0.0, 1: 0.0}, True, []),
        ({0, 1}, {1: 0.5}, True, [SILENT.format(0.5)]),
        ({0, 1}, {1: 9.0}, True, [SILENT.format(9.0)]),
        ({0}, {}, True, [NEVER_HEARD]),
        ({0}, {1: 9.0}, True, [NEVER_HEARD]),
        ({0}, {1: 9.0}, False, []),
    ],
)
def test_a_node_whose_processes_nobody_looked_at_is_said(
    looked: set[int], silent_s: dict[int, float], sealed: bool, told: list[str]
) -> None:
    parts = {str(node): PartSeals(exit=SEAL, watch=SEAL) for node in range(2)}
    exits = exit_record().model_copy(update={"nodes": parts if sealed else None})
    whole = record_of(TWO_NODES, exit=exits)
    assert whole.watch is not None
    watch = replace(whole.watch, looked=frozenset(looked), silent_s=silent_s)
    texts = facts_of(replace(whole, watch=watch)).not_observed
    assert [text for text in texts if text.startswith("node ")] == told


OTHER = FileSeal(bytes=2, sha256="6" * 64)
HALT, WARN = finding(Detector.STALL), finding(Detector.SLOW, Severity.WARN)


@pytest.mark.parametrize(
    ("done", "findings", "outcome"),
    [
        ((1, 2), (), ("completed", "trainer")),
        ((1, None), (), None),
        ((1,), (), None),
        ((), (), None),
        ((1, 2), (WARN,), ("completed", "trainer")),
        ((1, 2), (WARN, HALT), ("stalled", "watchdog")),
    ],
    ids=["all done", "one not", "one silent", "all silent", "warned", "halted"],
)
def test_without_exit_json_a_halt_or_every_ranks_done_says_how_it_ended(
    done: tuple[int | None, ...], findings: tuple[Finding, ...], outcome: tuple[str, str] | None
) -> None:
    lines = {
        rank: [beat(1, 1.0, "alive" if step is None else "done", step or 1, rank=rank)]
        for rank, step in enumerate(done)
    }
    ranks = {rank: build_rank_steps(beats) for rank, beats in lines.items()}
    record = RunRecord(order=order_of(), ranks=ranks, findings=findings)
    found = outcome_of(record, build_rules(record.order))
    assert (None if found is None else (found.code, found.actor)) == outcome
    assert outcome_of(replace(record, findings=()), build_rules(None)) is None, "how many ranks?"


@pytest.mark.parametrize(
    ("detector", "act", "reason", "code"),
    [
        (Detector.NON_FINITE, Act.NOW, OutcomeCode.KEEPER_LOST, "non_finite"),
        (Detector.DIVERGENCE, Act.AT_CHECKPOINT, OutcomeCode.PREEMPTED, "diverged"),
        (Detector.NON_FINITE, Act.PAGE, OutcomeCode.KEEPER_LOST, "keeper_lost"),
        (Detector.STALL, Act.NOW, OutcomeCode.KEEPER_LOST, "keeper_lost"),
        (Detector.SLOW, Act.AT_CHECKPOINT, OutcomeCode.PREEMPTED, "preempted"),
        ("one of theirs", Act.NOW, OutcomeCode.PREEMPTED, "preempted"),
        (Detector.NON_FINITE, Act.NOW, OutcomeCode.NONZERO_EXIT, "nonzero_exit"),
        (Detector.NON_FINITE, Act.NOW, OutcomeCode.HALTED, "non_finite"),
        (Detector.STALL, Act.NOW, OutcomeCode.HALTED, "halted"),
        (Detector.NON_FINITE, Act.NOW, OutcomeCode.SUPERSEDED, "non_finite"),
        (Detector.STALL, Act.NOW, OutcomeCode.SUPERSEDED, "superseded"),
        (Detector.NON_FINITE, Act.NOW, OutcomeCode.CANCELLED, "cancelled"),
    ],
)
def test_an_accident_does_not_excuse_what_the_lines_had_shown_before(
    detector: str, act: Act, reason: OutcomeCode, code: str
) -> None:
    """A halt waits for a checkpoint or for its keeper, and meanwhile the host may be taken."""
    halts = [finding(name).model_copy(update={"act": act}) for name in (detector, "stall")]
    told = ExitRecord(run="run_1", attempt=1, ended_at=2.0, ended_by=Actor.INFRA, reason=reason)
    record = RunRecord(order=order_of(), ranks={}, findings=tuple(halts), exit=told)
    rules = build_rules(record.order)
    found = outcome_of(record, rules)
    assert found is not None
    assert found.code == code
    later = replace(record, findings=(finding("stall"), *halts))
    assert outcome_of(later, rules) == outcome_of(replace(record, findings=()), rules)


@pytest.mark.parametrize(
    ("detector", "act", "code"),
    [
        (Detector.MEMORY_LEAK, Act.AT_CHECKPOINT, "non_finite"),
        ("one of theirs", Act.PAGE, "non_finite"),
        (Detector.MEMORY_LEAK, Act.NOW, "preempted"),
    ],
)
def test_a_halt_that_waits_hides_none_that_is_found_meanwhile(
    detector: str, act: Act, code: str
) -> None:
    """That one would have ended the run, had its host not been taken away."""
    waits = finding(detector).model_copy(update={"act": act})
    shown = finding(Detector.NON_FINITE).model_copy(update={"act": Act.NOW})
    told = ExitRecord(
        run="run_1", attempt=1, ended_at=2.0, ended_by=Actor.INFRA, reason=OutcomeCode.PREEMPTED
    )
    record = RunRecord(order=order_of(), ranks={}, findings=(waits, shown), exit=told)
    found = outcome_of(record, build_rules(record.order))
    assert found is not None
    assert found.code == code


@pytest.mark.parametrize("code", ["disk_full"])
def test_a_halt_for_want_of_room_means_what_it_meant_when_the_facts_were_made(code: str) -> None:
    halt = finding(Detector.DISK).model_copy(update={"value": 10.0, "threshold": 64.0})
    record = RunRecord(order=order_of(), ranks={}, findings=(halt,))
    rules = build_rules(record.order)
    found = outcome_of(record, rules)
    assert found is not None
    assert found.code == code


@pytest.mark.parametrize(
    ("seen", "sealed"),
    [({"exit.json": SEAL}, True), ({"exit.json": OTHER}, False), ({}, None), (None, None)],
    ids=["the same", "another", "not seen", "no watch"],
)
def test_exit_json_is_sealed_by_the_watch_that_saw_it(
    seen: dict[str, FileSeal] | None, sealed: bool | None
) -> None:
    record = record_of()
    assert record.watch is not None
    watch = None if seen is None else replace(record.watch, files=seen)
    found = facts_of(replace(record, watch=watch)).exit
    assert found is not None
    assert found.sealed is sealed


def test_a_process_is_what_its_boot_line_says() -> None:
    boot = beat(1, 1.0, "boot", 0, run="run_1", attempt=2, dim=64)
    (found,) = facts_with([boot, beat(2, 2.0, "step_end", 1)]).boots["0"]
    assert (found.said, found.run, found.attempt, found.ended_steps) == (True, "run_1", 2, 1)
    assert found.identity is not None
    assert found.identity.dim == 64
    (found,) = facts_with([beat(1, 1.0, "alive", 1)]).boots["0"]
    assert (found.said, found.run, found.attempt, found.identity) == (False, None, None, None)


OTHER = FileSeal(bytes=2, sha256="6" * 64)


@pytest.mark.parametrize(
    ("seen", "there", "problems"),
    [
        ({}, {}, []),
        ({"order.json": OTHER}, {}, ["order.json is not the one that the watcher saw"]),
        ({"a.json": SEAL}, {}, ["a.json is not the one that the watcher saw"]),
        ({"a.json": SEAL}, {"a.json": SEAL}, []),
        ({"a.jsonl": SEAL}, {}, []),
        ({}, {"a.json": SEAL}, ["a.json was not there while the run was watched"]),
        ({}, {"env.json": SEAL}, []),
    ],
)
def test_small_files_are_those_that_the_watcher_saw(
    seen: dict[str, FileSeal], there: dict[str, FileSeal], problems: list[str]
) -> None:
    whole = record_of()
    assert whole.watch is not None
    watch = replace(whole.watch, files={**whole.watch.files, **seen})
    record = replace(whole, watch=watch, files={**whole.files, **there})
    found = facts_of(record).watch
    assert found is not None
    assert found.problems == problems


@pytest.mark.parametrize(
    ("reaches", "agrees", "holds"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_ticks_reach_every_line_when_their_digests_agree_too(
    reaches: bool, agrees: bool, holds: bool
) -> None:
    whole = record_of()
    assert whole.watch is not None
    record = replace(whole, watch=replace(whole.watch, reaches=reaches, agrees=agrees))
    found = facts_of(record).watch
    assert found is not None
    assert found.reaches is holds


def test_what_nothing_was_seen_of_is_said() -> None:
    whole = record_of()
    always = [
        "gpu_util: no device line tells it (there is no devices.jsonl)",
        "selection: the auxiliary statistics are switched off",
    ]
    gone = [
        "watch: there is no watch.jsonl, so nobody watched",
        "preflight: nothing is recorded",
        "end: there is no exit.json, so nobody knows how the run ended",
    ]

    def said(record: RunRecord) -> list[str]:
        found = facts_of(record).not_observed
        return [text for text in found if not text.startswith("gate statistics")]

    assert said(whole) == always
    assert said(replace(whole, watch=None)) == [gone[0], *always]
    assert said(replace(whole, preflight=None)) == [gone[1], *always]
    assert said(replace(whole, exit=None)) == [gone[2], *always]
    assert said(replace(whole, order=None, watch=None)) == [
        "order: there is no order.json, so nobody knows what was ordered"
    ]


@pytest.mark.parametrize(
    ("env", "fields", "devices", "sentences"),
    [
        (
            {},
            {},
            None,
            [
                "gpu_util: no device line tells it (there is no devices.jsonl)",
                "gate statistics: no line tells them",
                "selection: no line tells which blocks attention selects",
            ],
        ),
        (
            {"NSA_DISABLE_AUX_STATS": "1"},
            {},
            "digest",
            [
                "gpu_util: no tick tells it of a step",
                "gate statistics: the auxiliary statistics are switched off",
                "selection: the auxiliary statistics are switched off",
            ],
        ),
        (
            {"NSA_DISABLE_AUX_STATS": "0"},
            {"gate_entropy": 0.5},
            "digest",
            [
                "gpu_util: no tick tells it of a step",
                "selection: no line tells which blocks attention selects",
            ],
        ),
    ],
    ids=["nothing", "switched off", "told"],
)
def test_what_has_no_source_is_said_with_its_reason(
    env: dict[str, str], fields: dict[str, float], devices: str | None, sentences: list[str]
) -> None:
    order = order_of()
    said = order.identity.model_copy(update={"nsa_env": env})
    order = with_gate(order.model_copy(update={"identity": said}))
    beats = [beat(1, 1.0, "progress", 1, loss=1.0, **fields)]
    facts = facts_with(beats, order, devices=devices)
    assert facts.not_observed[-len(sentences) :] == sentences
    assert len(facts.not_observed) == len(sentences) + 3, "and no watch, preflight and end"


@pytest.mark.parametrize(("told", "said"), [(20, False), (19, False), (18, True), (0, True)])
def test_a_device_that_ticks_tell_of_too_few_steps_is_said(told: int, said: bool) -> None:
    order = order_of(sets={"phases.smoke.steps": 20})
    ranks = {rank: build_rank_steps([beat(1, 1.0, "alive", 1, rank=rank)]) for rank in (0, 1)}
    for rank, count in ((0, 20), (1, told)):
        ranks[rank].told_by_devices = {Metric.GPU_UTIL: dict.fromkeys(range(1, count + 1), 90.0)}
    rules = build_rules(order)
    texts = build_facts(RunRecord(order=order, ranks=ranks), rules).not_observed
    assert [text for text in texts if text.startswith("gpu_util: ")] == [
        f"gpu_util: of rank 1 ticks tell it of {told} of 20 steps"
    ] * said


@pytest.mark.parametrize(
    ("metric", "told", "every", "said"),
    [
        ("val_loss", (3, 15), None, 15),
        ("eval_s", (3,), None, 3),
        ("val_loss", (3, 20), None, None),
        ("val_loss", (), None, None),
        ("val_loss", (3, 15), 5, None),
        ("loss", (3, 15), None, None),
    ],
)
def test_evaluations_that_end_early_where_none_is_due_are_said(
    metric: str, told: tuple[int, ...], every: int | None, said: int | None
) -> None:
    row = {"id": "found", "metric": metric, "aggregate": "last", "pass_below": 9.0}
    order = with_gate(order_of(sets={"phases.smoke.steps": 20}), row)
    order = order.model_copy(update={"train": {**order.train, "eval": {"every_steps": every}}})
    found = [beat(1 + step, step, "eval", step, val_loss=1.0) for step in told]
    ranks = {rank: build_rank_steps([beat(1, 1.0, "alive", 1), *found]) for rank in (0, 1)}
    rules = build_rules(order)
    texts = build_facts(RunRecord(order=order, ranks=ranks), rules).not_observed
    assert [text for text in texts if text.startswith("evaluations: ")] == [
        f"evaluations: the last one is of step {said} of 20, and the order does not say after which"
        " steps they are due (train.eval.every_steps); the gate saw those that were told"
    ] * (said is not None)


def test_tokens_of_the_whole_run_so_far_hide_the_speed_and_no_other_metric() -> None:
    rows = [{"id": name, "metric": name, "pass_above": 0.0} for name in ("toks_per_s", "comm_mb")]
    order = with_gate(order_of(), *rows)
    unknown = order.identity.model_copy(update={"tokens_per_step": None})
    order = order.model_copy(update={"identity": unknown})
    beats = [row.model_copy(update={"tokens": 100 * row.step}) for row in ends(*range(1, 41))]
    texts = facts_with(beats, order).not_observed
    assert [text.partition(":")[0] for text in texts if "rise with every step" in text] == [
        "toks_per_s"
    ]
    assert "comm_mb: nothing tells it" in texts


def test_a_metric_of_the_gate_that_nothing_tells_is_said() -> None:
    rows = [{"id": name, "metric": name, "pass_above": 0.0} for name in ("loss", "host_rss_mb")]
    order = with_gate(order_of(), *rows, {"id": "u", "metric": "gpu_util", "pass_above": 0.0})
    facts = facts_with([beat(1, 1.0, "progress", 1, loss=1.0)], order)
    assert facts.not_observed[-1] == "host_rss_mb: nothing tells it"
    assert [text for text in facts.not_observed if text.startswith("loss")] == []
    assert [text for text in facts.not_observed if text.startswith("gpu_util: nothing")] == []


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ((), None),
        ((11,), "after step 11 of 12"),
        ((11, 3), "after step 11, 3 of 12"),
        ((1, 2, 3, 4), "after step 1, 2, 3, 4 of 12"),
        ((1, 2, 3, 4, 5), "after step 1, 2, 3, 4 and 1 more of 12"),
    ],
)
def test_a_run_that_began_anew_before_its_end_says_so(
    after: tuple[int, ...], told: str | None
) -> None:
    """Whoever gives a training up one step before its end shows no gate what it had come to."""
    order = order_of()
    rank = Rank(0, order)
    rank.boot()
    for number, last in enumerate((*after, order.steps)):
        for step in range(1, last + 1):
            rank.step(step)
        if number < len(after):
            rank.restart(0, boot=f"again{number}")
    rank.done()
    record = record_of(order, [rank, *healthy_ranks(order)[1:]])
    texts = [row for row in facts_of(record).not_observed if row.startswith("given up: ")]
    said = (
        f"given up: it began anew {told}; the gate saw the steps that were made in place of those"
    )
    assert texts == ([] if told is None else [said])


@pytest.mark.parametrize(
    ("last", "messages", "told"),
    [
        (0, ["error"], True),
        (0, [], True),
        (0, ["done"], False),
        (1, ["error"], False),
    ],
)
def test_a_training_of_a_row_that_never_said_that_it_was_done_is_told(
    last: int, messages: list[str], told: bool
) -> None:
    order = order_of()
    rank = Rank(0, order)
    rank.boot()
    for number in range(2):
        for step in range(1, order.steps + 1 - (0 if number else last)):
            rank.step(step)
        if not number:
            for msg in messages:
                rank.say(msg, order.steps, None)
            rank.restart(0, boot="again")
    rank.done()
    record = record_of(order, [rank, *healthy_ranks(order)[1:]])
    said = (
        "unfinished: of the trainings in a row number 1 never said after its last step that it was"
        " done, and may have failed there; the gate saw its steps"
    )
    assert (said in facts_of(record).not_observed) is told


def test_a_run_of_as_many_steps_as_it_likes_gave_none_up() -> None:
    order = order_of().model_copy(update={"steps": None})
    rank = Rank(0, order)
    rank.boot()
    rank.step(1)
    rank.restart(0)
    rank.step(1)
    texts = facts_of(record_of(order, [rank])).not_observed
    assert not [row for row in texts if row.startswith(MADE_TWICE)]


def test_a_run_that_made_its_end_again_says_so() -> None:
    order = order_of()
    ranks = healthy_ranks(order)
    ranks[0].restart(9)
    for step in range(10, order.steps + 1):
        ranks[0].step(step)
    ranks[0].done()
    texts = facts_of(record_of(order, ranks)).not_observed
    said = (
        "made again: at its last step it went back to step 9 of 12; the gate saw the steps that"
        " were made last"
    )
    assert [row for row in texts if row.startswith("made again: ")] == [said]


def test_a_run_that_went_back_before_its_end_says_so() -> None:
    """A launcher that starts its program again until an evaluation on the way is good."""
    order = order_of()
    ranks = healthy_ranks(order)
    lines = [line for line in ranks[0].lines if line["step"] <= 9 and line["msg"] != "done"]
    ranks[0].lines, ranks[0].seq = lines, lines[-1]["seq"]
    ranks[0].restart(5)
    for step in range(6, order.steps + 1):
        ranks[0].step(step)
    ranks[0].done()
    texts = facts_of(record_of(order, ranks)).not_observed
    said = "gone back: from step 9 to step 5 of 12; the gate saw the steps that were made last"
    assert [row for row in texts if row.startswith("gone back: ")] == [said]


@pytest.mark.parametrize(("to", "told"), [((5, 5), False), ((5, 4), True), ((5, None), False)])
def test_ranks_that_went_back_to_different_steps_say_so(
    to: tuple[int | None, ...], told: bool
) -> None:
    """Each loads the last checkpoint that it has itself; None goes on where it was."""
    order = order_of()
    ranks = healthy_ranks(order)
    for rank, step in zip(ranks, to, strict=True):
        if step is None:
            continue
        lines = [line for line in rank.lines if line["step"] <= 9 and line["msg"] != "done"]
        rank.lines, rank.seq = lines, lines[-1]["seq"]
        rank.restart(step)
        for number in range(step + 1, order.steps + 1):
            rank.step(number)
        rank.done()
    texts = facts_of(record_of(order, ranks)).not_observed
    said = (
        "gone back: rank 0 to step 5, rank 1 to step 4 of 12, each to one of its own; whether the"
        " ranks share their weights since, only the program knows"
    )
    assert [row for row in texts if "each to one of its own" in row] == ([said] if told else [])


@pytest.mark.parametrize("resumed", [None, 0, 1, 7])
def test_a_run_that_goes_on_says_which_steps_its_gate_has_not_seen(resumed: int | None) -> None:
    facts = facts_with([beat(1, 1.0, "progress", 9, loss=1.0)], order_of(resume_step=resumed))
    told = [text for text in facts.not_observed if text.startswith("steps 1 to ")]
    text = f"steps 1 to {resumed}: another run made them, before the checkpoint that this one went"
    assert told == ([f"{text} on from; the gate saw those after them"] if resumed else [])


@pytest.mark.parametrize(
    ("entry", "step", "told"),
    [
        ("train.py", 0, True),
        ("train.py", 7, False),
        ("nsa.train", 0, False),
    ],
    ids=["weights", "goes on", "ours"],
)
def test_of_weights_that_a_program_was_handed_only_it_knows_whether_it_took_them(
    entry: str, step: int, told: bool
) -> None:
    more = {"entry": entry, "init_from": "sanity"}
    order = order_of(resume_step=step).model_copy(update=more)
    rules = build_rules(order)
    lines = [beat(1, 1.0, "progress", 9, loss=1.0)]
    record = RunRecord(order=order, ranks={0: build_rank_steps(lines)})
    said = [row for row in build_facts(record, rules).not_observed if row.startswith("init_from: ")]
    assert bool(said) is told
    assert order.resume_from is not None
    assert all(order.resume_from.path in row for row in said)


@pytest.mark.parametrize(
    ("losses", "entry", "resume", "vocab", "told"),
    [
        ((5.55, 5.6), "train.py", 7, 256, True),
        ((5.3, 5.6), "train.py", 7, 256, True),
        ((5.29, 5.6), "train.py", 7, 256, False),  # one rank has learnt something
        ((5.55,), "train.py", 0, 256, False),
        ((5.55,), "train.py", 7, None, False),
        ((5.55,), "nsa.train", 7, 256, False),
        ((), "train.py", 7, 256, False),
    ],
)
def test_of_a_resumed_run_that_begins_as_an_untrained_model_is_told(
    losses: tuple[float, ...],
    entry: str,
    resume: int,
    vocab: int | None,
    told: bool,
) -> None:
    """One that passed over the checkpoint, and went on counting, was GO without a word."""
    order = order_of(resume_step=resume)
    identity = order.identity.model_copy(update={"vocab": vocab})
    order = order.model_copy(update={"entry": entry, "identity": identity})
    rules = build_rules(order)
    beats = ([beat(1, 1.0, "progress", resume + 1, loss=loss)] for loss in losses)
    ranks = {rank: build_rank_steps(lines) for rank, lines in enumerate(beats)}
    facts = build_facts(RunRecord(order=order, ranks=ranks), rules)
    assert any(row.startswith("resume_from: ") for row in facts.not_observed) is told


@pytest.mark.parametrize(
    ("digest_told", "compared", "train", "told"),
    [
        ("f" * 64, False, True, True),
        ("f" * 64, True, True, False),  # the gate says so
        ("f" * 64, False, False, False),
        (None, False, True, False),
        ("the order's", False, True, False),
    ],
    ids=["another", "compared", "nothing ordered", "untold", "the same"],
)
def test_of_another_configuration_than_the_order_s_that_nothing_compares_is_told(
    digest_told: str | None, compared: bool, train: bool, told: bool
) -> None:
    """A script that reads a file of its own, and says so, was GO without a word."""
    order = order_of()
    order = order.model_copy(update={"train": order.train if train else {}})
    own = digest(order.train)
    wanted = order.identity.model_copy(update={"config_digest": own if compared else None})
    order = order.model_copy(update={"identity": wanted})
    ranks = healthy_ranks(order)
    for line in (line for rank in ranks for line in rank.lines if line["msg"] == "boot"):
        line["config_digest"] = own if digest_told == "the order's" else digest_told
    rules = build_rules(order)
    said = build_facts(record_of(order, ranks), rules).not_observed
    text = (
        "config_digest: that of rank 0, 1 is of another configuration than the order's train, and"
        " the order compares none"
    )
    assert [row for row in said if row.startswith("config_digest")] == ([text] if told else [])


@pytest.mark.parametrize(
    ("code", "changes", "told"),
    [
        (None, {}, True),
        ("files-1", {}, False),
        (None, {"plan": ""}, False),  # one run alone
        (None, {"allow_drift": ["git_sha"]}, False),
    ],
    ids=["untold", "told", "no plan", "may drift"],
)
def test_of_code_that_no_rank_tells_it_is_told_that_nobody_knows_it(
    code: str | None, changes: dict[str, Any], told: bool
) -> None:
    """A script without workload.files that was edited between two phases was GO without a word."""
    order = order_of()
    wanted = order.identity.model_copy(update={"git_sha": None})
    order = order.model_copy(update={"identity": wanted, **changes})
    ranks = healthy_ranks(order)
    for line in (line for rank in ranks for line in rank.lines if line["msg"] == "boot"):
        line["git_sha"] = code
    rules = build_rules(order)
    said = build_facts(record_of(order, ranks), rules).not_observed
    text = (
        "git_sha: rank 0, 1 does not say which code it runs (workload.files names it), so whether"
        " it is that of the experiment's other runs nobody knows"
    )
    assert [row for row in said if row.startswith("git_sha")] == ([text] if told else [])


def test_a_finding_is_a_fact_without_its_times_and_texts() -> None:
    row = finding(Detector.STALL, rank=1, section="backward", step=8, value=1 / 3, threshold=5.0)
    (found,) = facts_of(record_of(findings=[row])).document()["findings"]
    assert found == {
        "detector": "stall", "severity": "halt", "rank": 1, "section": "backward", "step": 8,
        "value": 0.333333333, "threshold": 5.0, "source": "default",
        "act": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "steps", "gated", "agrees"),
    [
        ("first", 40, True, True),
        ("first", 20, False, False),
        ("confirm", 20, False, True),
        ("remedy", 20, False, True),
        ("confirm", 20, True, False),
        ("confirm", 60, False, False),
    ],
)
def test_only_a_rerun_without_a_gate_may_be_ordered_to_end_before_its_training_does(
    reason: str, steps: int, gated: bool, agrees: bool
) -> None:
    order = order_of()
    order = order.model_copy(
        update={
            "reason": RunReason(reason),
            "steps": steps,
            "train": {**order.train, "steps": 40},
            "gate": order.gate if gated else [],
        }
    )
    assert order_of().gate
    facts = facts_of(record_of(order))
    asked = [text for text in facts.contradictions if "its training configuration" in text]
    assert (asked == []) is agrees
