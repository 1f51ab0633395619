"""How does a plan with a `campaign` become runs? One ordinary plan for each variant.

A variant's plan is the campaign's without that section, with the variant laid over the one phase,
and with criteria that look at what is compared. Nothing else knows that it belongs to a campaign.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from gonogo.contract.campaign import CampaignSpec, CampaignVariant
from gonogo.contract.errors import Problem, Rejected
from gonogo.contract.order import Order
from gonogo.judge.compare.campaign import question_of
from gonogo.planning.ordering import build_order, merged
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import ResolvedPlan, parse_plan, refuse, with_overrides


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedCampaign:
    """A campaign, frozen."""

    plan: str
    spec: CampaignSpec
    variants: Mapping[str, ResolvedPlan]  # Variant → the plan of its first repeat.


def resolve_campaign(
    data: Mapping[str, Any], sets: Mapping[str, Any] | None = None, repeats: int | None = None
) -> ResolvedCampaign:
    """Return the frozen form of a campaign."""
    sets = dict(sets or {})
    fault = sets.pop("fault", None)
    if repeats is not None:
        sets["campaign.repeats"] = repeats
    whole = with_overrides(data, sets)
    if not isinstance(whole.get("campaign"), Mapping):
        raise Rejected(
            "the plan has no `campaign`, so there is nothing to compare (docs/how-to/compare.md);"
            " gonogo submit runs it as it is"
        )
    spec = parse_plan(whole).campaign
    assert spec is not None  # it is a mapping, and the plan is valid
    del whole["campaign"]
    question = question_of(spec)
    (phase,) = whole["phases"]
    refuse(_problems(whole, phase, spec, {row.id for row in question.criteria()}))
    gate = [row.model_dump(mode="json", exclude_unset=True) for row in question.criteria()]
    variants = {}
    for row in spec.variants:
        try:
            plan = _plan_of(whole, row, gate)
            variants[row.name] = resolve_plan(plan, None if fault is None else {"fault": fault})
        except Rejected as error:
            raise _of_variant(row.name, error) from error
    refuse(_unchanged(variants))
    return ResolvedCampaign(plan=str(whole.get("name")), spec=spec, variants=variants)


def reseeded(plan: ResolvedPlan, repeat: int) -> ResolvedPlan:
    """Return a variant's plan for one repeat: all variants of a repeat share a seed.

    Two runs with one seed have one loss. A configuration without a seed stays as it is. A seed of
    the one phase counts before that of the plan.
    """
    of_phase = plan.plan["phases"][0].get("train") or {}
    seed = of_phase.get("seed", plan.train.get("seed"))
    if repeat == 1 or isinstance(seed, bool) or not isinstance(seed, int):
        return plan
    seed += repeat - 1
    changed = deepcopy(plan.plan)
    if "seed" in of_phase:
        changed["phases"][0]["train"]["seed"] = seed
        return ResolvedPlan(plan=changed, train=plan.train, fault=plan.fault)
    changed["train"] = {**changed.get("train", {}), "seed": seed}
    return ResolvedPlan(plan=changed, train={**plan.train, "seed": seed}, fault=plan.fault)


def _problems(
    whole: Mapping[str, Any], phase: Mapping[str, Any], spec: CampaignSpec, ours: set[str]
) -> Iterator[Problem]:
    """Yield what could compare nothing: no step after the warm-up, or a seed of a variant."""
    if spec.warmup_steps >= phase["steps"]:
        message = f"found {spec.warmup_steps}; expected fewer than the {phase['steps']} steps"
        yield Problem(path="campaign.warmup_steps", message=message)
    for row in phase.get("gate") or ():
        if row.get("id") in ours:
            path = f"phases.{phase['name']}.gate.{row['id']}"
            yield Problem(path=path, message="the campaign itself has a criterion of this id")
    for variant in spec.variants:
        if "seed" in (variant.document().get("train") or {}):
            path = f"campaign.variants.{variant.name}.train.seed"
            message = "a seed belongs to the repeat: all variants share it (train.seed of the plan)"
            yield Problem(path=path, message=message)


def _unchanged(variants: Mapping[str, ResolvedPlan]) -> Iterator[Problem]:
    """Yield variants that order the same thing as the baseline; seeds belong to the repeat."""
    told = {name: _told(plan) for name, plan in variants.items()}
    baseline, *others = told
    for name in others:
        if told[name] == told[baseline]:
            message = f"variant {name} changes nothing of {baseline}, so they cannot be compared"
            yield Problem(path=f"campaign.variants.{name}", message=message)


def first_order(plan: ResolvedPlan) -> Order:
    """Return what the first run of a variant would be ordered."""
    (phase,) = plan.parsed().phases
    return build_order(plan, phase.name, experiment="exp_dry_run", run="run_dry_run", token=0)


def _told(plan: ResolvedPlan) -> dict[str, Any]:
    order = first_order(plan).document()
    train = {key: value for key, value in order["train"].items() if key != "seed"}
    return {"train": train, **{key: order.get(key) for key in ("env", "command", "world_size")}}


def _plan_of(
    whole: Mapping[str, Any], variant: CampaignVariant, gate: list[dict[str, Any]]
) -> dict[str, Any]:
    plan: dict[str, Any] = deepcopy(dict(whole))
    phase = plan["phases"][0]
    for name, patch in variant.document().items():
        if name != "name":
            phase[name] = merged(phase.get(name) or {}, patch)
    phase["gate"] = [*(phase.get("gate") or []), *gate]
    return plan


def _of_variant(name: str, error: Rejected) -> Rejected:
    rows = tuple(
        Problem(path=row.path, message=f"{row.message} (variant {name})") for row in error.problems
    )
    return Rejected(f"variant {name}: {error.detail}", problems=rows)
