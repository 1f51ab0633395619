"""How does a phase of a plan become an order? Pure.

Identity before speed: the order says what must run, taken from the configuration (or, for a foreign
workload, from what the plan declares), and `null` only where nothing can be known beforehand.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gonogo.contract.canonical import digest
from gonogo.contract.criterion import DEVICE_METRICS, Criterion
from gonogo.contract.errors import hint
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
from gonogo.contract.patterns import guessed_patterns
from gonogo.contract.plan import HardwareProfile, Phase, Plan, hardware_profiles, parse_fault
from gonogo.contract.records import PREFLIGHT_CHECKS, SANITY
from gonogo.contract.watch import Watch, bounded
from gonogo.contract.workload import Patch, RecordedPatch, is_ours
from gonogo.placeholders import AT_START, fill, mentions, names_in
from gonogo.planning.programs import Layer, patches
from gonogo.planning.source import (
    ResolvedPlan,
    WorkloadSchema,
    problems_of,
    rejected,
    workload_schema,
)
from gonogo.watch.registry import detector_names, made_by

OF_THE_PHASE = {
    "steps": "phases.NAME.steps",
    "data": "phases.NAME.data",
    "parallel": "workload.parallel",
}
"""What a plan says elsewhere than in `train`, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """Configuration, environment and start of a run."""

    train: dict[str, Any]
    env: dict[str, str]
    world_size: int
    command: list[str] | None


def lay(
    plan: Plan,
    phase: Phase,
    train: Mapping[str, Any],
    change: Patch | None = None,
    *,
    carried: Sequence[Patch] = (),
    schema: WorkloadSchema | None = None,
) -> Laid:
    """Return what a run of a phase gets; unchanged parts are shared with `train`.

    Over the plan's whole configuration `train` come the phase's own patch, the `carried` remedies
    of earlier phases, and `change`. The schema has the defaults of missing sections. A patch may
    change data and parallel of our own workload, but never the steps of a gate.
    """
    layers = [phase, *carried] if change is None else [phase, *carried, change]
    found = dict(train)
    if plan.ours:
        found.update(steps=phase.steps, data=phase.data, parallel=plan.workload.parallel)
    env: dict[str, str] = dict(plan.workload.env)
    world_size, command = plan.workload.world_size, plan.workload.command
    for layer in layers:
        env = _environment(env, layer.env)
        found = merged(found, layer.train, schema)
        world_size = layer.workload.world_size or world_size
        command = layer.workload.command or command
        if plan.ours and layer.workload.parallel is not None:
            found["parallel"] = layer.workload.parallel
    return Laid(train=found, env=env, world_size=world_size, command=command)


def merged(
    base: Mapping[str, Any],
    patch: Mapping[str, Any],
    schema: WorkloadSchema | None = None,
    at: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return `base` with `patch` laid over it, mappings key by key.

    A section that `base` lacks begins with what its absence amounts to, where the schema says it.
    """
    result = dict(base)
    for key, value in patch.items():
        below = result.get(key)
        place = (*at, key)
        if isinstance(value, Mapping):
            if below is None and schema is not None:
                below = schema.section_default(place)
            if isinstance(below, Mapping):
                result[key] = merged(below, value, schema, place)
                continue
        result[key] = deepcopy(value)
    return result


def _environment(base: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    found = {**base, **patch}
    return {name: value for name, value in found.items() if value is not None}


def values_of(train: Mapping[str, Any], steps: int) -> dict[str, str]:
    """Return what stands for each name: a text as it is, any other value as JSON."""
    values = dict(_leaves("", train))
    if "lr" not in values and "optim.lr" in values:
        values["lr"] = values["optim.lr"]
    return {**values, "steps": str(steps)}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if path:
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(f"{path}.{key}".lstrip("."), below)


def fill_order(laid: Laid, args: Collection[str], steps: int) -> dict[str, Any]:
    """Return the words of a foreign program's order, filled as far as the order knows them."""
    values = values_of(laid.train, steps)

    def filled(words: Iterable[str]) -> list[str]:
        return [fill(word, values, later=AT_START) for word in words]

    found = {"command": filled(laid.command or ()), "args": filled(args)}
    env = dict(zip(laid.env, filled(laid.env.values()), strict=True))
    held = {**found, "env": list(env.values())}
    later = [name for name, rows in held.items() if any(mentions(row, AT_START) for row in rows)]
    return {**found, "command": found["command"] or None, "env": env, "filled_at_start": later}


def unknown_placeholders(plan: Plan, train: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield where a plan has a placeholder that nothing can fill, and what is wrong with it.

    Each phase is looked at, and each phase under each patch that may lie over it.
    """
    changes: list[Layer | None] = [None, *patches(plan)]
    for phase in plan.phases:
        for change in changes:
            laid = lay(plan, phase, train, None if change is None else change[1])
            yield from _unknown(plan, phase, laid, change)


def _unknown(
    plan: Plan, phase: Phase, laid: Laid, change: Layer | None
) -> Iterator[tuple[str, str]]:
    if plan.ours and laid.command is None:
        return  # its environment has a schema of its own
    values = values_of(laid.train, phase.steps)
    layers: list[Layer] = [(f"phases.{phase.name}", phase), *([] if change is None else [change])]
    command = laid.command or ()
    at = _last([where for where, layer in layers if layer.workload.command])
    for index, word in enumerate(command):
        if index == 0 and any(names_in(word)):
            yield f"{at}.command", f"found {word!r}; the program itself takes no placeholder"
        else:
            yield from ((f"{at}.command", text) for text in _wrong(word, values))
    for word in plan.workload.args if laid.command is None else ():
        yield from (("workload.args", text) for text in _wrong(word, values))
    for name, value in laid.env.items():
        where = next((w for w, layer in reversed(layers) if name in layer.env), "workload")
        yield from ((f"{where}.env.{name}", text) for text in _wrong(value, values))


def _last(places: list[str]) -> str:
    return f"{places[-1]}.workload" if places else "workload"


def _wrong(text: str, values: Mapping[str, str]) -> Iterator[str]:
    for name in names_in(text):
        if name in AT_START:
            continue
        if name not in values:
            known = [*sorted(values), *sorted(AT_START)]
            yield f"unknown placeholder {{{name}}}; {hint(name, known)}, or {{{{{name}}}}} as text"
        elif "\0" in values[name]:
            yield f"{{{name}}}: holds characters that no process can be given"


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

    `frozen` is what the first run reported of FROZEN; `carried` lies under `change`.
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
    filled = {"env": told.env} if ours else fill_order(told, args, phase.steps)
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
        cwd=plan.workload.cwd,
        files=list(plan.workload.files),
        patterns=guessed_patterns(phase.steps) if told.command is not None else [],
        patterns_guessed=told.command is not None,
        init_from=phase.init_from,
        resume_from=resume_from,
        train=deepcopy(told.train),
        **filled,
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
    """Return the order of a command that no plan knows; `stall_s` is the limit of every place."""
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
    name, spec = parse_fault(resolved.fault, plan)
    return spec if name == phase.name else None


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
