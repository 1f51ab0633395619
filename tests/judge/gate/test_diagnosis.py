"""Known failures are recognised by name, each from the facts alone (requirements C)."""

from __future__ import annotations

import pytest

from gonogo.contract.facts import Facts, History
from gonogo.judge.gate.diagnosis import DIAGNOSES, diagnose, diagnosis_named, logging_is_off
from gonogo.judge.gate.history import with_history
from gonogo.judge.gate.rules import build_rules
from tests.data.make_runs import Rank, order_of
from tests.judge.runs import facts_of, lines_of, record_of

OFF = {"NSA_TB_DISABLE": "1", "NSA_DISABLE_CSV_LOGS": "1", "NSA_DISABLE_AUX_STATS": "1"}


def facts_with(
    code: str | None = None,
    *,
    detector: str | None = None,
    section: str | None = None,
    step: int = 9,
    signs: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    dtype: str = "bf16",
    source: str = "gonogo",
    sections_s: dict[str, float] | None = None,
) -> Facts:
    halt = {"detector": detector, "severity": "halt", "section": section, "step": step}
    pace = {"steps": 0, "median_step_s": None, "p95_step_s": None}
    return Facts.model_validate(
        {
            "v": 2,
            "source": source,
            "outcome": None if code is None else {"code": code, "actor": "watchdog"},
            "exit": None,
            "rank_exits": {},
            "preflight": None,
            "findings": [] if detector is None else [halt],
            "ranks": {},
            "identity": {"0": {"dtype": dtype, "nsa_env": env or {}}},
            "pace": {
                "0": {
                    **pace,
                    "block_p50_s": None,
                    "block_p90_s": None,
                    "sections_s": sections_s or {},
                }
            },
            "signs": list(signs),
            "measures": {},
        }
    )


def slow_with(**sections_s: float) -> Facts:
    return facts_with("too_slow", detector="slow", sections_s=sections_s)


CASES = [
    ("wrong_config", facts_with("config_mismatch", detector="identity")),
    ("ddp_marked_ready_twice", facts_with("nonzero_exit", signs=("marked_ready_twice",))),
    ("out_of_memory", facts_with("oom")),
    ("out_of_memory", facts_with("nonzero_exit", signs=("out_of_memory",))),
    ("fp16_overflow", facts_with("non_finite", dtype="fp16")),
    ("non_finite_loss", facts_with("non_finite")),
    ("loader_stall", facts_with("stalled", detector="section_deadline", section="data")),
    ("loader_stall", facts_with("nonzero_exit", signs=("loader_error",))),
    ("data_sharding", facts_with("nonzero_exit", signs=("index_error",))),
    ("aux_stats_hang", facts_with("stalled", detector="section_deadline", step=1)),
    ("step_boundary_hang", facts_with("stalled", detector="section_deadline", step=1, env=OFF)),
    ("step_boundary_hang", facts_with("stalled", detector="stall", section="log")),
    (
        "sequential_prefill",
        facts_with(
            "stalled", detector="stall", section="forward", env={"NSA_PREFILL_BATCHED": "0"}
        ),
    ),
    ("hang_in_compute", facts_with("stalled", detector="stall", section="backward")),
    (
        "attention_bound",
        facts_with(
            "too_slow",
            detector="slow",
            sections_s={"data": 0.0005, "forward": 40.0, "backward": 70.0, "optimizer": 0.1},
        ),
    ),
    (
        None,
        facts_with("too_slow", detector="slow", sections_s={"data": 50.0, "forward": 40.0}),
    ),
    # nine tenths of a step in forward and backward, and less
    ("attention_bound", slow_with(data=10.0, forward=50.0, backward=40.0)),
    (None, slow_with(data=10.5, forward=50.0, backward=40.0)),
    (None, slow_with(data=10.0, forward=80.0)),
    (None, slow_with(data=10.0, backward=80.0)),
    (None, facts_with("stalled", detector="stall", source="predecessor")),
    (None, facts_with("stalled", detector="alive_lost", section="data")),
    ("restart_storm", with_history(facts_with("hardware"), History(restart_storm=True))),
    (None, with_history(facts_with("hardware"), History(restart_storm=False))),
    (None, facts_with("completed")),
    (None, facts_with()),
]


@pytest.mark.parametrize(("name", "facts"), CASES)
def test_a_known_failure_has_its_name(name: str | None, facts: Facts) -> None:
    assert diagnose(facts, build_rules(None)) == name


def test_every_row_is_reached_by_a_case_and_says_cause_and_remedy() -> None:
    assert {row.name for row in DIAGNOSES} == {name for name, _ in CASES if name}
    for row in DIAGNOSES:
        assert row.cause
        assert row.remedy
        assert row.requirement.startswith(("R", "D"))  # a requirement, or a detector
        assert diagnosis_named(row.name) is row


@pytest.mark.parametrize(
    ("env", "off"),
    [
        (OFF, True),
        ({}, False),
        ({**OFF, "NSA_TB_DISABLE": "0"}, False),
        ({"NSA_ACCUM": "1"}, False),
    ],
)
def test_logging_is_off_where_the_run_itself_says_so_of_all_three(
    env: dict[str, str], off: bool
) -> None:
    assert logging_is_off(facts_with("stalled", env=env)) is off


def test_a_patch_does_what_its_remedy_says() -> None:
    patches = {row.name: row.patch for row in DIAGNOSES if row.patch}
    assert patches == {
        "ddp_marked_ready_twice": {"env": {"NSA_DDP_DISABLE_GC": "1"}},
        "out_of_memory": {"train": {"model": {"gradient_checkpointing": True}}},
        "fp16_overflow": {"train": {"dtype": "bf16"}},
        "non_finite_loss": {"env": {"NSA_SDPA_NO_FLASH": "1"}},
        "aux_stats_hang": {"env": {"NSA_DISABLE_AUX_STATS": "1"}},
        "step_boundary_hang": {"env": OFF},
        "sequential_prefill": {"env": {"NSA_PREFILL_BATCHED": "1"}},
    }


SIGNS = [
    ("RuntimeError", "Expected to mark a variable ready only once. This error is caused by …",
     ["marked_ready_twice"]),
    ("RuntimeError", "Parameter at index 192 was marked as ready twice", ["marked_ready_twice"]),
    ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB", ["out_of_memory"]),
    ("IndexError", "index 4 is out of bounds for dimension 0 with size 4", ["index_error"]),
    ("OSError", "[Errno 28] No space left on device", ["no_space"]),
    ("ValueError", "something else", []),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "signs"), SIGNS)
def test_error_lines_leave_the_names_of_known_signs_and_no_text(
    kind: str, text: str, signs: list[str]
) -> None:
    order = order_of()
    rank = Rank(0, order)
    rank.say("error", 3, "backward", type=kind, text=f"/secret/path: {text}")
    facts = facts_of(record_of(order, lines=lines_of([rank])))
    assert facts.signs == signs
    assert "secret" not in str(facts)


def test_only_error_lines_are_read_for_signs() -> None:
    order = order_of()
    rank = Rank(0, order)
    rank.say("progress", 3, "log", text="CUDA out of memory")
    assert facts_of(record_of(order, lines=lines_of([rank]))).signs == []
