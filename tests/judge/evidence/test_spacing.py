"""Is the predecessor's speed that of its own lines, whatever it reports of itself? (R16, X19)"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.heartbeat import Heartbeat
from gonogo.judge.directory import judge_directory
from gonogo.judge.evidence.predecessor import read_predecessor
from gonogo.judge.evidence.spacing import MOST_STEPS, find_spacing, hardware_share
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_plan
from tests.data.make_runs import EPOCH, Line, predecessor_line, predecessor_lines, save_lines

SMOKE = build_order(resolve_plan(bundled_plan("m7c-125m")), "smoke", experiment="", run="", token=0)


def beats(*rows: tuple[float, int], boot: str = "pid-1", **fields: Any) -> list[Heartbeat]:
    return [
        Heartbeat(
            ts=ts, mono=ts, pid=1, rank=0, boot=boot, seq=number, step=step, msg="progress",
            **fields,
        )
        for number, (ts, step) in enumerate(rows)
    ]  # fmt: skip


def test_steps_between_two_lines_take_their_mean() -> None:
    found = find_spacing(beats((100.0, 10), (120.0, 20), (160.0, 30)))
    assert found is not None
    assert found.step_s == {step: 2.0 if step <= 20 else 4.0 for step in range(11, 31)}
    assert (found.median_s, found.reported_tok_s, found.implied_tokens) == (3.0, None, None)


def test_one_line_tells_no_speed() -> None:
    assert find_spacing(beats((100.0, 10), toks_per_s=38.0)) is None


def test_the_time_between_two_processes_is_no_step_s() -> None:
    first = beats((0.0, 10), (10.0, 20))
    again = beats((1000.0, 15), (1020.0, 25), boot="pid-2")
    found = find_spacing(first + again)
    assert found is not None
    assert set(found.step_s.values()) == {1.0, 2.0}
    assert found.step_s[20] == 2.0, "of a step that both took, the later process counts"


@pytest.mark.parametrize(
    "rows",
    [
        [(100.0, 10), (100.0, 20)],
        [(100.0, 10), (50.0, 20)],
        [(100.0, 20), (150.0, 20)],
        [(100.0, 1), (200.0, MOST_STEPS + 100)],
    ],
)
def test_distances_that_can_be_no_step_s_tell_nothing(rows: list[tuple[float, int]]) -> None:
    assert find_spacing(beats(*rows)) is None


def warnings_of(tok_s: float, step_s: float) -> list[str]:
    lines = predecessor_lines(steps=300, step_s=step_s, tok_s=tok_s, log_every=20)
    raw = {0: [_raw(line) for line in lines]}
    read = read_predecessor(raw, SMOKE, None, None)
    return [row.text for row in read.findings if row.detector == "implausible_speed"]


def _raw(line: Line) -> bytes:
    return json.dumps(line).encode()


@pytest.mark.parametrize(
    ("tok_s", "differs"), [(38.0, False), (41.0, False), (35.0, False), (43.0, True), (33.0, True)]
)
def test_a_report_more_than_a_tenth_off_is_said(tok_s: float, differs: bool) -> None:
    assert bool(warnings_of(tok_s, step_s=4096 / 38.0)) is differs


def test_more_than_the_hardware_can_multiply_is_said() -> None:
    fast = 4096 / 2_000_000
    (text,) = warnings_of(2_000_000.0, step_s=fast)
    assert "2.41 times what profile a100-pcie-gen4 can multiply" in text
    share = hardware_share(SMOKE, 38.0)
    assert share is not None
    assert math.isclose(share, 6 * (125_492_400 - 256 * 768) * 38 / (2 * 312e12))


def test_without_a_plan_the_implied_tokens_are_said_and_nothing_is_measured(tmp_path: Path) -> None:
    lines = predecessor_lines(steps=300, step_s=0.3, tok_s=847.0, log_every=20)
    save_lines(tmp_path / "run", lines)
    found = judge_directory(tmp_path / "run")
    (text,) = [text for text in found["not_observed"] if text.startswith("tokens:")]
    assert "0.3 s a step" in text
    assert "254 tokens a step" in text
    assert found["findings"] == []


def test_a_run_that_did_not_get_far_enough_to_fail_for_certain_is_inconclusive(
    tmp_path: Path,
) -> None:
    lines = predecessor_lines(steps=300, step_s=107.8, tok_s=38.0, log_every=20, until=100)
    save_lines(tmp_path / "run", lines)
    now = EPOCH + 11.3 + 100 * 107.8 + 60
    found = judge_directory(tmp_path / "run", "m7c-125m", "smoke", now=now)
    assert found["verdict"] == "INCONCLUSIVE"


def test_a_step_from_another_world_breaks_nothing(tmp_path: Path) -> None:
    lines = predecessor_lines(steps=300, step_s=107.8, tok_s=38.0, log_every=20)
    lines.append(predecessor_line(1e6, 10**15, "progress", toks_per_s=1e308))
    save_lines(tmp_path / "run", lines)
    found = judge_directory(tmp_path / "run", "m7c-125m", "smoke", now=EPOCH + 2e6)
    assert found["verdict"] == "NO_GO"


@pytest.mark.parametrize("seed", range(5))
def test_lines_twice_and_out_of_order_change_no_verdict(seed: int, tmp_path: Path) -> None:
    lines = predecessor_lines(steps=300, step_s=4096 / 38.0, tok_s=38.0, log_every=20)
    chance = random.Random(seed)
    mixed = list(lines)
    for _ in range(len(lines) // 5):
        mixed.insert(chance.randrange(len(mixed)), chance.choice(lines))
        place = chance.randrange(len(mixed) - 1)
        mixed[place], mixed[place + 1] = mixed[place + 1], mixed[place]
    save_lines(tmp_path / "run", mixed)
    found = judge_directory(tmp_path / "run", "m7c-125m", "smoke", now=EPOCH + 40_000)
    throughput = next(row for row in found["criteria"] if row["id"] == "throughput")
    assert (found["verdict"], throughput["outcome"]) == ("NO_GO", "fail")
