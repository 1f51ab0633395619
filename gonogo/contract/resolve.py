"""How do a plan and its overrides become orders? Pure, but for reading configuration files.

`resolve_plan` freezes an experiment: plan, fault and the whole training configuration.
`build_order` writes one run's order from it. Identity before speed: the order says what must run,
taken from the configuration, and `null` only where nothing can be known beforehand.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import gonogo
from gonogo.contract.canonical import digest
from gonogo.contract.criterion import DEVICE_METRICS, Criterion
from gonogo.contract.errors import NotFound, Problem, Rejected
from gonogo.contract.fault import parse_fault
from gonogo.contract.hardware import HardwareProfile, hardware_profiles
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import HaltGrace, LeftOut, Order, PhaseAhead, ResumePoint, RunReason
from gonogo.contract.plan import Phase, Plan
from gonogo.contract.plan_source import parse_plan, with_overrides
from gonogo.contract.watch import Watch
from gonogo.contract.wire import Recorded
from gonogo.contract.yaml_text import parse_yaml

LoadConfig = Callable[[str], Mapping[str, Any]]


class ResolvedPlan(Recorded):
    """What an experiment froze at submission."""

    plan: dict[str, Any]
    train: dict[str, Any]
    fault: str | None = None

    def parsed(self) -> Plan:
        """Return the plan as a model."""
        return parse_plan(self.plan)


def checkout_root() -> Path:
    """Return the checkout (or image) that holds the applications.

    Raises:
        NotFound: gonogo is installed alone.
    """
    root = Path(gonogo.__file__).resolve().parent.parent
    if not (root / "nsa" / "configs").is_dir():
        raise NotFound("this needs a checkout or the image; an installed gonogo is the core alone")
    return root


def load_train_config(name: str) -> dict[str, Any]:
    """Return the training configuration called `name` (nsa/configs/NAME.yaml).

    Raises:
        NotFound: there is none, or no checkout.
    """
    folder = checkout_root() / "nsa" / "configs"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise NotFound(f"train.config: found {name!r}; expected one of {', '.join(known)}")
    found: dict[str, Any] = parse_yaml((folder / f"{name}.yaml").read_text())
    return found


def resolve_plan(
    data: Mapping[str, Any],
    sets: Mapping[str, Any] | None = None,
    *,
    load_config: LoadConfig = load_train_config,
) -> ResolvedPlan:
    """Return the frozen form of a submission.

    Args:
        data: the plan as data.
        sets: dotted path → value; `fault` is a fault to inject.
        load_config: name → training configuration.

    Raises:
        Rejected: a problem with the plan, an override, the configuration or the fault.
        NotFound: an unknown configuration.
    """
    sets = dict(sets or {})
    fault = sets.pop("fault", None)
    data = with_overrides(data, sets)
    plan = parse_plan(data)
    if fault is not None:
        if not plan.allow_faults:
            raise Rejected(f"plan {plan.name} does not allow faults (allow_faults: false)")
        parse_fault(str(fault), plan)
    train = _merged(deepcopy(dict(load_config(plan.train["config"]))), plan.train, "train")
    return ResolvedPlan(
        plan=plan.canonical(), train=train, fault=None if fault is None else str(fault)
    )


def _merged(base: dict[str, Any], patch: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `base` with `patch` laid over it; a key that `base` lacks is an error."""
    for key, value in patch.items():
        path = f"{where}.{key}"
        if key == "config" and where == "train":
            base[key] = value
        elif key not in base:
            known = ", ".join(sorted(base))
            problem = Problem(path=path, message=f"unknown key; expected one of {known}")
            raise Rejected(f"{path}: unknown key; expected one of {known}", problems=(problem,))
        elif isinstance(base[key], dict):
            if not isinstance(value, Mapping):
                raise Rejected(f"{path}: found {value!r}; expected a mapping")
            base[key] = _merged(base[key], value, path)
        else:
            base[key] = value
    return base


