"""Known failures are recognised by name, each from the facts alone (requirements C)."""

from __future__ import annotations

import pytest

from gonogo.contract.facts import ExitFacts, Facts, History
from gonogo.contract.outcome import OutcomeCode
from gonogo.judge.failures import explain
from gonogo.judge.gate.added_criteria import with_history
from gonogo.judge.gate.diagnosis import ERROR, EVIDENCE, diagnose
from gonogo.judge.gate.rules import build_rules
from gonogo.log_errors import signs_in
from tests.data.make_runs import Rank, order_of
from tests.judge.runs import exit_record, facts_of, lines_of, record_of

OFF = {"NSA_TB_DISABLE": "1", "NSA_DISABLE_CSV_LOGS": "1", "NSA_DISABLE_AUX_STATS": "1"}


def facts_with(
    code: str | None = None,
    *,
    detector: str | None = None,
    section: str | None = None,
    step: int = 9,
    failure: str | None = None,
    env: dict[str, str] | None = None,
    dtype: str = "bf16",
    groups: int | None = 2,
    source: str = "gonogo",
    sections_s: dict[str, float] | None = None,
    stood_in: str | None = None,
    warned: str | None = None,
    held: str | None = None,
) -> Facts:
    halt = {"detector": detector, "severity": "halt", "rank": 1, "section": section, "step": step}
    halt["held"] = held
    warn = {"detector": warned, "severity": "warn", "rank": 1, "section": None, "step": step}
    there = {"count": 9, "digest": "", "boots": 1, "gaps": 0, "last_step": step - 1}
    last = {"last_section": stood_in, "done_step": None, "tokens": []}
    untold = {"missing": None, "without_loss": None, "with_loss": None, "blocks": []}
    pace = {"steps": 0, "median_step_s": None, "sections_s": sections_s or {}}
    return Facts.model_validate(
        {
            "v": 2,
            "source": source,
            "outcome": None if code is None else {"code": code, "actor": "watchdog"},
            "exit": None,
            "rank_exits": {},
            "preflight": None,
            "findings": [halt] * (detector is not None) + [warn] * (warned is not None),
            "ranks": {"1": {**there, **last, **untold}},
            "identity": {"0": {"dtype": dtype, "nsa_env": env or {}, "groups": groups}},
            "pace": {"0": pace},
            "failure": failure,
            "measures": {},
        }
    )


def killed(number: int) -> Facts:
    """A run whose first failed rank a signal has ended."""
    ended = ExitFacts.model_validate({"code": None, "signal": number})
    return facts_with("nonzero_exit").model_copy(update={"exit": ended})


def mute(lines: int) -> Facts:
    """A run that ended because rank 1 did not begin in time, after so many lines."""
    facts = facts_with("start_failed", detector="no_first_heartbeat")
    ranks = {name: row.model_copy(update={"count": lines}) for name, row in facts.ranks.items()}
    return facts.model_copy(update={"ranks": ranks})


def slow_with(**sections_s: float) -> Facts:
    return facts_with("too_slow", detector="slow", sections_s=sections_s)


CASES = [
    ("wrong_config", facts_with("config_mismatch", detector="identity")),
    ("ddp_marked_ready_twice", facts_with("nonzero_exit", failure="ddp_marked_ready_twice")),
    ("out_of_memory", facts_with("oom")),
    ("host_out_of_memory", facts_with("oom").model_copy(update={"exit": killed(9).exit})),
    ("out_of_memory", facts_with("nonzero_exit", failure="out_of_memory")),
    ("fp16_overflow", facts_with("non_finite", dtype="fp16")),
    ("non_finite_loss", facts_with("non_finite")),
    ("loader_stall", facts_with("stalled", detector="section_deadline", section="data")),
    ("data_sharding", facts_with("nonzero_exit", failure="index_out_of_range")),
    ("aux_stats_hang", facts_with("stalled", detector="section_deadline", step=1)),
    ("step_boundary_hang", facts_with("stalled", detector="section_deadline", step=1, env=OFF)),
    (None, facts_with("stalled", detector="section_deadline", step=1, groups=None)),
    ("step_boundary_hang", facts_with("stalled", detector="stall", section="log")),
    ("hang_in_compute", facts_with("stalled", detector="stall", section="backward")),
    (
        "attention_bound",
        facts_with(
            "too_slow",
            detector="slow",
            sections_s={"data": 0.0005, "forward": 40.0, "backward": 70.0, "optimizer": 0.1},
        ),
    ),
    (None, facts_with("too_slow", detector="slow", sections_s={"data": 50.0, "forward": 40.0})),
    ("disk_full", facts_with("resource_limit", detector="disk")),
    ("disk_full", facts_with("nonzero_exit", failure="disk_full")),
    ("collective_desync", facts_with("nonzero_exit", failure="collective_desync")),
    ("collective_timeout", facts_with("nonzero_exit", failure="collective_timeout")),
    ("lost_peer", facts_with("nonzero_exit", failure="lost_peer")),
    ("killed", killed(9)),
    (None, killed(11)),
    ("process_stopped", facts_with("stalled", detector="alive_lost", held="stopped")),
    ("process_stopped", facts_with("stalled", detector="stall", section="log", held="stopped")),
    ("never_spoke", mute(0)),
    (None, mute(3)),
    ("out_of_memory", facts_with("oom", failure="out_of_memory")),
    (
        "sequential_prefill",
        facts_with(
            "stalled", detector="section_deadline", section="eval", env={"NSA_PREFILL_BATCHED": "0"}
        ),
    ),
    ("slow_loader", facts_with("too_slow", detector="loader")),
    ("imbalance", facts_with("completed", warned="imbalance")),
    ("imbalance", facts_with("too_slow", detector="slow", warned="imbalance")),
    (
        "hang_in_compute",
        facts_with("stalled", detector="stall", section="backward", warned="imbalance"),
    ),
    (None, facts_with("stalled", detector="alive_lost", failure="lost_peer")),
    ("out_of_memory", facts_with("stalled", detector="alive_lost", failure="out_of_memory")),
    ("wrong_config", facts_with("config_mismatch", failure="usage_error")),
    ("missing_module", facts_with("nonzero_exit", failure="missing_module")),
    (None, facts_with("stalled", detector="stall")),
    ("attention_bound", slow_with(data=10.0, forward=50.0, backward=40.0)),
    (None, slow_with(data=10.5, forward=50.0, backward=40.0)),
    (None, slow_with(data=10.0, backward=80.0)),
    (None, slow_with(data=0.3, forward=0.1)),
    (None, facts_with("stalled", detector="stall", source="predecessor")),
    (None, facts_with("stalled", detector="alive_lost", section="data")),
    ("restart_storm", with_history(facts_with("hardware"), History(restart_storm=True))),
    (None, with_history(facts_with("hardware"), History(restart_storm=False))),
    (None, facts_with("completed")),
    (None, facts_with()),
]


