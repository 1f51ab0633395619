"""How does a submission become what an experiment freezes? Pure, but for reading configurations.

`resolve_plan` lays the overrides over the plan, finds the whole training configuration, and refuses
what would fail later, every problem at once. `ordering.build_order` writes one run's order from it.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

from pydantic import ValidationError

from gonogo.contract.canonical import digest
from gonogo.contract.errors import Corrupt, Problem, Rejected, hint, near
from gonogo.contract.plan import Phase, Plan, hardware_profiles, parse_fault
from gonogo.contract.workload import Patch
from gonogo.environment_names import LISTED, NO_SECRET, SECRETIVE, may_hold_secret, referred
from gonogo.judge.failures import library
from gonogo.judge.gate.conditions import END
from gonogo.planning.ordering import FROZEN as FROZEN
from gonogo.planning.ordering import OF_THE_PHASE, gate_of, lay, merged, unknown_placeholders
from gonogo.planning.ordering import build_command_order as build_command_order
from gonogo.planning.ordering import build_order as build_order
from gonogo.planning.programs import Layer, environments, patches, unlisted
from gonogo.planning.source import (
    Keys,
    WorkloadSchema,
    bundled_plan,
    bundled_plan_names,
    overridden,
    problems_of,
    refuse,
    rejected,
    unknown_metrics,
    workload_schema,
)
from gonogo.planning.source import ResolvedPlan as ResolvedPlan
from gonogo.planning.source import checkout_root as checkout_root
from gonogo.planning.source import load_train_config as load_train_config
from gonogo.watch.registry import plugins

LATEST_S = 24 * 3600.0


def late_checkpoints(plan: Plan, train: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the phases whose first checkpoint is to be expected later than `LATEST_S`."""
    step_s = expected_step_s(plan, train)
    for phase in plan.phases:
        first_s = first_checkpoint_s(phase, step_s)
        if first_s is None or first_s <= LATEST_S:
            continue
        said = phase.checkpoint.model_dump(include={"every_steps", "every_s"}, exclude_none=True)
        found = ", ".join(f"{name} {value:g}" for name, value in said.items()) or "none"
        pace = "" if step_s is None else f" at {step_s:.0f} s a step (the floor's pace)"
        yield Problem(
            path=f"phases.{phase.name}.checkpoint",
            message=f"found {found}: the first checkpoint comes after {first_s / 3600:.0f} h{pace};"
            f" expected every_steps or every_s so that it comes within {LATEST_S / 3600:.0f} h",
        )


def expected_step_s(plan: Plan, train: Mapping[str, Any]) -> float | None:
    """Return the seconds of a step at the floor that the plan or its profile names."""
    floor = plan.watch.slow.floor_tok_s or hardware_profiles()[plan.profile].floor_tok_s
    model, batch = train.get("model"), train.get("batch")
    if floor is None or not isinstance(model, Mapping) or not isinstance(batch, Mapping):
        return None
    seq_len, sequences = model.get("seq_len"), batch.get("global_seqs")
    if not isinstance(seq_len, int | float) or not isinstance(sequences, int | float):
        return None
    return seq_len * sequences / floor


def first_checkpoint_s(phase: Phase, step_s: float | None) -> float | None:
    """Return when a phase's first checkpoint is to be expected, in seconds; None = nothing says.

    The last step is saved too; without a cadence all is lost until the phase ends.
    """
    cadence = phase.checkpoint
    times = [] if cadence.every_s is None else [cadence.every_s]
    if step_s is not None:
        times.append(min(cadence.every_steps or phase.steps, phase.steps) * step_s)
    return min(times, default=None)


def problems_in(
    plan: Plan, train: Mapping[str, Any], schema: WorkloadSchema | None
) -> Iterator[Problem]:
    """Yield everything that would fail once a run is started, each place once."""
    found = chain(
        unknown_metrics(plan),
        _taken_names(plan),
        _unknown_remedies(plan),
        _refused_by_plugins(plan),
        _said_elsewhere(plan),
        _without_weights(plan),
        _uneven(plan),
        _needless_args(plan),
        _unlisted(plan),
        _in_clear(plan),
        (Problem(path=where, message=text) for where, text in unknown_placeholders(plan, train)),
        late_checkpoints(plan, train),
        _unreadable(plan, train),
        () if schema is None else _refused_by_workload(plan, train, schema),
    )
    told: set[Problem] = set()
    for row in found:  # no more is looked for than somebody reads
        if row not in told:
            told.add(row)
            yield row


def warnings_of(plan: Plan) -> list[str]:
    """Return what is accepted and may still come to nothing, one sentence each."""
    found = []
    if plan.remedies and not plan.max_remedies:
        found.append("remedies: max_remedies is 0, so none is ever tried")
    found += [
        f"phase {row.name} has no gate: its verdict is CONDITIONAL_GO at best"
        for row in plan.phases
        if not row.gate and row.steps > 1
    ]
    last = plan.phases[-1]
    if last.approve == "always":
        where = f"phases.{last.name}.approve"
        found.append(f"{where}: no phase follows that a person could let begin: nobody is asked")
    found += _owed_by_a_script(plan)
    return found