def build_order(
    resolved: ResolvedPlan,
    phase_name: str,
    *,
    experiment: str,
    run: str,
    token: int,
    attempt: int = 1,
    reason: RunReason = RunReason.FIRST,
    resume_from: ResumePoint | None = None,
    frozen: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> Order:
    """Return the order of one run.

    Args:
        resolved: the experiment's frozen plan.
        phase_name: phase to run.
        experiment, run: identifiers.
        token: fencing token of the claim.
        attempt: 1, 2, … within the phase.
        reason: why the run is started.
        resume_from: durable checkpoint to go on from.
        frozen: code identity that the experiment's first run froze (`git_sha`, …).
        env: further environment of a variant or remedy, over the phase's own.
    """
    plan = resolved.parsed()
    phase = plan.phase(phase_name)
    profile = hardware_profiles()[plan.profile]
    phase_env = {**phase.env, **(env or {})}
    train = _phase_train(resolved.train, plan, phase)
    watch, from_profile = _watch_of(plan, profile)
    gate, left_out = _gate_of(phase, profile)
    return Order(
        experiment=experiment,
        run=run,
        attempt=attempt,
        reason=reason,
        token=token,
        plan=plan.name,
        plan_digest=plan.digest(),
        phase=phase.name,
        steps=phase.steps,
        world_size=plan.workload.world_size,
        profile=plan.profile,
        entry=plan.workload.entry,
        resume_from=resume_from,
        train=train,
        env=phase_env,
        identity=expected_identity(train, plan.workload.world_size, phase_env, frozen or {}),
        allow_drift=list(plan.allow_drift),
        gate=gate,
        left_out=left_out,
        phases_after=_phases_after(plan, phase),
        watch=watch,
        watch_from_profile=from_profile,
        halt=HaltGrace(grace_s=_grace_s(plan, profile)),
        heartbeat=plan.heartbeat,
        checkpoint=phase.checkpoint,
        fault=_fault_of(resolved, plan, phase),
        limits=phase.limits or plan.limits,
    )


def _phase_train(train: Mapping[str, Any], plan: Plan, phase: Phase) -> dict[str, Any]:
    """Return the whole training configuration of one phase."""
    return {
        **deepcopy(dict(train)),
        "steps": phase.steps,
        "data": phase.data,
        "parallel": plan.workload.parallel,
    }


def _phases_after(plan: Plan, phase: Phase) -> list[PhaseAhead]:
    rest = plan.phases[plan.phases.index(phase) + 1 :]
    return [PhaseAhead(name=later.name, steps=later.steps) for later in rest]


def _grace_s(plan: Plan, profile: HardwareProfile) -> float:
    if plan.halt.grace_s is not None:
        return plan.halt.grace_s
    return 5.0 if profile.has_devices else 1.0


def _fault_of(resolved: ResolvedPlan, plan: Plan, phase: Phase) -> str | None:
    if resolved.fault is None:
        return None
    fault = parse_fault(resolved.fault, plan)
    return fault.spec if fault.phase == phase.name else None


def _watch_of(plan: Plan, profile: HardwareProfile) -> tuple[Watch, list[str]]:
    """Return the plan's settings with the profile's floor where the plan says nothing."""
    said = plan.watch.model_dump(exclude_unset=True)
    if profile.floor_tok_s is None or "floor_tok_s" in said.get("slow", {}):
        return plan.watch, []
    said.setdefault("slow", {})["floor_tok_s"] = profile.floor_tok_s
    return Watch.model_validate(said), ["slow.floor_tok_s"]


def _gate_of(phase: Phase, profile: HardwareProfile) -> tuple[list[Criterion], list[LeftOut]]:
    """Return the criteria that apply, thresholds filled from the profile, and those that do not."""
    gate: list[Criterion] = []
    left_out: list[LeftOut] = []
    for criterion in phase.gate:
        if criterion.metric in DEVICE_METRICS and not profile.has_devices:
            left_out.append(LeftOut(id=criterion.id, why="the profile has no devices"))
            continue
        patch: dict[str, Any] = {}
        for bound in ("pass_above", "pass_below"):
            if getattr(criterion, bound) == "profile":
                patch[bound] = profile.floor_tok_s
        keeps = criterion.fail_above is not None or criterion.fail_below is not None
        if patch and profile.floor_tok_s is None and not keeps:
            left_out.append(LeftOut(id=criterion.id, why="the profile has no floor"))
            continue
        said = criterion.model_dump(exclude_unset=True)
        gate.append(Criterion.model_validate({**said, **patch}))
    return gate, left_out


def expected_identity(
    train: Mapping[str, Any], world_size: int, env: Mapping[str, str], frozen: Mapping[str, Any]
) -> Identity:
    """Return the identity that a run of this configuration must report."""
    model = train.get("model", {})
    batch = train.get("batch", {})
    seq_len = model.get("seq_len")
    sequences = batch.get("global_seqs")
    tokens = seq_len * sequences if seq_len and sequences else None
    return Identity(
        config_digest=digest(train),
        params=train.get("params"),
        dim=model.get("dim"),
        layers=model.get("layers"),
        heads=model.get("heads"),
        groups=model.get("groups"),
        seq_len=seq_len,
        vocab=model.get("vocab"),
        dtype=train.get("dtype"),
        tokens_per_step=tokens,
        world_size=world_size,
        dataset=train.get("data"),
        parallel=train.get("parallel"),
        git_sha=frozen.get("git_sha"),
        nsa_env={name: value for name, value in env.items() if name.startswith("NSA_")},
    )
