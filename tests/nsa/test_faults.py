import os
import signal
import time

import pytest

from nsa.config import build_config
from nsa.errors import BadConfig
from nsa.faults import Fault, fault_of, parse_fault
from tests.nsa.runs import tiny


@pytest.mark.parametrize(
    ("spec", "rank", "expected"),
    [
        (None, 0, {}),
        ("hang", 1, {"kind": "hang", "step": 12, "section": "backward"}),
        ("hang:rank=0,step=3,section=data", 0, {"kind": "hang", "step": 3, "section": "data"}),
        ("freeze:rank=0,step=9", 0, {"kind": "freeze", "step": 9, "section": "data"}),
        ("slow:factor=5,from=20", 1, {"kind": "slow", "step": 20, "factor": 5.0}),
        ("slow:factor=2,phase=smoke", 0, {"kind": "slow", "step": 20, "factor": 2.0}),
        ("crash:rank=1,step=8", 1, {"kind": "crash", "step": 8, "section": "data"}),
        (
            "exit:code=3,rank=0,step=8", 0,
            {"kind": "exit", "step": 8, "section": "data", "code": 3},
        ),
        ("wrong-config", 1, {"kind": "wrong-config"}),
        ("desync:rank=1,step=12", 1, {"kind": "desync", "step": 12, "second_group": True}),
        ("desync:rank=1,step=12", 0, {"step": 12, "second_group": True}),
        ("diverge", 1, {"kind": "diverge", "step": 20}),
        ("frozen:from=3", 0, {"kind": "frozen", "step": 3}),
        ("straggle", 1, {"kind": "straggle", "step": 10, "factor": 2.0}),
        ("starve:share=0.5", 0, {"kind": "starve", "step": 10, "share": 0.5}),
        ("leak:mb_per_step=7", 0, {"kind": "leak", "step": 10, "mb_per_step": 7}),
        ("disk:step=4", 1, {"kind": "disk", "step": 4}),
        ("boast:factor=3", 1, {"kind": "boast", "step": 10, "factor": 3.0}),
        ("truncate", 0, {"kind": "truncate", "step": 12}),
    ],
)  # fmt: skip
def test_a_spec_says_what_this_rank_suffers(spec, rank, expected):
    assert parse_fault(spec, rank=rank, world_size=2) == Fault(**expected)
    assert parse_fault("crash:rank=1,step=8", rank=0, world_size=2).kind is None


@pytest.mark.parametrize(
    "spec",
    [
        "hangs", "hang:steps=3", "hang:step", "hang:step=x", "hang:rank=2", "hang:section=lunch",
        "slow:factor=0.5", "slow:factor=nan", "nan:factor=2", "",
        "desync:rank=all", "starve:share=1", "leak:mb_per_step=-1",
    ],
)  # fmt: skip
def test_a_spec_that_makes_no_sense_is_an_error(spec):
    with pytest.raises(BadConfig):
        parse_fault(spec, rank=0, world_size=2)


@pytest.mark.parametrize(
    ("spec", "quiet", "hit", "sent"),
    [
        (
            "freeze:rank=0,step=9,section=eval",
            [("eval", 8), ("data", 9), ("eval", 10)],
            ("eval", 9),
            signal.SIGSTOP,
        ),
        # A section that comes after its step is still hit.
        ("crash:rank=0,step=12,section=eval", [("eval", 10)], ("eval", 20), signal.SIGKILL),
        ("exit:code=7,rank=0,step=2", [("data", 1), ("forward", 2)], ("data", 2), 7),
    ],
)
def test_a_fault_strikes_in_its_step_and_section_only(monkeypatch, spec, quiet, hit, sent):
    struck = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: struck.append(number))
    monkeypatch.setattr(os, "_exit", struck.append)
    fault = parse_fault(spec, rank=0, world_size=1)
    for section, step in quiet:
        fault.strike(section, step)
    assert struck == []
    fault.strike(*hit)
    assert struck == [sent]


def test_a_slow_step_takes_factor_times_its_own_time(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    fault = parse_fault("slow:factor=5,from=3", rank=0, world_size=1)
    for step, natural_s in ((2, 1.0), (3, 0.5), (4, 2.0)):
        fault.drag(step, natural_s)
    assert slept == [2.0, 8.0]


@pytest.mark.parametrize(
    ("spec", "section", "step", "delay_s"),
    [
        ("straggle:rank=0,factor=3,from=5", "forward", 4, 0.0),
        ("straggle:rank=0,factor=3,from=5", "data", 5, 0.0),
        ("straggle:rank=0,factor=3,from=5", "forward", 5, 2.0),
        ("starve:share=0.75,from=5", "data", 5, 3.0),
        ("straggle", "forward", 50, 0.0),
    ],
)
def test_a_section_that_is_slowed_takes_its_measure_from_its_own_time(spec, section, step, delay_s):
    assert parse_fault(spec, rank=0, world_size=2).delay_s(section, step, 1.0) == delay_s


@pytest.mark.parametrize(("data", "kind"), [("local_text", "starve"), ("synthetic", None)])
def test_what_comes_from_no_loader_cannot_starve(data, kind):
    config = build_config(tiny(data=data))
    assert fault_of("starve", config, rank=0, world_size=1).kind == kind
    assert fault_of("hang:rank=0", config, rank=0, world_size=1).kind == "hang"


def test_one_rank_alone_cannot_desync():
    with pytest.raises(BadConfig, match="among several"):
        parse_fault("desync:rank=0", rank=0, world_size=1)


def test_nan_poisons_before_its_step_once():
    fault = parse_fault("nan:step=3", rank=1, world_size=2)
    assert [step for step in range(1, 6) if fault.poisons(step)] == [3]
