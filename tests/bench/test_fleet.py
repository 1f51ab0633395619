"""Does the fleet bench break what Llama 3 broke, and speak as runs do?"""

from __future__ import annotations

import base64
import json

import pytest

from bench.fleet_faults import ADDED, CAUSES, CUT_S, LEASE_S, RATE_PER_GPU_H, Kind, draw_faults
from bench.fleet_traffic import ALIVE_S, EVERY_S, STEP_S, SimulatedRun
from gonogo.contract.goodput import Part
from gonogo.contract.heartbeat import parse_heartbeat
from gonogo.contract.tick import Tick
from gonogo.goodput.rank_account import RankAccount, add_line
from service.conductor import leases


def test_the_table_of_causes_is_that_of_the_paper() -> None:
    assert sum(count for _, count, _ in CAUSES) == 419
    assert pytest.approx(1.0, rel=0.05) == RATE_PER_GPU_H * 16_384 * 3  # one in three hours
    assert CUT_S[0] < LEASE_S < CUT_S[1]
    assert leases.LEASE_S == LEASE_S


def test_faults_are_drawn_by_their_mix_one_a_run_and_their_rate_is_told() -> None:
    faults, acceleration = draw_faults(2000, 8, (20.0, 80.0), 1000, 0, seed=7)
    assert len({fault.run for fault in faults}) == len(faults) == 1000
    assert all(20.0 <= fault.at_s <= 80.0 for fault in faults)
    halted = sum(fault.kind is Kind.HALTED for fault in faults)
    share = sum(count for _, count, kind in CAUSES if kind is Kind.HALTED) / 419
    assert halted / 1000 == pytest.approx(share, abs=0.05)
    assert acceleration == pytest.approx(1000 / (2000 * 8 * RATE_PER_GPU_H / 60.0))
    assert draw_faults(2000, 8, (20.0, 80.0), 1000, 0, seed=7)[0] == faults
    more, same = draw_faults(2000, 8, (20.0, 80.0), 1000, 50, seed=7)
    added = [fault for fault in more if fault.cause == ADDED]
    assert (len(more), len(added), same) == (1050, 50, acceleration)
    assert len({fault.run for fault in more}) == len(more)


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
    json.dumps(run.watched())
