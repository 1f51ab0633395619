"""The plans that ship say what the runbook asks, and differ only where they mean to."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.criterion import Criterion
from gonogo.contract.plan import Phase
from gonogo.planning.campaigns import reseeded, resolve_campaign
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_campaign_names, bundled_plan, bundled_plan_names

REAL = "m7c-125m"
PLANS = bundled_plan_names()
CAMPAIGNS = bundled_campaign_names()
FAMILY = [name for name in PLANS if name.startswith(REAL)]
TB, CSV, AUX = "NSA_TB_DISABLE", "NSA_DISABLE_CSV_LOGS", "NSA_DISABLE_AUX_STATS"
QUIET = {TB, CSV, AUX}
HOURLY = (5000, 3600)
"""A checkpoint every 5000 steps or an hour, whichever comes first."""

PHASES: dict[str, tuple[int, str, set[str], tuple[int | None, int | None], str]] = {
    "sanity": (1, "synthetic", {TB, CSV, AUX}, (None, None), "never"),
    "synthetic": (200, "synthetic", {TB, CSV, AUX}, (None, None), "never"),
    "smoke": (300, "fineweb_edu", {TB, CSV, AUX}, HOURLY, "never"),
    "extended": (1000, "fineweb_edu", {TB, CSV}, HOURLY, "on_conditional"),
    "production": (50_000, "fineweb_edu", {CSV}, HOURLY, "on_conditional"),
}
"""Phase → its steps, data, what it switches off, its cadence, and when a person is asked (R2)."""

LATER = "; open until extended, due production"
GATES = {
    "sanity": {
        "finite": "all_finite of loss",
        "first_loss": "last of loss_first ≤ 6.545",
        "first_loss_low": "last of loss_first ≥ 4.545",
    },
    "synthetic": {"finite": "all_finite of loss"},
    "smoke": {
        "finite": "all_finite of loss",
        "throughput": "median of toks_per_s ≥ profile, fails < 39, else conditional; 20+100"
        + LATER,
        "steady_steps": "mean of step_cv, max, ≤ 0.25; 20+100; conditional" + LATER,
        "utilisation": "mean of gpu_util ≥ 80; 20+1; conditional" + LATER,
        "balance": "mean of gpu_util_ratio ≥ 0.8; 20+1; conditional" + LATER,
        "fetch_share": "mean of fetch_share, max, ≤ 0.3; 20+100; advisory",
    },
    "extended": {
        "finite": "all_finite of loss",
        "throughput": "median of toks_per_s ≥ profile, fails < 39, else conditional; 20+500",
        "steady_steps": "mean of step_cv, max, ≤ 0.25; 20+500; conditional",
        "utilisation": "mean of gpu_util ≥ 80; 20+1; conditional",
        "balance": "mean of gpu_util_ratio ≥ 0.8; 20+1; conditional",
        "memory": "max of gpu_mem_reserved_mb, max, ≤ 60000",
        "memory_slope": ("slope of gpu_mem_slope_mb_per_step, max, ≤ 1; 20+500; conditional"),
    },
    "production": {
        "finite": "all_finite of loss",
        "throughput": "median of toks_per_s ≥ profile, fails < 39, else conditional; 20+1000",
    },
}
"""What each phase asks (R11, R12, R14, R17), with warm-up + least samples where it has them."""


def asked(row: Criterion) -> str:
    """A criterion in a line: whatever differs from its model's default."""
    text = f"{row.aggregate} of {row.metric}"
    if row.over_ranks != "min":
        text += f", {row.over_ranks},"
    for sign, bound in (("≥", row.pass_above), ("≤", row.pass_below)):
        text += f" {sign} {bound:g}" if isinstance(bound, (int, float)) else ""
        text += f" {sign} {bound}" if isinstance(bound, str) else ""
    for sign, bound in (("<", row.fail_below), (">", row.fail_above)):
        text += "" if bound is None else f", fails {sign} {bound:g}, else {row.grey}"
    if (row.warmup_steps, row.min_samples) != (0, 1):
        text += f"; {row.warmup_steps}+{row.min_samples}"
    text += "" if row.severity == "required" else f"; {row.severity}"
    if row.evidence_from is not None:
        text += f"; open until {row.evidence_from}, due {row.due}"
    return text


def switched_off(phase: Phase) -> set[str]:
    return {name for name, value in phase.env.items() if value == "1"}


def test_the_phases_of_the_real_plan_are_those_of_the_runbook() -> None:
    plan = resolve_plan(bundled_plan(REAL)).parsed()
    assert (plan.profile, plan.allow_faults, plan.retry.infra) == ("a100-pcie-gen4", False, 2)
    assert plan.train == {"config": "m7c_125m", "seed": 1337, "dtype": "bf16"}
    found = {
        row.name: (
            *(row.steps, row.data, switched_off(row)),
            *((row.checkpoint.every_steps, row.checkpoint.every_s), row.approve),
        )
        for row in plan.phases
    }
    assert found == PHASES


@pytest.mark.parametrize("phase", GATES)
def test_the_gate_of_each_phase_of_the_real_plan_asks_what_the_runbook_asks(phase: str) -> None:
    gate = resolve_plan(bundled_plan(REAL)).parsed().phase(phase).gate
    assert {row.id: asked(row) for row in gate} == GATES[phase]


def orders(plan: str) -> dict[str, Any]:
    resolved = resolve_plan(bundled_plan(plan))
    return {
        phase.name: build_order(resolved, phase.name, experiment="e", run="r", token=1)
        for phase in resolved.parsed().phases
    }


@pytest.mark.parametrize("name", FAMILY)
def test_the_runbook_s_toggles_are_on_in_every_phase(name: str) -> None:
    for order in orders(name).values():
        assert order.env["NSA_PREFILL_BATCHED"] == "1"
        assert order.env["NSA_DDP_COMPRESS"] == "bf16"
        assert order.env.get("NSA_DDP_STATIC_GRAPH") == ("1" if "fsdp" not in name else None)


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
