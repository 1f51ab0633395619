"""The numbers of the plans that ship are those of the runbook and of docs/how-to/compare.md."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.criterion import Criterion
from gonogo.contract.plan import Phase
from gonogo.planning.campaigns import resolve_campaign
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import bundled_campaign_names, bundled_plan, parse_plan

REAL = "m7c-125m"
TB, CSV, AUX = "NSA_TB_DISABLE", "NSA_DISABLE_CSV_LOGS", "NSA_DISABLE_AUX_STATS"
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


def test_what_the_real_plan_answers_by_itself() -> None:
    remedies = resolve_plan(bundled_plan(REAL)).parsed().remedies
    assert {name: patch.text() for name, patch in remedies.items()} == {
        "ddp_marked_ready_twice": "workload.parallel=fsdp",
        "out_of_memory": "model={'gradient_checkpointing': True}",
        "aux_stats_hang": f"{AUX}=1",
        "step_boundary_hang": f"{TB}=1 {CSV}=1 {AUX}=1",
        "sequential_prefill": "NSA_PREFILL_BATCHED=1",
        "imbalance": "NSA_DDP_STATIC_GRAPH=1 NSA_DDP_FIND_UNUSED=0 NSA_DDP_BUCKET_MB=100",
    }


CAMPAIGNS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "campaign-adamw": (
        {"plain": "engine={'fused_adamw': False}", "fused": "engine={'fused_adamw': True}"},
        {"alike_in": {"loss": 0.01}},
    ),
    "campaign-buckets": (
        {f"mb{size}": f"NSA_DDP_BUCKET_MB={size}" for size in (25, 50, 100)},
        {"alike_in": {"loss": 0.01}},
    ),
    "campaign-compress": (
        {"whole": "NSA_DDP_COMPRESS=none", "bf16": "NSA_DDP_COMPRESS=bf16"},
        {"shown_by": ["comm_mb"], "alike_in": {"loss": 0.01}},
    ),
    "campaign-demo": (
        {"whole": "NSA_DDP_COMPRESS=none", "bf16": "NSA_DDP_COMPRESS=bf16"},
        {"shown_by": ["comm_mb"], "alike_in": {"loss": 0.02}, "margin": 0.05, "warmup_steps": 3},
    ),
    "campaign-isolation": (
        {
            "together": "batch={'global_seqs': 2} workload.world_size=2 workload.parallel=ddp",
            "alone": (
                "NSA_DDP_STATIC_GRAPH=None NSA_DDP_COMPRESS=None batch={'global_seqs': 1}"
                " workload.world_size=1 workload.parallel=single"
            ),
        },
        {"per_device": True, "margin": 0.05},
    ),
    "campaign-prefill": (
        {"sequential": "NSA_PREFILL_BATCHED=0", "batched": "NSA_PREFILL_BATCHED=1"},
        {"metric": "eval_s", "alike_in": {"val_loss": 0.01}, "warmup_steps": 5},
    ),
    "campaign-ranges": (
        {"v1": "NSA_SEL_RANGES_V2=0", "v2": "NSA_SEL_RANGES_V2=1"},
        {"metric": "eval_s", "alike_in": {"val_loss": 0.001}, "warmup_steps": 5},
    ),
    "campaign-scaling": (
        {
            f"n{ranks}": f"batch={{'global_seqs': {ranks}}} workload.world_size={ranks}"
            for ranks in (1, 2)
        },
        {"per_device": True, "margin": 0.1},
    ),
    "campaign-sdpa": (
        {
            "flash": "attention={'backend': 'torch'}",
            "no-flash": "NSA_SDPA_NO_FLASH=1 attention={'backend': 'torch'}",
        },
        {"shown_by": ["flash_share"], "alike_in": {"loss": 0.01}},
    ),
    "campaign-sequence": (
        {
            f"s{tokens}": f"model={{'seq_len': {tokens}}} batch={{'global_seqs': {4096 // tokens}}}"
            for tokens in (2048, 1024)
        },
        {},
    ),
}
"""Campaign → its variants, and what it asks that is not `USUAL` (R61, R62)."""

USUAL = {
    "metric": "toks_per_s", "per_device": False, "margin": 0.02, "warmup_steps": 10,
    "shown_by": [], "alike_in": {}, "confidence": 0.95, "repeats": 3, "bound": 6, "better": None,
}  # fmt: skip


@pytest.mark.parametrize("name", bundled_campaign_names())
def test_a_campaign_compares_what_it_says_by_what_shows_it(name: str) -> None:
    spec = resolve_campaign(bundled_plan(name)).spec
    variants, more = CAMPAIGNS[name]
    assert {row.name: row.text() for row in spec.variants} == variants
    assert {key: getattr(spec, key) for key in USUAL} == USUAL | more


@pytest.mark.parametrize("name", bundled_campaign_names())
def test_a_campaign_runs_as_the_real_plan_does_and_logs_nothing(name: str) -> None:
    """What shows in evaluations is evaluated in each run, and ranges are those of one by one."""
    plan = parse_plan(bundled_plan(name))
    (phase,) = plan.phases
    small = name == "campaign-demo"
    evaluated = name in ("campaign-prefill", "campaign-ranges")
    assert (phase.data, switched_off(phase)) == ("synthetic", {TB, CSV, AUX})
    assert phase.steps == (12 if small else 20 if evaluated else 40)
    assert phase.train == ({"eval": {"every_steps": 5, "batches": 1}} if evaluated else {})
    assert [asked(row) for row in phase.gate] == ["all_finite of loss"]
    assert (plan.allow_faults, plan.retry.infra, plan.workload.world_size) == (small, 2, 2)
    assert plan.workload.parallel == "ddp"
    if small:
        return
    real = resolve_plan(bundled_plan(REAL)).parsed()
    own = {
        "campaign-compress": {"NSA_DDP_COMPRESS": None},
        "campaign-prefill": {"NSA_PREFILL_BATCHED": None},
        "campaign-ranges": {"NSA_PREFILL_BATCHED": "0"},
    }.get(name, {})
    wanted = {**real.workload.env, **own}
    assert plan.workload.env == {key: value for key, value in wanted.items() if value is not None}
    assert (plan.profile, plan.train) == (real.profile, real.train)
