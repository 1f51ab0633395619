"""Is the predecessor's speed that of its own lines, whatever it reports of itself? (R16, X19)"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.order import Order
from gonogo.contract.watch import Watch
from gonogo.judge.directory import judge_directory
from gonogo.judge.facts import spacing
from gonogo.judge.facts.predecessor import read_predecessor
from gonogo.judge.facts.spacing import (
    MOST_STEPS,
    Spacing,
    find_spacing,
    hardware_share,
    observe_speed,
    unseen_speed,
)
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


@pytest.mark.parametrize(("last", "told"), [(11, True), (12, False)])
def test_so_many_steps_are_told_apart(
    last: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spacing, "MOST_STEPS", 10)
    assert (find_spacing(beats((0.0, 1), (1e3, last))) is not None) is told


@pytest.mark.parametrize(("seconds", "told"), [(1e-6, True), (0.9e-6, False)])
def test_no_step_is_shorter_than_what_a_clock_shows(seconds: float, told: bool) -> None:
    assert (find_spacing(beats((0.0, 1), (seconds, 2))) is not None) is told


def ordered(tokens: int | None = 4096, differ: float = 0.25, **identity: Any) -> Order:
    """An order of two ranks on a profile whose devices can multiply 312 TFLOP/s each."""
    watch = Watch.model_validate({"implausible_speed": {"differ_ratio": differ}})
    order = SMOKE.model_copy(update={"watch": watch})
    said = {"vocab": None, "dim": None, "tokens_per_step": tokens, **identity}
    return order.model_copy(update={"identity": order.identity.model_copy(update=said)})


@pytest.mark.parametrize(
    ("identity", "params"),
    [
        ({"params": 1000}, 1000),
        ({"params": 1000, "vocab": 10}, 1000),
        ({"params": 1000, "dim": 10}, 1000),
        ({"params": 1000, "vocab": 10, "dim": 10}, 900),
        ({"params": 101, "vocab": 10, "dim": 10}, 1),
        ({"params": 100, "vocab": 10, "dim": 10}, None),
        ({"params": 99, "vocab": 10, "dim": 10}, None),
        ({"params": None}, None),
        ({"params": 0}, None),
    ],
)
def test_an_embedding_is_looked_up_and_not_multiplied(
    identity: dict[str, int | None], params: int | None
) -> None:
    share = None if params is None else pytest.approx(6 * params * 38 / (2 * 312e12))
    assert hardware_share(ordered(**identity), 38.0) == share


@pytest.mark.parametrize("profile", ["cpu", "unknown"])
def test_a_profile_without_a_peak_has_no_share(profile: str) -> None:
    order = ordered(params=1000).model_copy(update={"profile": profile})
    assert hardware_share(order, 38.0) is None


@pytest.mark.parametrize(
    ("told", "limit"),
    [(40.0, None), (40.1, 40.0), (24.0, None), (23.9, 24.0), (32.0, None), (None, None)],
)
def test_a_report_differs_beyond_the_plans_share(told: float | None, limit: float | None) -> None:
    found = observed(told, ordered(params=1000))
    assert [(row.value, row.threshold) for row in found] == (
        [] if limit is None else [(told, pytest.approx(limit))]
    )
    assert [(row.step, row.at) for row in found] == [(2, 128.0)] * len(found)
    assert observed(told, None) == observed(told, ordered(tokens=None)) == []


def observed(told: float | None, order: Order | None) -> list[Finding]:
    """What is found of steps of 128 s, which are 32 tokens/s."""
    stream = beats((0.0, 1), (128.0, 2), toks_per_s=told)
    found = find_spacing(stream)
    assert found is not None
    return observe_speed({0: stream}, {0: found}, order)


WHOLE = 2 * 312e12 / (6 * 32)
"""Parameters that take all of what two such devices multiply at 32 tokens/s."""


@pytest.mark.parametrize(("params", "beyond"), [(WHOLE, False), (1.5 * WHOLE, True)])
def test_all_that_the_hardware_can_multiply_is_possible_and_more_is_not(
    params: float, beyond: bool
) -> None:
    order = ordered(params=int(params))
    found = observed(None, order)
    assert [row.threshold for row in found] == [pytest.approx(32 / 1.5)] * beyond
    spacings = {0: Spacing(step_s={1: 128.0}, reported_tok_s=None)}
    (doubt,) = unseen_speed(spacings, order)
    assert doubt.name == "speed"
    assert ("1e+02 % of what" in str(doubt.found)) is not beyond


def test_a_small_share_is_told_in_percent() -> None:
    spacings = {0: Spacing(step_s={1: 128.0}, reported_tok_s=None)}
    (doubt,) = unseen_speed(spacings, ordered(params=int(WHOLE / 80)))
    assert "1.2 % of what" in str(doubt.found)


@pytest.mark.parametrize("order", [None, ordered(tokens=None)], ids=["no order", "no tokens"])
def test_without_ordered_tokens_there_is_no_speed(order: Order | None) -> None:
    for told, words in ((None, ""), (2.0, "reported 2 tokens/s would mean 256 tokens")):
        spacings = {0: Spacing(step_s={1: 128.0}, reported_tok_s=told)}
        (doubt,) = unseen_speed(spacings, order)
        assert (doubt.rank, doubt.name) == (0, "tokens")
        assert words in str(doubt.found)
        assert ("reported" in str(doubt.found)) is (told is not None)


def test_a_model_of_unknown_size_has_no_share() -> None:
    spacings = {0: Spacing(step_s={1: 128.0}, reported_tok_s=None)}
    (doubt,) = unseen_speed(spacings, ordered(params=None))
    assert "%" not in str(doubt.found)


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
    (text,) = [text for text in found["not_observed"] if "tokens:" in text]
    assert "0.3 s a step" in text
    assert "254 tokens a step" in text
    assert found["findings"] == []


def test_a_run_that_did_not_get_far_enough_to_fail_for_certain_is_inconclusive(
    tmp_path: Path,
) -> None:
    lines = predecessor_lines(steps=300, step_s=107.8, tok_s=38.0, log_every=20, until=100)
    save_lines(tmp_path / "run", lines)
    now = EPOCH + 11.3 + 100 * 107.8 + 60
    found = judge_directory(tmp_path / "run", bundled_plan("m7c-125m"), "smoke", now=now)
    assert found["verdict"] == "INCONCLUSIVE"


def test_a_step_from_another_world_breaks_nothing(tmp_path: Path) -> None:
    lines = predecessor_lines(steps=300, step_s=107.8, tok_s=38.0, log_every=20)
    lines.append(predecessor_line(1e6, 10**15, "progress", toks_per_s=1e308))
    save_lines(tmp_path / "run", lines)
    found = judge_directory(tmp_path / "run", bundled_plan("m7c-125m"), "smoke", now=EPOCH + 2e6)
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
    found = judge_directory(tmp_path / "run", bundled_plan("m7c-125m"), "smoke", now=EPOCH + 40_000)
    throughput = next(row for row in found["criteria"] if row["id"] == "throughput")
    assert (found["verdict"], throughput["outcome"]) == ("NO_GO", "fail")
