"""Which programs, names, labels and hosts does a plan ask a worker for, and does it take it?"""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from gonogo.contract.plan import Plan
from gonogo.contract.workload import ANY, EngineName, Patch, is_allowed
from gonogo.environment_names import is_listed

_NODES = ("--nnodes", "--num-machines")
_RANKS = ("--nproc-per-node",)
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """What a launcher's options say."""

    launcher: str  # `torchrun` or `accelerate launch`.
    nodes: int | None = None  # `1:4`: the most; None: the line does not say it as a number.
    nodes_option: str = ""  # The option that says it, as it was typed.
    ranks_per_node: int | None = None  # None: the line does not say it as a number.
    has_ranks: bool = False  # Whether the line says it, as a number or not.


def read_launch_line(command: Sequence[str]) -> LaunchLine | None:
    """Return the options of a command's launcher; None if the command names none."""
    words = list(_words(command))
    for at, word in enumerate(words):
        if PurePath(word).name == "torchrun" or word in _MODULES:
            return _read("torchrun", words[at + 1 :])
        if PurePath(word).name == "accelerate" and words[at + 1 : at + 2] == ["launch"]:
            return _read("accelerate launch", words[at + 2 :])
    return None


def _words(command: Sequence[str]) -> Iterator[str]:
    for before, word in zip(("", *command), command, strict=False):
        try:
            yield from shlex.split(word) if before == "-c" else [word]
        except ValueError:  # an open quote: the shell will say so
            yield word


def _read(launcher: str, words: Sequence[str]) -> LaunchLine:
    said: dict[str, tuple[str, str]] = {}
    for at, word in enumerate(words):
        if word.endswith(".py"):  # what follows is the script's
            break
        typed, equals, value = word.partition("=")
        option = typed.replace("_", "-")
        if option in (*_NODES, *_RANKS):
            value = value if equals else "".join(words[at + 1 : at + 2])
            said[option] = f"{typed} {value}", value
        elif option == "--standalone":
            said["--nnodes"] = typed, "1"
    nodes = next((said[name] for name in _NODES if name in said), None)
    ranks = next((said[name] for name in _RANKS if name in said), None)
    return LaunchLine(
        launcher=launcher,
        nodes=None if nodes is None else _whole(nodes[1].rpartition(":")[2]),
        nodes_option="" if nodes is None else f"{launcher} {nodes[0]}",
        ranks_per_node=None if ranks is None else _whole(ranks[1]),
        has_ranks=ranks is not None,
    )


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


Layer = tuple[str, Patch]  # A place in the plan, and what is changed there.


def patches(plan: Plan) -> Iterator[Layer]:
    """Yield every patch that a plan may lay over a phase: variants, then remedies."""
    for index, variant in enumerate(plan.confirm.variants if plan.confirm else []):
        yield f"confirm.variants.{index}", variant
    for name, remedy in plan.remedies.items():
        yield f"remedies.{name}", remedy


def programs(plan: Plan) -> set[str]:
    """Return the entry or the first words of the commands that any run of a plan starts."""
    layers: list[Patch] = [*plan.phases, *(patch for _, patch in patches(plan))]
    commands = [plan.workload.command, *(layer.workload.command for layer in layers)]
    found = {command[0] for command in commands if command}
    return found | ({plan.workload.program} if plan.workload.program else set())


def environments(plan: Plan) -> Iterator[tuple[str, Mapping[str, str | None]]]:
    """Yield where a plan sets names of the environment, and which with what."""
    yield "workload", plan.workload.env
    yield from ((f"phases.{phase.name}", phase.env) for phase in plan.phases)
    yield from ((where, patch.env) for where, patch in patches(plan))


def unlisted(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield where a plan sets a name that is not on every host's list, and the name."""
    for where, env in environments(plan):
        yield from ((where, name) for name in env if not is_listed(name))


def allows(plan: Plan, allow: Collection[str], allow_env: Collection[str]) -> bool:
    """Say whether a worker that allows this takes every run of a plan."""
    if plan.ours:
        return True
    if not all(is_allowed(name, allow, plan.workload.cwd) for name in programs(plan)):
        return False
    return ANY in allow_env or all(name in allow_env for _, name in unlisted(plan))


def spans(plan: Plan, engine: EngineName) -> bool:
    """Say whether a worker of this engine starts a run on as many hosts as a plan says."""
    return plan.workload.nodes == 1 or engine is not EngineName.LOCAL


def lacks(plan: Plan, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that a plan asks for and a worker of these does not hold."""
    wanted = plan.workload.labels
    return {name: value for name, value in wanted.items() if labels.get(name) != value}


def needs(plan: Plan) -> str | None:
    """Return what a worker has to hold and allow for a plan, in a sentence; None: nothing."""
    return " and ".join(f"{name}={value}" for name, value in worker_settings(plan).items()) or None


def worker_settings(plan: Plan) -> dict[str, str]:
    """Return the settings with which a worker takes a plan, as its environment spells them."""
    said: dict[str, str] = {}
    if not plan.ours:
        said["GONOGO_WORKER_ALLOW"] = ",".join(sorted(programs(plan)))
        if names := {name for _, name in unlisted(plan)}:
            said["GONOGO_WORKER_ALLOW_ENV"] = ",".join(sorted(names))
    if plan.workload.labels:
        labels = sorted(plan.workload.labels.items())
        said["GONOGO_WORKER_LABELS"] = ",".join(f"{name}={value}" for name, value in labels)
    if plan.workload.nodes > 1:
        said["GONOGO_ENGINE"] = EngineName.SLURM.value
    return said
