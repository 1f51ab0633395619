"""What does `gonogo run` order? A command as it is written, or one under the phase of a plan."""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from gonogo.cli.output import say
from gonogo.cli.plan_arguments import placed, read_plan
from gonogo.contract.criterion import BUILT_IN_CRITERIA
from gonogo.contract.errors import Rejected, hint
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order
from gonogo.contract.patterns import PATTERNS, guessed_patterns
from gonogo.contract.plan import DRIFTS, NEVER_WAIVED
from gonogo.contract.watch import ShortDeadline, Watch
from gonogo.contract.wire import Kind, new_id
from gonogo.planning.programs import read_launch_line
from gonogo.planning.resolve import (
    build_command_order,
    build_order,
    load_train_config,
    resolve_plan,
    warnings_of,
)
from gonogo.rundir import is_text
from gonogo.supervise.launch.command import OBSERVE, check_patterns
from gonogo.supervise.preflight.host_checks import WITHOUT_SERVICE
from gonogo.trainer.identity import digest_files

LEAST_BATCH_S = 60.0
"""Least limit of a batch: the first one waits for a loader that starts."""
MOST_BATCH_S = 3600.0
"""As long as any plan may wait for one."""


def order_of(
    command: list[str],
    patterns: list[str],
    world_size: int | None,
    name: str,
    steps: int | None,
    stall_s: float | None,
    waive: list[str],
    allow_drift: list[str],
    nodes: int = 1,
    *,
    observe: bool = True,
) -> Order:
    """Return the order of a command that no plan knows."""
    here = os.getcwd()
    for word in (here, *command, name, *patterns):
        if not is_text(word):
            raise Rejected(f"{word!a}: no record can hold this: it is no UTF-8")
    _require_known("--allow-drift", allow_drift, DRIFTS)
    _require_known("--pattern", [text for text in patterns if text.isidentifier()], PATTERNS)
    chosen = [PATTERNS.get(text, text) for text in patterns]
    if (wrong := check_patterns(chosen)) is not None:
        raise Rejected(f"--{wrong}")
    order = build_command_order(
        command,
        experiment=new_id(Kind.EXPERIMENT),
        run=new_id(Kind.RUN),
        cwd=here,
        world_size=world_size or nodes,
        nodes=nodes,
        steps=steps,
        watch=_watch_of(stall_s),
        stall_s=stall_s,
        waive=waive,
        preflight=WITHOUT_SERVICE,
    )
    return order.model_copy(
        update={
            "plan": name,
            "patterns": chosen or guessed_patterns(steps),
            "patterns_guessed": not chosen,
            "allow_drift": allow_drift,
            **({} if observe else {"env": {OBSERVE: "0"}}),
            **({} if world_size else _by_script(command, here)),
        }
    )


def _by_script(command: list[str], folder: str) -> dict[str, Any]:
    """Return files and identity of an order whose number of ranks nobody says: its script's.

    A command without a script is expected to be one rank.
    """
    scripts = [word for word in command if word.endswith(".py") and Path(folder, word).is_file()]
    code = digest_files({"files": scripts[:1], "cwd": folder})
    return {"files": scripts[:1], "identity": Identity(**code)} if code else {}


def ranks_of(
    command: list[str], asked: int | None, nodes: int, *, observe: bool = True
) -> int | None:
    """Return how many ranks a command has; None if nobody says, on one node."""
    line = read_launch_line(command)
    if line is not None and line.nodes not in (None, nodes):
        if nodes == 1:
            raise Rejected(
                f"{line.nodes_option}: this would start one node's part of {line.nodes}. Start"
                f" gonogo run --nodes {line.nodes} --node-rank I -- … on each node, or with"
                " --nodes auto by a launcher (srun, mpirun); leave the option out for one node"
            )
        raise Rejected(f"{line.nodes_option}: --nodes says {nodes}; leave the option out")
    if asked is None and (observe or nodes > 1) and line is not None and line.has_ranks:
        if line.ranks_per_node is not None:
            return nodes * line.ranks_per_node
        if nodes > 1:
            raise Rejected("only a shell knows how many ranks a node has: say --world-size N")
    if asked is None:
        return None if observe and nodes == 1 else nodes
    if asked % nodes:
        raise Rejected(f"--world-size: found {asked}; expected a multiple of --nodes, {nodes}")
    return asked


def _require_known(option: str, found: Iterable[str], known: Collection[str]) -> None:
    for text in found:
        if text not in known:
            raise Rejected(f"{option}: found {text!r}; {hint(text, list(known))}")


def _watch_of(stall_s: float | None) -> Watch:
    """Return the watch of a program whose steps take at most so long, in a section or in none.

    A batch is part of its step. Checkpoints and evaluations that are named keep their own limits.
    """
    if stall_s is None:
        return Watch()
    limits = {"halt_s": stall_s, "suspect_s": min(10.0, stall_s / 2)}
    batch_s = min(max(stall_s, LEAST_BATCH_S), MOST_BATCH_S)
    deadlines = {"data": {"halt_s": batch_s, "suspect_s": min(120.0, batch_s / 2)}}
    if stall_s < ShortDeadline().halt_s:  # else D5 gives who computes there as long as D4 does
        deadlines["out_of_section"] = limits
    return Watch.model_validate(
        {"stall": {**limits, "early_s": stall_s}, "section_deadline": deadlines}
    )


def under_plan(order: Order, plan: str, phase: str, own: Mapping[str, object]) -> Order:
    """Return the order with gate, identity and watch of a plan's phase."""
    for option, value in own.items():
        if value is not None:
            raise Rejected(f"{option}: the plan says that; leave it out, or change the plan")
    argument = read_plan(plan)
    with placed(argument):
        resolved = resolve_plan(argument.data(), load_config=load_train_config)
        planned = build_order(resolved, phase, experiment=order.experiment, run=order.run, token=1)
    if planned.nodes != order.nodes:
        raise Rejected(f"--nodes: found {order.nodes}; the plan says {planned.nodes}")
    for text in warnings_of(resolved.parsed()):
        say(f"warning: {text}")
    mine = order.model_dump(include={"command", "entry", "cwd", "patterns", "patterns_guessed"})
    if order.patterns_guessed:
        mine["patterns"] = guessed_patterns(planned.steps)
    waive = [*planned.waive, *order.waive]
    said = {
        "filled_at_start": [name for name in planned.filled_at_start if name == "env"],
        "waive": waive,
        "preflight": order.preflight,
        "steps": planned.steps,
        "allow_drift": sorted({*planned.allow_drift, *order.allow_drift}),
    }
    changed = planned.model_copy(update={**mine, **said, "patience": {}})
    return changed.model_copy(update={"patience": changed.limits_of_places()})


def check_waivers(order: Order) -> None:
    """Refuse waivers of what is no criterion of the run, or must not be waived."""
    known = [*BUILT_IN_CRITERIA, *(row.id for row in order.gate)]
    for name in set(order.waive) & set(NEVER_WAIVED):
        raise Rejected(f"--waive {name}: without it nothing is proved")
    _require_known("--waive", order.waive, [name for name in known if name not in NEVER_WAIVED])