def _owed_by_a_script(plan: Plan) -> Iterator[str]:
    """Yield what its phases' `data` ask of a program of somebody's own, which may not know it."""
    owed = [phase for phase in plan.phases if phase.data is not None]
    told = plan.ours or (plan.identity is not None and plan.identity.dataset is not None)
    if owed and not told:
        yield (
            f"{', '.join(f'phases.{phase.name}.data' for phase in owed)}: a script that is attached"
            f" begins only with attach(identity={{'dataset': {owed[0].data!r}}}); leave"
            " data out where it does not"
        )


def _taken_names(plan: Plan) -> Iterator[Problem]:
    if END in (phase.name for phase in plan.phases):
        message = f"`due: {END}` is when all phases are over; expected another name of a phase"
        yield Problem(path=f"phases.{END}.name", message=message)


def _unknown_remedies(plan: Plan) -> Iterator[Problem]:
    known = [*library(), *(row.name for row in plan.failures)]
    for name in plan.remedies:
        if name not in known:
            message = f"unknown diagnosis {name!r}; {hint(name, known)}"
            yield Problem(path=f"remedies.{name}", message=message)


def _refused_by_plugins(plan: Plan) -> Iterator[Problem]:
    there = {str(row.name): row.Settings for row in plugins()} if plan.watch.plugins else {}
    for name, said in plan.watch.plugins.items():
        where, settings = f"watch.plugins.{name}", there.get(name)
        if name not in there:
            message = f"no installed package brings a detector {name!r}; {hint(name, there)}"
            yield Problem(path=where, message=message)
            continue
        takes = {} if settings is None else settings.model_fields
        for key in sorted(said.keys() - takes.keys()):
            yield Problem(path=f"{where}.{key}", message=f"unknown key {key!r}; {hint(key, takes)}")
        try:
            if settings is not None:
                settings.model_validate({key: said[key] for key in said.keys() & takes.keys()})
        except ValidationError as error:
            for row in error.errors(include_url=False):
                path = ".".join([where, *map(str, row["loc"])])
                yield Problem(path=path, message=f"found {row['input']!r}; {row['msg']}")


def _said_elsewhere(plan: Plan) -> Iterator[Problem]:
    """Yield keys of our configuration in a place where they would not count."""
    if not plan.ours:
        return
    phases = [(f"phases.{phase.name}", phase.train) for phase in plan.phases]
    for where, train in [("", plan.train), *phases]:
        for name, place in OF_THE_PHASE.items():
            if name in train:
                path = f"{where}.train.{name}".removeprefix(".")
                yield Problem(path=path, message=f"is said by {place}; expected it there alone")
    for where, patch in [
        *patches(plan),
        *((where, Patch(train=train)) for where, train in phases),
    ]:
        for name in ("config", "steps"):
            if name in patch.train and not (name == "steps" and where.startswith("phases.")):
                message = "is the plan's (and no patch's) to say"
                yield Problem(path=f"{where}.train.{name}", message=message)


def _layers(plan: Plan) -> list[Layer]:
    """Return everything that changes the workload: phases, variants and remedies."""
    return [*((f"phases.{row.name}", row) for row in plan.phases), *patches(plan)]


def _uneven(plan: Plan) -> Iterator[Problem]:
    nodes = plan.workload.nodes
    if nodes == 1:
        return
    changes = [(f"{where}.workload", patch.workload.world_size) for where, patch in _layers(plan)]
    for where, world_size in [("workload", plan.workload.world_size), *changes]:
        if world_size is not None and world_size % nodes:
            message = f"found {world_size}; expected a multiple of workload.nodes, {nodes}"
            yield Problem(path=f"{where}.world_size", message=message)


def _needless_args(plan: Plan) -> Iterator[Problem]:
    """Yield arguments of what takes none: a command has its own, nsa.train its configuration."""
    commands = [plan.workload.command, *(patch.workload.command for _, patch in _layers(plan))]
    if plan.workload.args and (plan.ours or any(commands)):
        whose = "nsa.train reads train" if plan.ours else "a command has its own"
        yield Problem(path="workload.args", message=f"expected none: {whose}")


def _unlisted(plan: Plan) -> Iterator[Problem]:
    """Yield the environment that no worker sets for our own trainer, which does not read it."""
    for where, name in unlisted(plan) if plan.ours else ():
        meant = near(name, LISTED)
        hinted = (
            f"did you mean {meant[0]}?" if meant else "docs/how-to/plans.md lists what workers set"
        )
        yield Problem(path=f"{where}.env.{name}", message=f"no worker sets it; {hinted}")


def _in_clear(plan: Plan) -> Iterator[Problem]:
    """Yield secrets that the plan, which many may read, would hold in clear."""
    for where, env in environments(plan):
        for name, value in env.items():
            message = _wrong_secret(name, value) if value else None
            if message is not None:
                yield Problem(path=f"{where}.env.{name}", message=message)


