import os
import signal
import time
from typing import Any

import pytest

from nsa.config import build_config
from nsa.errors import BadConfig
from nsa.faults import Fault, fault_of, parse_fault


@pytest.mark.parametrize(
    ("spec", "rank", "expected"),
    [
        (None, 0, Fault()),
        ("hang", 1, Fault(kind="hang", step=12, section="backward")),
        ("hang:rank=0,step=3,section=data", 0, Fault(kind="hang", step=3, section="data")),
        ("freeze:rank=0,step=9", 0, Fault(kind="freeze", step=9, section="data")),
        ("slow:factor=5,from=20", 1, Fault(kind="slow", step=20, factor=5.0)),
        ("slow:factor=2,phase=smoke", 0, Fault(kind="slow", step=20, factor=2.0)),
        ("nan:step=15", 1, Fault(kind="nan", step=15)),
        ("crash:rank=1,step=8", 1, Fault(kind="crash", step=8, section="data")),
        ("exit:code=3,rank=0,step=8", 0, Fault(kind="exit", step=8, section="data", code=3)),
        ("wrong-config", 1, Fault(kind="wrong-config")),
        ("desync:rank=1,step=12", 1, Fault(kind="desync", step=12, second_group=True)),
        ("desync:rank=1,step=12", 0, Fault(step=12, second_group=True)),
        ("diverge", 1, Fault(kind="diverge", step=20)),
        ("frozen:from=3", 0, Fault(kind="frozen", step=3)),
        ("straggle", 1, Fault(kind="straggle", step=10, factor=2.0)),
        ("starve:share=0.5", 0, Fault(kind="starve", step=10, share=0.5)),
        ("leak:mb_per_step=7", 0, Fault(kind="leak", step=10, mb_per_step=7)),
        ("disk:step=4", 1, Fault(kind="disk", step=4)),
        ("boast:factor=3", 1, Fault(kind="boast", step=10, factor=3.0)),
        ("truncate", 0, Fault(kind="truncate", step=12)),
    ],
)
def test_a_spec_says_what_this_rank_suffers(spec: str, rank: int, expected: Fault) -> None:
    assert parse_fault(spec, rank=rank, world_size=2) == expected


def test_the_other_rank_suffers_nothing() -> None:
    assert parse_fault("crash:rank=1,step=8", rank=0, world_size=2).kind is None


@pytest.mark.parametrize(
    "spec",
    [
        "hangs",
        "hang:steps=3",
        "hang:step",
        "hang:step=x",
        "hang:rank=2",
        "hang:section=lunch",
        "slow:factor=0.5",
        "slow:factor=nan",
        "nan:factor=2",
        "",
        "nan:step=3,step=4",
        "nan:phase=a,phase=b",
        "desync:rank=all",
        "starve:share=1",
        "leak:mb_per_step=-1",
    ],
)
def test_a_spec_that_makes_no_sense_is_an_error(spec: str) -> None:
    with pytest.raises(BadConfig):
        parse_fault(spec, rank=0, world_size=2)


def test_a_fault_strikes_in_its_step_and_section_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    fault = parse_fault("freeze:rank=0,step=9,section=eval", rank=0, world_size=1)
    for step in range(1, 12):
        fault.strike("eval", step)
        fault.strike("data", step)
    assert sent == [signal.SIGSTOP]


def test_a_section_that_comes_late_is_still_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    fault = parse_fault("crash:rank=0,step=12,section=eval", rank=0, world_size=1)
    fault.strike("eval", 10)
    assert sent == []
    fault.strike("eval", 20)
    assert sent == [signal.SIGKILL]


def test_a_slow_step_takes_factor_times_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    fault = parse_fault("slow:factor=5,from=3", rank=0, world_size=1)
    for step, natural_s in ((2, 1.0), (3, 0.5), (4, 2.0)):
        fault.drag(step, natural_s)
    assert slept == [2.0, 8.0]


def test_exit_leaves_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    fault = parse_fault("exit:code=7,rank=0,step=2", rank=0, world_size=1)
    fault.strike("data", 1)
    fault.strike("forward", 2)
    assert left == []
    fault.strike("data", 2)
    assert left == [7]


def test_a_section_that_is_slowed_takes_its_measure_from_the_rank_s_own_time() -> None:
    straggle = parse_fault("straggle:rank=0,factor=3,from=5", rank=0, world_size=2)
    assert straggle.delay_s("forward", 4, 1.0) == 0.0
    assert straggle.delay_s("data", 5, 1.0) == 0.0
    assert straggle.delay_s("forward", 5, 1.0) == 2.0
    starve = parse_fault("starve:share=0.75,from=5", rank=0, world_size=2)
    assert starve.delay_s("data", 5, 1.0) == 3.0
    assert parse_fault("straggle", rank=0, world_size=2).delay_s("forward", 50, 1.0) == 0.0


@pytest.mark.parametrize(("data", "kind"), [("local_text", "starve"), ("synthetic", None)])
def test_what_comes_from_no_loader_cannot_starve(
    tiny: dict[str, Any], data: str, kind: str | None
) -> None:
    config = build_config({**tiny, "data": data})
    assert fault_of("starve", config, rank=0, world_size=1).kind == kind
    assert fault_of("hang:rank=0", config, rank=0, world_size=1).kind == "hang"


def test_one_rank_alone_cannot_desync() -> None:
    with pytest.raises(BadConfig, match="among several"):
        parse_fault("desync:rank=0", rank=0, world_size=1)


def test_nan_poisons_before_its_step_once() -> None:
    fault = parse_fault("nan:step=3", rank=1, world_size=2)
    assert [step for step in range(1, 6) if fault.poisons(step)] == [3]
