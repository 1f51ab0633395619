"""Placeholders in braces in a plan are replaced in the run's order."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from gonogo.contract.errors import Rejected
from gonogo.contract.order import Order
from gonogo.contract.workload import Patch
from gonogo.placeholders import fill_words
from gonogo.planning.resolve import build_order, resolve_plan

PLAN: dict[str, Any] = {
    "v": 1,
    "name": "mine",
    "profile": "cpu",
    "workload": {"command": ["python", "train.py"], "world_size": 1},
    "train": {"lr": 1e-3, "seed": 7, "fast": True, "tag": "a b", "optim": {"beta-1": 0.9}},
    "waive": ["identity", "coverage"],
    "phases": [{"name": "smoke", "steps": 30}, {"name": "long", "steps": 300, "train": {"lr": 5}}],
}


def plan(*words: str, env: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    found = {**deepcopy(PLAN), **more}
    found["workload"] = {**found["workload"], "command": ["python", *words], "env": env or {}}
    return found


def ordered(data: dict[str, Any], phase: str = "smoke", **more: Any) -> Order:
    resolved = resolve_plan(data)
    return build_order(resolved, phase, experiment="exp", run="run", token=1, **more)


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("--steps={steps}", "--steps=30"),
        ("{seed}", "7"),
        ("{lr}", "0.001"),
        ("{tag}", "a b"),
        ("{fast}", "true"),
        ("{optim.beta-1}", "0.9"),
        ("{optim}", '{"beta-1": 0.9}'),
        ('{"lr": {lr}}', '{"lr": 0.001}'),
        ("{{lr}}", "{lr}"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("${lr} ${{lr}}", "${lr} ${{lr}}"),
        ("{a,b} {} {0} { lr } {lr:.3f}", "{a,b} {} {0} { lr } {lr:.3f}"),
        ("{run_dir}/out", "{run_dir}/out"),
    ],
)
def test_what_is_known_is_filled_in_the_order(word: str, filled: str) -> None:
    order = ordered(plan(word, env={"NSA_X": word}))
    assert order.command == ["python", filled]
    assert order.env == {"NSA_X": filled}
    assert order.filled_at_start == (["command", "env"] if "run_dir" in word else [])
    assert ("filled_at_start" in order.document()) is ("run_dir" in word)


def test_each_phase_and_each_patch_has_its_own_values() -> None:
    data = plan("{steps}", "{lr}")
    assert ordered(data, "long").command == ["python", "300", "5"]
    change = Patch(train={"lr": 3e-4})
    assert ordered(data, "long", change=change).command == ["python", "300", "0.0003"]


def test_the_words_of_an_entry_are_filled_too() -> None:
    data = {**deepcopy(PLAN), "workload": {"entry": "my.trainer", "args": ["--lr", "{lr}"]}}
    assert ordered(data).args == ["--lr", "0.001"]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            plan("{foo}"),
            "workload.command: unknown placeholder {foo}; expected one of fast, lr, optim,"
            " optim.beta-1, resume, run_dir, seed, steps, tag, or {{foo}} as text",
        ),
        (plan("{sede}"), "unknown placeholder {sede}; did you mean seed?, or {{sede}} as text"),
        (plan("x", env={"NSA_X": "{lrr}"}), "workload.env.NSA_X: unknown placeholder {lrr}"),
        (plan("{tag}", train={"tag": "a\0"}), "holds characters that no process can be given"),
        (
            plan("x", phases=[{**PLAN["phases"][0], "workload": {"command": "{tag} x"}}]),
            "phases.smoke.workload.command: found '{tag}'; the program itself takes no placeholder",
        ),
        (
            plan("x", remedies={"out_of_memory": {"env": {"NSA_X": "{no}"}}}, max_remedies=1),
            "remedies.out_of_memory.env.NSA_X: unknown placeholder {no}",
        ),
    ],
)
def test_what_nothing_can_fill_is_one_line(changed: dict[str, Any], line: str) -> None:
    with pytest.raises(Rejected) as refused:
        resolve_plan(changed)
    (found,) = refused.value.problems
    assert line in f"{found.path}: {found.message}"


@pytest.mark.parametrize(
    ("words", "fresh", "resumed"),
    [
        (["a", "--resume", "{resume}", "-v"], ["a", "-v"], ["a", "--resume", "/c", "-v"]),
        (["a", "--resume={resume}"], ["a"], ["a", "--resume=/c"]),
        (["a", "ckpt={resume}"], ["a"], ["a", "ckpt=/c"]),
        (["a", "--", "{resume}"], ["a", "--"], ["a", "--", "/c"]),
        (["a", "--from '{resume}'"], ["a", "--from ''"], ["a", "--from '/c'"]),
        (["a", "{{resume}} {run_dir}"], ["a", "{resume} /r"], ["a", "{resume} /r"]),
    ],
)
def test_without_a_checkpoint_its_option_is_left_out(
    words: list[str], fresh: list[str], resumed: list[str]
) -> None:
    assert fill_words(words, {"run_dir": "/r", "resume": ""}) == fresh
    assert fill_words(words, {"run_dir": "/r", "resume": "/c"}) == resumed