@pytest.mark.parametrize(("code", "name"), [(137, "killed"), (138, None), (1, None)])
def test_a_shell_tells_by_137_that_its_program_was_killed(code: int, name: str | None) -> None:
    ended = ExitFacts.model_validate({"code": code, "signal": None})
    facts = facts_with("nonzero_exit").model_copy(update={"exit": ended})
    assert diagnose(facts, build_rules(None)) == name


@pytest.mark.parametrize(
    ("ranks", "name"), [(1, "index_out_of_range"), (2, "data_sharding"), (None, "data_sharding")]
)
def test_one_rank_alone_shards_nothing(ranks: int | None, name: str | None) -> None:
    rules = build_rules(None).model_copy(update={"world_size": ranks})
    assert diagnose(facts_with("nonzero_exit", failure="index_out_of_range"), rules) == name


@pytest.mark.parametrize(("name", "facts"), CASES)
def test_a_known_failure_has_its_name(name: str | None, facts: Facts) -> None:
    assert diagnose(facts, build_rules(None)) == name


def test_every_row_is_reached_by_a_case_and_says_cause_and_remedy() -> None:
    names = {name for name, _ in EVIDENCE if name != ERROR}
    assert names <= {name for name, _ in CASES if name}
    for name in names:
        known = explain(name)
        assert known is not None
        assert known.cause
        assert known.remedy


REPORTED = [
    ("RuntimeError", "Expected to mark a variable ready only once. This error is caused by …",
     "ddp_marked_ready_twice"),
    ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB", "out_of_memory"),
    ("IndexError", "index 4 is out of bounds for dimension 0 with size 4", "index_out_of_range"),
    ("OSError", "[Errno 28] No space left on device", "disk_full"),
    ("RuntimeError", "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]"
     " Connection closed by peer [127.0.0.1]:15596. This is typically caused by a remote worker"
     " crashing.", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "name"), REPORTED)
def test_error_lines_leave_the_name_of_a_known_failure_and_no_text(
    kind: str, text: str, name: str | None
) -> None:
    order = order_of()
    rank = Rank(0, order)
    rank.say("error", 3, "backward", type=kind, text=f"/secret/path: {text}")
    ended = exit_record(OutcomeCode.NONZERO_EXIT, code=1)
    facts = facts_of(record_of(order, lines=lines_of([rank]), exit=ended))
    assert facts.failure == name
    assert "secret" not in str(facts)


LOGS = [
    ("terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce"
     " fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 12 vs 4. Received"
     " data size doesn't match. Is there a distributed collective mismatch in your code?",
     set()),
    ("Traceback (most recent call last):\nMemoryError\n", {"out_of_memory"}),
    ("retrying after a MemoryError in the cache", set()),
    ("requests: Connection reset by peer, retrying", set()),
]  # fmt: skip


@pytest.mark.parametrize(("text", "names"), LOGS)
def test_the_end_of_a_log_shows_signs_as_programs_print_them(text: str, names: set[str]) -> None:
    assert signs_in(text) == names


def test_an_error_that_a_completed_run_survived_is_no_failure_of_its() -> None:
    order = order_of()
    rank = Rank(0, order)
    rank.say("error", 3, "backward", type="OutOfMemoryError", text="CUDA out of memory")
    facts = facts_of(record_of(order, lines=lines_of([rank])))
    assert facts.outcome is not None
    assert (facts.outcome.code, facts.failure) == (OutcomeCode.COMPLETED, None)


def test_what_the_keeper_found_in_the_log_of_the_first_rank_that_failed_counts() -> None:
    order = order_of()
    ended = exit_record(OutcomeCode.NONZERO_EXIT, code=1)
    said = ended.model_copy(update={"error": ["RuntimeError: ncclRemoteError: it left"]})
    facts = facts_of(record_of(order, exit=said))
    assert facts.failure == "lost_peer"
    assert diagnose(facts, build_rules(None)) == "lost_peer"


def test_the_first_rank_reports_the_dtype_of_the_run() -> None:
    facts = facts_with("non_finite")
    (row,) = facts.identity.values()
    identity = {"0": row, "1": row.model_copy(update={"dtype": "fp16"})}
    found = diagnose(facts.model_copy(update={"identity": identity}), build_rules(None))
    assert found == "non_finite_loss"
