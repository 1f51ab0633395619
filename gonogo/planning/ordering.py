"""How does a phase of a plan become an order? Pure.

Identity before speed: the order says what must run, taken from the configuration (or, for a foreign
workload, from what the plan declares), and `null` only where nothing can be known beforehand.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gonogo.contract.canonical import digest, plain_copy
from gonogo.contract.criterion import DEVICE_METRICS, Criterion
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import (
    CarriedRemedy,
    HaltGrace,
    LeftOut,
    Order,
    PhaseAhead,
    ResumePoint,
    RunReason,
    Taint,
    command_digest,
)
from gonogo.contract.outcome import RecordedFailure
from gonogo.contract.patience import bounded
from gonogo.contract.patterns import guessed_patterns
from gonogo.contract.plan import HardwareProfile, Phase, Plan, hardware_profiles, parse_fault
from gonogo.contract.records import PREFLIGHT_CHECKS, SANITY
from gonogo.contract.watch import Watch
from gonogo.contract.workload import Patch, RecordedPatch, is_ours
from gonogo.planning.layers import Filled, Laid, fill_order, lay
from gonogo.planning.source import ResolvedPlan, problems_of, rejected
from gonogo.planning.workloads.known import workload_schema
from gonogo.watch.registry import detector_names, made_by

FROZEN = ("git_sha", "torch", "device", "driver")
"""Identity that no plan can know beforehand: an experiment's first run says it, all others keep it.
Plans may let any of it drift (`allow_drift`)."""


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
    change: Patch | None = None,
    carried: Sequence[CarriedRemedy] = (),
    taints: Sequence[Taint] = (),
) -> Order:
    """Return the order of one run.

    Args:
        resolved: the experiment's frozen plan.
        phase_name: phase to run.
        experiment, run: identifiers.
        token: fencing token of the claim.
        attempt: 1, 2, … within the phase.
        reason: why the run is started.
        resume_from: durable checkpoint to continue from.
        frozen: what of FROZEN the experiment's first run reported.
        change: a variant's, remedy's or campaign's patch, over the phase's own.
        carried: remedies of earlier phases, over the phase's own settings and under `change`.
        taints: what counts against the run because of the checkpoint.
    """
    plan = resolved.parsed()
    phase = plan.phase(phase_name)
    profile = hardware_profiles()[plan.profile]
    schema = workload_schema(plan.workload.program)
    kept = [RecordedPatch.model_validate(row.patch) for row in carried]
    told = lay(plan, phase, resolved.train, change, carried=kept, schema=schema)
    watch, from_profile = _watch_of(plan, profile)
    gate, left_out = gate_of(phase, profile, plan.profile)
    ours = is_ours(plan.workload.entry, told.command)
    args = [] if told.command is not None else plan.workload.args
    filled = Filled(env=told.env) if ours else fill_order(told, args, phase.steps)
    own_checks = [SANITY] if ours else []
    order = Order(
        experiment=experiment,
        run=run,
        attempt=attempt,
        reason=reason,
        token=token,
        plan=plan.name,
        plan_digest=resolved.plan_digest(),
        phase=phase.name,
        steps=phase.steps,
        world_size=told.world_size,
        nodes=plan.workload.nodes,
        cluster=plan.cluster,
        profile=plan.profile,
        entry=None if told.command is not None else plan.workload.entry,
        args=filled.args,
        command=filled.command,
        filled_at_start=filled.at_start,
        cwd=plan.workload.cwd,
        files=list(plan.workload.files),
        patterns=guessed_patterns(phase.steps) if told.command is not None else [],
        patterns_guessed=told.command is not None,
        init_from=phase.init_from,
        resume_from=resume_from,
        train=plain_copy(told.train),
        env=filled.env,
        identity=expected_identity(plan, phase, told, frozen or {}),
        allow_drift=list(plan.allow_drift),
        gate=gate,
        left_out=left_out,
        waive=list(plan.waive),
        carried=list(carried),
        failures=[RecordedFailure(**row.model_dump()) for row in plan.failures],
        taints=list(taints),
        phases_after=_phases_after(plan, phase),
        watch=watch,
        watch_from_profile=from_profile,
        halt=HaltGrace(grace_s=_grace_s(plan, profile)),
        heartbeat=plan.heartbeat,
        checkpoint=phase.checkpoint,
        fault=_fault_of(resolved, plan, phase),
        allow_faults=plan.allow_faults,
        limits=phase.limits or plan.limits,
        preflight=[*PREFLIGHT_CHECKS, *own_checks],
        detectors=detector_names(),
        made_by=made_by(),
    )
    return order.model_copy(update={"patience": order.limits_of_places()})


def build_command_order(
    command: Sequence[str],
    *,
    experiment: str,
    run: str,
    cwd: str,
    world_size: int = 1,
    nodes: int = 1,
    steps: int | None = None,
    watch: Watch | None = None,
    stall_s: float | None = None,
    waive: Sequence[str] = (),
    preflight: Sequence[str],
) -> Order:
    """Return the order of a command that no plan knows.

    Args:
        command: program and arguments.
        experiment, run: identifiers.
        cwd: folder in which it is started.
        world_size: how many ranks its lines must show.
        nodes: on how many nodes it is started, once on each.
        steps: the last step that they must show; None: nobody says.
        watch: settings of the watchdog.
        stall_s: the limit of every place; None: the table's own.
        waive: criteria that may stay unobserved.
        preflight: ids of the required checks.
    """
    order = Order(
        experiment=experiment,
        run=run,
        token=1,
        plan="",
        plan_digest=command_digest(command),
        phase="run",
        steps=steps,
        world_size=world_size,
        nodes=nodes,
        profile="cpu",
        entry=None,
        command=list(command),
        cwd=cwd,
        train={},
        identity=Identity(world_size=world_size),
        waive=list(waive),
        watch=watch or Watch(),
        halt=HaltGrace(grace_s=5.0),
        preflight=list(preflight),
        detectors=detector_names(),
        made_by=made_by(),
    )
    table = order.limits_of_places()
    if stall_s is not None:
        table = bounded(table, stall_s)
    return order.model_copy(update={"patience": table})


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


def expected_identity(plan: Plan, phase: Phase, told: Laid, frozen: Mapping[str, Any]) -> Identity:
    """Return the identity that a run must report."""
    kept = {name: frozen.get(name) for name in FROZEN}
    if not plan.ours:
        declared = plan.identity.model_dump() if plan.identity is not None else {}
        declared["dataset"] = declared.get("dataset") or phase.data
        return Identity(**declared, world_size=told.world_size, **kept)
    model, batch = told.train.get("model", {}), told.train.get("batch", {})
    seq_len, sequences = model.get("seq_len"), batch.get("global_seqs")
    return Identity(
        config_digest=digest(told.train),
        params=told.train.get("params"),
        dim=model.get("dim"),
        layers=model.get("layers"),
        heads=model.get("heads"),
        groups=model.get("groups"),
        seq_len=seq_len,
        vocab=model.get("vocab"),
        dtype=told.train.get("dtype"),
        tokens_per_step=seq_len * sequences if seq_len and sequences else None,
        world_size=told.world_size,
        dataset=told.train.get("data"),
        parallel=told.train.get("parallel"),
        nsa_env={name: value for name, value in told.env.items() if name.startswith("NSA_")},
        **kept,
    )


_AGAINST = {"pass_above": "fail_below", "pass_below": "fail_above"}
"""Threshold that a profile may give → the one that must not contradict it."""


def gate_of(
    phase: Phase, profile: HardwareProfile, name: str
) -> tuple[list[Criterion], list[LeftOut]]:
    """Return the criteria that apply, thresholds filled from the profile, and what is left out.

    A criterion about devices or about the profile's floor is left out where the profile has none,
    and a `fail_*` threshold where the floor itself lies on its failing side.
    """
    gate: list[Criterion] = []
    left_out: list[LeftOut] = []
    for criterion in phase.gate:
        if criterion.metric in DEVICE_METRICS and not profile.has_devices:
            left_out.append(LeftOut(id=criterion.id, why="the profile has no devices"))
            continue
        bound = next((row for row in _AGAINST if getattr(criterion, row) == "profile"), None)
        if bound is None:
            gate.append(_of_worst_rank(criterion))
            continue
        against = _AGAINST[bound]
        fails = getattr(criterion, against)
        if profile.floor_tok_s is None and fails is None:
            left_out.append(LeftOut(id=criterion.id, why="the profile has no floor"))
            continue
        said = {**criterion.model_dump(exclude_unset=True), bound: profile.floor_tok_s}
        if _contradicts(bound, profile.floor_tok_s, fails):
            del said[against]
            why = f"{fails:g} contradicts the floor of {name}, {profile.floor_tok_s:g}"
            left_out.append(LeftOut(id=f"{criterion.id}.{against}", why=why))
        filled = _criterion(said, f"phases.{phase.name}.gate.{criterion.id}")
        gate.append(_of_worst_rank(filled))
    return gate, left_out


def _of_worst_rank(criterion: Criterion) -> Criterion:
    """Return the criterion with the rank that counts; of a lower bound it is the lowest anyway."""
    below = criterion.pass_below is not None or criterion.fail_above is not None
    if not below or "over_ranks" in criterion.model_fields_set:
        return criterion
    return criterion.model_copy(update={"over_ranks": "max"})


def _contradicts(bound: str, floor: float | None, fails: float | None) -> bool:
    if floor is None or fails is None:
        return False
    return fails > floor if bound == "pass_above" else fails < floor


def _criterion(said: dict[str, Any], where: str) -> Criterion:
    try:
        return Criterion.model_validate(said)
    except ValidationError as error:
        problems = problems_of(error, said)
        raise rejected(
            [type(row)(path=where, message=f"{row.path}: {row.message}") for row in problems]
        ) from error
