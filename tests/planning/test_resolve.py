"""An order says everything that must run; a submission that cannot be is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.canonical import digest
from gonogo.contract.errors import NotFound, Rejected
from gonogo.contract.order import Order, ResumePoint, RunReason
from gonogo.contract.patterns import guessed_patterns
from gonogo.planning.resolve import ResolvedPlan, build_order, resolve_plan
from gonogo.planning.source import bundled_plan
from tests.data.make_runs import CONFIG


def resolved(sets: dict[str, Any] | None = None, plan: str = "demo") -> ResolvedPlan:
    return resolve_plan(
        bundled_plan(plan), sets, load_config=lambda name: CONFIG, schema_of=lambda entry: None
    )


def order(phase: str = "smoke", sets: dict[str, Any] | None = None, plan: str = "demo") -> Order:
    return build_order(resolved(sets, plan), phase, experiment="exp_1", run="run_1", token=3)


def test_an_order_survives_its_own_file() -> None:
    for phase in ("sanity", "smoke", "production"):
        written = order(phase)
        read = Order.model_validate(written.document())
        assert read.document() == written.document()
        assert read.watch == written.watch
        assert read.gate == written.gate


def test_the_training_configuration_is_whole_and_its_digest_is_the_identity() -> None:
    found = order(sets={"train.seed": 7})
    assert found.train["seed"] == 7
    assert found.train["steps"] == found.steps == 40
    assert found.train["data"] == "local_text"
    assert set(CONFIG) <= set(found.train)
    assert found.identity.config_digest == digest(found.train)
    assert (found.identity.dim, found.identity.tokens_per_step) == (64, 512)
    assert found.identity.nsa_env == {
        "NSA_TB_DISABLE": "1",
        "NSA_DISABLE_CSV_LOGS": "1",
        "NSA_DISABLE_AUX_STATS": "1",
    }


@pytest.mark.parametrize("name", ["git_sha", "torch", "device", "driver"])
def test_what_the_first_run_reported_is_ordered_of_every_later_one(name: str) -> None:
    found = build_order(
        resolved(), "smoke", experiment="exp_1", run="run_2", token=4, frozen={name: "as it was"}
    )
    said = found.identity.model_dump(include={"git_sha", "torch", "device", "driver"})
    assert said == {**dict.fromkeys(said), name: "as it was"}


def test_thresholds_and_floors_of_the_profile_are_filled_in_and_said() -> None:
    found = order(plan="m7c-125m")
    (throughput,) = [row for row in found.gate if row.id == "throughput"]
    assert (throughput.pass_above, throughput.fail_below) == (45, 39)
    assert found.watch.slow.floor_tok_s == 45
    assert found.watch_from_profile == ["slow.floor_tok_s"]
    assert found.left_out == []


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({"train.sede": 7}, "train.sede: unknown key 'sede'; did you mean seed"),
        (
            {"env.NSA_TB_DISABLE": 1},
            r"env: unknown key 'env'; did you mean workload\.env or phases\.NAME\.env\?",
        ),
        ({"steps": 5}, r"steps: unknown key 'steps'; did you mean phases\.NAME\.steps\?"),
        ({"phases.smoke.data": "wikipedia"}, "phases.smoke.data: found 'wikipedia'"),
    ],
)
def test_a_configuration_that_the_workload_does_not_take_is_refused(
    sets: dict[str, Any], said: str
) -> None:
    with pytest.raises(Rejected, match=said):
        resolve_plan(bundled_plan("demo"), sets)


def test_faults_are_refused_where_the_plan_does_not_allow_them() -> None:
    with pytest.raises(Rejected, match="allow_faults"):
        resolved({"fault": "nan"}, plan="m7c-125m")


FAULTS = [
    ("hang", "hang:rank=1,step=12,section=backward"),
    ("slow", "slow:factor=5,from=20"),
    ("nan:step=4", "nan:step=4"),
    ("exit:code=7", "exit:code=7,rank=0,step=8"),
    ("wrong-config", "wrong-config"),
    ("leak", "leak:rank=0,mb_per_step=50,from=10"),
    ("disk", "disk:step=12"),
]


@pytest.mark.parametrize(("spec", "told"), FAULTS)
def test_a_fault_strikes_in_its_phase_only_and_is_told_whole(spec: str, told: str) -> None:
    assert order(sets={"fault": spec}).fault == told
    assert order("extended", {"fault": spec}).fault is None
    joint = "," if ":" in spec else ":"
    moved = {"fault": f"{spec}{joint}phase=extended"}
    assert order("extended", moved).fault == told
    assert order("smoke", moved).fault is None


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "expected one of hang"),
        ("hang:rank=2", "rank"),
        ("nan:phase=lunch", "expected one of sanity, synthetic, smoke"),
        ("nan:step", "KEY=VALUE"),
        ("nan:step=41", "expected 1 to 40"),
        ("starve:share=1", "expected 0.01 to 0.99"),
        ("straggle:factor=fast", "expected a number"),
        ("hang:section=lunch", "expected data"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_as_a_bad_value(spec: str, said: str) -> None:
    with pytest.raises(Rejected, match=said) as refused:
        resolved({"fault": spec})
    assert not isinstance(refused.value, NotFound)


def test_an_order_tells_a_run_what_the_plan_says_of_it() -> None:
    sets = {
        "allow_drift": ["torch"],
        "waive": ["identity"],
        "halt.grace_s": 7.0,
        "heartbeat.alive_every_s": 0.25,
        "limits.deadline_s": 900.0,
        "phases.synthetic.checkpoint": {"every_steps": 4, "every_s": 60.0},
        "phases.smoke.checkpoint": {"every_steps": 5, "every_s": 70.0},
        "phases.smoke.init_from": "synthetic",
        "phases.extended.limits": {"deadline_s": 800.0, "isolated_limit_s": 300.0},
    }
    found = order(sets=sets)
    assert (found.allow_drift, found.waive) == (["torch"], ["identity"])
    assert (found.halt.grace_s, found.heartbeat.alive_every_s) == (7.0, 0.25)
    assert (found.checkpoint.every_steps, found.checkpoint.every_s) == (5, 70.0)
    assert found.init_from == "synthetic"
    assert found.limits.deadline_s == 900.0
    own = order("extended", sets).limits
    assert (own.deadline_s, own.isolated_limit_s) == (800.0, 300.0)
    assert (found.allow_faults, order(plan="m7c-125m").allow_faults) == (True, False)


def test_an_order_says_which_attempt_it_is_why_and_after_which_checkpoint() -> None:
    begins = ResumePoint(path="/runs/run_1/checkpoints/step_000020", step=20)
    found = build_order(
        resolved(),
        "smoke",
        experiment="exp_1",
        run="run_2",
        token=4,
        attempt=2,
        reason=RunReason.RESUME,
        resume_from=begins,
    )
    assert (found.experiment, found.run, found.token) == ("exp_1", "run_2", 4)
    assert (found.attempt, found.reason, found.resume_from) == (2, "resume", begins)


@pytest.mark.parametrize(("profile", "grace_s"), [("cpu", 1.0), ("h200", 5.0)])
def test_ranks_on_devices_have_longer_to_leave(profile: str, grace_s: float) -> None:
    assert order(sets={"halt.grace_s": None, "profile": profile}).halt.grace_s == grace_s


def test_the_lines_of_a_command_are_read_by_the_bundled_patterns_and_ours_by_none() -> None:
    plan = {**bundled_plan("demo"), "train": {}, "workload": {"command": "python train.py"}}
    plan["phases"] = [{"name": "try", "steps": 20}]
    found = build_order(resolve_plan(plan), "try", experiment="exp_1", run="run_1", token=1)
    assert (found.entry, found.command) == (None, ["python", "train.py"])
    assert (found.patterns, found.patterns_guessed) == (guessed_patterns(20), True)
    assert (order().entry, order().patterns, order().patterns_guessed) == ("nsa.train", [], False)


def test_all_that_can_be_known_beforehand_of_what_must_run_is_ordered() -> None:
    """R16: a field that is null is not checked, so only fields that the run alone knows are
    null."""
    real = resolve_plan(bundled_plan("m7c-125m"))
    found = build_order(real, "extended", experiment="exp_1", run="run_1", token=1)
    assert found.identity.config_digest == digest(found.train)
    assert found.identity.model_dump(exclude={"config_digest"}) == {
        "params": 125_492_400,
        **{"dim": 768, "layers": 12, "heads": 12, "groups": 2, "seq_len": 2048, "vocab": 256},
        **{"dtype": "bf16", "tokens_per_step": 4096, "world_size": 2, "parallel": "ddp"},
        "dataset": "fineweb_edu",
        "nsa_env": {
            **{"NSA_PREFILL_BATCHED": "1", "NSA_DDP_STATIC_GRAPH": "1"},
            **{"NSA_DDP_COMPRESS": "bf16", "NSA_TB_DISABLE": "1", "NSA_DISABLE_CSV_LOGS": "1"},
        },
        **dict.fromkeys(("git_sha", "torch", "device", "driver")),
    }
