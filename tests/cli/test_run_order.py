"""What `gonogo run` orders, as far as no program is needed to see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.cli.running import order_of, under_plan
from gonogo.contract.watch import Watch


@pytest.mark.parametrize(("stall_s", "batch_s"), [(10, 60), (600, 600), (9000, 3600)])
def test_how_long_a_step_may_take_holds_for_its_batch_too(stall_s: float, batch_s: float) -> None:
    order = order_of(["train"], [], 1, "mine", 10, stall_s, [], [])
    watch = Watch.model_validate(order.watch)
    assert watch.stall.halt_s == stall_s
    assert watch.section_deadline.data.halt_s == batch_s
    assert watch.section_deadline.eval == Watch().section_deadline.eval


def test_what_may_differ_by_a_plan_and_by_the_command_may_differ() -> None:
    order = order_of(["train"], [], 1, "mine", None, None, [], ["device"])
    assert order.allow_drift == ["device"]
    assert "device" in under_plan(order, "demo", "smoke", {}).allow_drift


def test_what_a_plan_is_warned_of_is_told_of_a_run_under_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody submits it."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "{v: 1, name: mine, profile: cpu, workload: {command: train, world_size: 2},"
        " remedies: {out_of_memory: {}},"
        " phases: [{name: a, steps: 9, gate: [{id: low, metric: loss, pass_below: 1}]}]}"
    )
    order = order_of(["train"], [], 1, "mine", None, None, [], [])
    assert under_plan(order, str(path), "a", {}).world_size == 2
    assert "gonogo: warning: remedies: max_remedies is 0" in capsys.readouterr().err