def _wrong_secret(name: str, value: str) -> str | None:
    try:
        if referred(value) is not None:
            return None if may_hold_secret(name) else NO_SECRET
        if not SECRETIVE.fullmatch(name):
            return None
    except ValueError as error:
        return str(error)
    return "is a secret: say `secret:NAME`, and put it into $GONOGO_HOME/secrets/NAME"


def _without_weights(plan: Plan) -> Iterator[Problem]:
    """Yield phases whose weights another one begins with, and that save none."""
    for phase in plan.phases:
        if phase.init_from is None:
            continue
        cadence = plan.phase(phase.init_from).checkpoint
        if cadence.every_steps is None and cadence.every_s is None:
            message = (
                f"found none; expected every_steps or every_s: {phase.name} begins with its weights"
            )
            yield Problem(path=f"phases.{phase.init_from}.checkpoint", message=message)


def _unreadable(plan: Plan, train: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what the judge could not read of a configuration that nobody else checks."""
    try:
        digest(train)
    except Corrupt as error:
        yield Problem(path="train", message=error.detail)
    evals = train.get("eval")
    every = evals.get("every_steps") if isinstance(evals, Mapping) else None
    if not (every is None or (type(every) is int and 0 <= every <= 10**9)):
        message = f"found {every!r}; expected a whole number of steps"
        yield Problem(path="train.eval.every_steps", message=message)


def _refused_by_workload(
    plan: Plan, train: Mapping[str, Any], schema: WorkloadSchema
) -> Iterator[Problem]:
    """Yield what the workload refuses of each phase, and of each phase under each patch."""
    for phase in plan.phases:
        own: list[Layer] = [(f"phases.{phase.name}", phase)]
        for layers in (own, *([*own, layer] for layer in patches(plan))):
            change = layers[1][1] if len(layers) > 1 else None
            told = lay(plan, phase, train, change, schema=schema)
            for row in schema.violations(told.train, told.env, told.world_size):
                yield Problem(path=_place(row.path, layers), message=row.message)


def _place(path: Keys, layers: list[Layer]) -> str:
    """Return the place in the plan that sets a path of a run: the last layer that has it."""
    for prefix, patch in reversed(layers):
        if _says(patch, path):
            return ".".join((prefix, *path))
    if path == ("world_size",) or path[0] == "env":
        return ".".join(("workload", *path))
    if len(path) == 2 and path[1] in OF_THE_PHASE:
        return OF_THE_PHASE[path[1]].replace("phases.NAME", layers[0][0])
    return ".".join(path)


def _says(patch: Patch, path: Keys) -> bool:
    if path[0] == "world_size":
        return patch.workload.world_size is not None
    node: Any = patch.env if path[0] == "env" else patch.train
    for part in path[1:]:
        if not isinstance(node, Mapping):
            return True
        if part not in node:
            return False
        node = node[part]
    return bool(node) or len(path) > 1


def resolve_plan(
    data: Mapping[str, Any],
    sets: Mapping[str, Any] | None = None,
    *,
    load_config: Callable[[str], Mapping[str, Any]] = load_train_config,
    schema_of: Callable[[str | None], WorkloadSchema | None] = workload_schema,
) -> ResolvedPlan:
    """Return the frozen form of a submission; `fault` among the sets is a fault to inject."""
    sets = dict(sets or {})
    fault = sets.pop("fault", None)
    data, wrong = overridden(data, sets)
    try:
        plan = Plan.model_validate(data)
    except ValidationError as error:
        found = chain(wrong, problems_of(error, data))
        raise rejected(found, "set " if wrong else "plan: ") from error
    if plan.campaign is not None:
        raise Rejected(
            f"plan {plan.name} is a campaign, which compares several runs:"
            " gonogo campaign submit takes it as it is"
        )
    if fault is not None:
        if not plan.allow_faults:
            raise Rejected(f"plan {plan.name} does not allow faults (allow_faults: false)")
        parse_fault(str(fault), plan)
    schema = schema_of(plan.workload.program)
    train = dict(plan.train)
    if plan.ours:
        train = merged(load_config(plan.train["config"]), plan.train, schema)
    refuse(chain(wrong, problems_in(plan, train, schema)), "set " if wrong else "plan: ")
    for phase in plan.phases:  # every gate must fit the profile
        gate_of(phase, hardware_profiles()[plan.profile], plan.profile)
    resolved = ResolvedPlan.of(plan, train, None if fault is None else str(fault))
    try:
        resolved.plan_digest()
    except Corrupt as error:
        raise rejected([Problem(path="", message=error.detail)]) from error
    return resolved


def is_bundled(name: str, plan: Mapping[str, Any]) -> bool:
    """Say whether a frozen plan is the one of that name that ships with gonogo, unchanged."""
    return name in bundled_plan_names() and _bundled_frozen(name) == dict(plan)


@cache
def _bundled_frozen(name: str) -> dict[str, Any]:
    return resolve_plan(bundled_plan(name)).plan
