"""Does a judge's process that crashes, hangs or talks nonsense cost more than a pause?"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import Corrupt
from gonogo.judge.gate.rules import build_rules
from service.conductor import judge
from service.conductor.judge import AGAIN_S, Judging
from service.judging import ended
from service.judging.ended import find_unjudged
from service.judging.judge_process import Assessors, Unjudged
from tests.service.conftest import Clock, Plane
from tests.service.test_judging import events

RULES = build_rules(None)


def child(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(7)", "ended with 7"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
        ("import sys; sys.stdin.readline(); print('nonsense', flush=True)", "ended with 0"),
        ("import time; time.sleep(60)", "ended with -9"),
        ("""import sys; sys.stdin.readline(); print('{"error": "no"}', flush=True)""", "no"),
    ],
    ids=["ends", "is killed", "nonsense", "hangs", "says so"],
)
def test_child_without_facts_is_named(tmp_path: Path, code: str, said: str) -> None:
    limit_s = 1.0 if "sleep" in code else 60.0
    assessors = Assessors(limit_s=limit_s, command=child(code))
    with pytest.raises(Unjudged, match=said):
        assessors.build_facts(tmp_path, RULES)
    assessors.close()


def test_closing_waits_for_no_child(tmp_path: Path) -> None:
    assessors = Assessors(command=child("import time; time.sleep(60)"))
    raised = threading.Event()

    def ask() -> None:
        with pytest.raises(Unjudged):
            assessors.build_facts(tmp_path, RULES)
        raised.set()

    asking = threading.Thread(target=ask)
    asking.start()
    while not assessors._busy:
        assert asking.is_alive()
    assessors.close()
    assert raised.wait(60)
    asking.join()
    with pytest.raises(Unjudged, match="closing"):
        assessors.build_facts(tmp_path, RULES)


def test_judgement_that_fails_is_told_and_made_after_a_pause(still: Plane, clock: Clock) -> None:
    experiment = still.submit()
    worker = still.worker()
    order = worker.claim()
    assert order is not None
    worker.run_through(order)
    broken = Judging(still.context, Assessors(command=child("raise SystemExit(7)")))
    for number, pause_s in enumerate((AGAIN_S[0], AGAIN_S[1]), start=1):
        with pytest.raises(Unjudged):
            broken.settle()
        broken.settle()  # too early: nothing is tried
        told = [row for row in events(still, experiment) if row["type"] == "run.unjudged"]
        assert len(told) == number
        assert "ended with 7" in told[-1]["data"]["text"]
        clock.at += pause_s + 0.1
    broken.close()
    assert still.context.store.read(find_unjudged) == [order.run]
    judging = Judging(still.context)
    judging.settle()
    judging.close()
    assert still.get(f"/runs/{order.run}")["verdict"] == "GO"
    assert not any((still.home / "judging").iterdir())


def test_a_run_that_cannot_be_judged_holds_the_next_one_up_for_a_while(
    still: Plane, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had failed would count, and nobody knows it; a phase that is never over is worse."""
    experiment = still.submit()
    worker = still.worker()
    lost = worker.claim()
    assert lost is not None
    worker.start(lost)
    said = {"reason": "its host is dead"}
    assert still.call("POST", f"/experiments/{experiment}/takeover", json=said)
    order = worker.claim()
    assert order is not None
    worker.run_through(order)
    real = ended.prepare

    def broken(session: Any, run_id: str, folder: Path) -> Any:
        if run_id == lost.run:
            raise Corrupt("a piece of a file is missing")
        return real(session, run_id, folder)

    monkeypatch.setattr(judge, "prepare", broken)
    judging = Judging(still.context)
    for pause_s in AGAIN_S:
        assert still.context.store.read(find_unjudged) == [lost.run]
        with pytest.raises(Corrupt):
            judging.settle()
        assert still.get(f"/runs/{order.run}")["verdict"] is None
        clock.at += pause_s + 0.1
    with pytest.raises(Corrupt):
        judging.settle()
    judging.close()
    assert still.get(f"/runs/{order.run}")["verdict"] == "CONDITIONAL_GO"
