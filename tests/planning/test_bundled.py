"""The plans that ship say what the runbook asks, and differ only where they mean to."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.judge.failures import library
from gonogo.planning.campaigns import reseeded, resolve_campaign
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_campaign_names, bundled_plan, bundled_plan_names

REAL = "m7c-125m"
PLANS = bundled_plan_names()
CAMPAIGNS = bundled_campaign_names()
FAMILY = [name for name in PLANS if name.startswith(REAL)]
QUIET = {"NSA_TB_DISABLE", "NSA_DISABLE_CSV_LOGS", "NSA_DISABLE_AUX_STATS"}


def orders(plan: str) -> dict[str, Any]:
    resolved = resolve_plan(bundled_plan(plan))
    return {
        phase.name: build_order(resolved, phase.name, experiment="e", run="r", token=1)
        for phase in resolved.parsed().phases
    }


@pytest.mark.parametrize("name", PLANS)
def test_every_phase_says_how_it_begins(name: str) -> None:
    assert all("init_from" in phase for phase in bundled_plan(name)["phases"])
    assert {order.init_from for order in orders(name).values()} == {None}


@pytest.mark.parametrize("name", PLANS)
def test_the_first_loss_has_two_sides(name: str) -> None:
    gate = {row.id: row for row in orders(name)["sanity"].gate}
    assert (gate["first_loss"].pass_below, gate["first_loss_low"].pass_above) == (6.545, 4.545)
    assert {row.metric for row in (gate["first_loss"], gate["first_loss_low"])} == {"loss_first"}


@pytest.mark.parametrize("name", FAMILY)
def test_the_runbook_s_toggles_are_on_in_every_phase(name: str) -> None:
    for order in orders(name).values():
        assert order.env["NSA_PREFILL_BATCHED"] == "1"
        assert order.env["NSA_DDP_COMPRESS"] == "bf16"
        assert order.env.get("NSA_DDP_STATIC_GRAPH") == ("1" if "fsdp" not in name else None)


@pytest.mark.parametrize("name", FAMILY)
def test_short_phases_log_nothing(name: str) -> None:
    for phase, order in orders(name).items():
        off = {toggle for toggle in QUIET if order.env.get(toggle) == "1"}
        if phase in ("sanity", "synthetic", "smoke", "profile"):
            assert off == QUIET, phase
        else:
            assert off < QUIET, phase


def test_a_hang_anywhere_is_confirmed_and_known_failures_are_answered() -> None:
    plan = resolve_plan(bundled_plan(REAL)).parsed()
    assert plan.confirm is not None
    hangs = {"stall", "alive_lost", "section_deadline"}
    assert set(plan.confirm.on) == {*hangs, "non_finite", "loader"}
    quiet, *kernels = (row.env for row in plan.confirm.variants)
    assert quiet == dict.fromkeys(QUIET, "1")
    assert kernels == [{"NSA_SDPA_NO_FLASH": "1"}, {"NSA_SDPA_FLASH_ONLY": "1"}]
    assert plan.remedies["ddp_marked_ready_twice"].workload.parallel == "fsdp"
    assert plan.remedies["out_of_memory"].train == {"model": {"gradient_checkpointing": True}}
    assert plan.remedies["aux_stats_hang"].env == {"NSA_DISABLE_AUX_STATS": "1"}
    assert plan.remedies["step_boundary_hang"].env == dict.fromkeys(QUIET, "1")
    assert plan.remedies["sequential_prefill"].env == {"NSA_PREFILL_BATCHED": "1"}
    for name, patch in plan.remedies.items():
        row = library().get(name)
        assert row is not None
        assert {**row.patch, "workload": None} == {**patch.document(), "workload": None} or (
            name == "ddp_marked_ready_twice"  # which has two answers: the plan takes the other
        )
    assert plan.max_remedies == 2


def difference(one: Any, other: Any, at: str = "") -> set[str]:
    """The dotted paths at which two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            path
            for key in {*one, *other}
            for path in difference(one.get(key), other.get(key), f"{at}.{key}".strip("."))
        }
    if isinstance(one, list) and isinstance(other, list):
        named = [{row.get("name", row.get("id")): row for row in rows} for rows in (one, other)]
        return difference(named[0], named[1], at)
    return set() if one == other else {at}


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("m7c-125m-tuned", {"name", "train.batch"}),
        (
            "m7c-125m-fsdp",
            {
                "name",
                "workload.parallel",
                "workload.env.NSA_DDP_STATIC_GRAPH",
                "train.model",
                "remedies.ddp_marked_ready_twice",
                "remedies.out_of_memory",
                "phases.extended.gate.memory.pass_below",
                "phases.extended.gate.memory.fail_above",
                "phases.extended.gate.memory.grey",
                "phases.extended.gate.target_speed",
            },
        ),
    ],
)
def test_a_plan_of_the_family_differs_where_it_means_to(name: str, differs: set[str]) -> None:
    one, other = bundled_plan(REAL), bundled_plan(name)
    assert one.pop("confirm") == other.pop("confirm")
    assert difference(one, other) == differs


