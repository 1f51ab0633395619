"""Does the fleet bench speak as runs do?"""

from __future__ import annotations

import base64

import pytest

from bench.fleet import ALIVE_S, EVERY_S, STEP_S, SimulatedRun
from gonogo.contract.goodput import Part
from gonogo.contract.heartbeat import parse_heartbeat
from gonogo.contract.records import Tick
from gonogo.goodput.account import RankAccount, add_line


def test_a_simulated_run_says_what_a_reader_understands_without_a_gap() -> None:
    run = SimulatedRun(id="run", ranks=2, began=1000.0)
    told, offset = RankAccount(), 0
    for message in range(1, 16):
        for part in run.lines(1000.0 + EVERY_S * message):
            if part["rank"] == 0:
                assert part["start"] == offset
                offset = part["end"]
                assert part["end"] - part["start"] == sum(len(row) + 1 for row in part["lines"])
                for row in part["lines"]:
                    add_line(told, parse_heartbeat(row.encode()))
        watched = run.watched()
        for row in base64.b64decode(watched["content_b64"]).splitlines():
            Tick.model_validate_json(row)
    assert told.step == 150 // STEP_S
    assert told.total_s == pytest.approx(150.0 - ALIVE_S)
    assert Part.UNKNOWN not in told.seconds