def test_fsdp_is_held_to_thirty_gigabytes_with_activations_checkpointed() -> None:
    found = orders("m7c-125m-fsdp")
    (memory,) = [row for row in found["extended"].gate if row.id == "memory"]
    assert (memory.pass_below, memory.fail_above) == (30_000, 60_000)
    assert found["smoke"].identity.parallel == "fsdp"
    assert found["smoke"].train["model"]["gradient_checkpointing"] is True


def test_the_tuned_batch_is_four_in_one_part() -> None:
    smoke = orders("m7c-125m-tuned")["smoke"]
    assert smoke.train["batch"] == {"global_seqs": 4, "accumulate": 1}
    assert smoke.identity.tokens_per_step == 8192
    assert orders(REAL)["smoke"].identity.tokens_per_step == 4096


def test_the_profiling_phase_profiles_within_its_steps() -> None:
    order = orders("m7c-125m-profile")["profile"]
    assert 0 < order.train["engine"]["profile_steps"] <= order.steps - 3


def changes(name: str) -> list[set[str]]:
    """In what each variant's order is not the baseline's: environment, training, world size."""
    found = resolve_campaign(bundled_plan(name))
    rows = []
    for plan in found.variants.values():
        phase = plan.parsed().phases[0].name
        order = build_order(plan, phase, experiment="e", run="r", token=1)
        row = {f"env.{key}": value for key, value in order.env.items()}
        row |= {f"train.{key}": repr(value) for key, value in order.train.items()}
        rows.append(row | {"world_size": str(order.world_size)})
    base, *others = rows
    return [
        {key for key in row.keys() | base.keys() if row.get(key) != base.get(key)} for row in others
    ]


@pytest.mark.parametrize(
    ("name", "differing"),
    [
        ("campaign-adamw", [{"train.engine"}]),
        ("campaign-buckets", [{"env.NSA_DDP_BUCKET_MB"}] * 2),
        ("campaign-compress", [{"env.NSA_DDP_COMPRESS"}]),
        ("campaign-demo", [{"env.NSA_DDP_COMPRESS"}]),
        (
            "campaign-isolation",
            [
                {
                    *("env.NSA_DDP_COMPRESS", "env.NSA_DDP_STATIC_GRAPH", "train.batch"),
                    *("train.parallel", "world_size"),
                }
            ],
        ),
        ("campaign-prefill", [{"env.NSA_PREFILL_BATCHED"}]),
        ("campaign-ranges", [{"env.NSA_SEL_RANGES_V2"}]),
        ("campaign-scaling", [{"train.batch", "world_size"}]),
        ("campaign-sdpa", [{"env.NSA_SDPA_NO_FLASH"}]),
        ("campaign-sequence", [{"train.batch", "train.model"}]),
    ],
)
def test_a_campaign_s_variants_differ_in_what_is_asked_and_in_nothing_else(
    name: str, differing: list[set[str]]
) -> None:
    assert changes(name) == differing


def test_every_bundled_campaign_is_looked_at() -> None:
    assert len(CAMPAIGNS) == 10


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_campaign_measures_what_it_compares_and_repeats_with_other_seeds(name: str) -> None:
    found = resolve_campaign(bundled_plan(name))
    wanted = {
        str(found.spec.metric),
        *map(str, found.spec.shown_by),
        *map(str, found.spec.alike_in),
    }
    for plan in found.variants.values():
        seeds = []
        for repeat in (1, 2, 3):
            again = reseeded(plan, repeat)
            (phase,) = again.parsed().phases
            order = build_order(again, phase.name, experiment="e", run="r", token=1)
            assert wanted <= {str(row.metric) for row in order.gate}
            assert order.steps > found.spec.warmup_steps
            seeds.append(order.train["seed"])
            assert again.parsed().train["seed"] == order.train["seed"]
            assert order.identity.config_digest is not None
        assert seeds == [1337, 1338, 1339]
