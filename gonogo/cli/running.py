"""`gonogo run -- COMMAND`: supervise and judge any program, without a service and a checkout."""

import logging
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.exits import Accept, Exit, accepted, exit_of_verdict
from gonogo.cli.judging import explained, print_brief
from gonogo.cli.output import Json, print_json, say, shown_if_taken
from gonogo.cli.plans import placed, read_plan
from gonogo.cli.run_host import (
    UNREAD,
    JointStart,
    Nodes,
    RunHost,
    find_nodes,
    save_verdict,
    wait_for_verdict,
)
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.criterion import BUILT_IN_CRITERIA
from gonogo.contract.decision import CriterionOutcome, Verdict
from gonogo.contract.errors import Rejected, Unavailable, hint
from gonogo.contract.facts import ExitFacts
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.patterns import PATTERNS, guessed_patterns
from gonogo.contract.plan import DRIFTS, NEVER_WAIVED
from gonogo.contract.watch import ShortDeadline, Watch
from gonogo.contract.wire import Kind, new_id
from gonogo.judge.directory import judge_directory
from gonogo.planning.programs import read_launch_line
from gonogo.planning.resolve import (
    build_command_order,
    build_order,
    load_train_config,
    resolve_plan,
    warnings_of,
)
from gonogo.rundir import NO_SERVICE, SHIPPED_NAME, RunDir, load_record, save_json
from gonogo.signing import own_signing_key
from gonogo.supervise.launch.command import OBSERVE, check_patterns
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.preflight.host_checks import WITHOUT_SERVICE
from gonogo.trainer.heartbeat_writer import ATTACHED
from gonogo.trainer.identity import digest_files


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND…", help="Program and arguments, after --.")
    ],
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            help="Pattern of a line with a step: a regular expression with groups step, loss, lr,"
            f" grad_norm, tokens, toks_per_s, rank, or one of {', '.join(PATTERNS)}. Repeatable."
        ),
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Ranks on all nodes, if no launcher says.")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto", help="Nodes; start this line once on each. auto: as a launcher says."
        ),
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option(min=0, help="Number of this node, when no launcher sets it.")
    ] = None,
    master_addr: Annotated[
        str | None, typer.Option(help="Address of node 0, when no launcher sets it.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the run.")] = "",
    steps: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="Last step of a whole run; without it no run is GO."),
    ] = None,
    stall_s: Annotated[
        float | None,
        typer.Option(min=1.0, max=1e9, help="Halt after so many seconds without a step."),
    ] = None,
    plan: Annotated[str | None, typer.Option(help="Gate and identity of this plan.")] = None,
    phase: Annotated[str | None, typer.Option(help="Phase of that plan.")] = None,
    waive: Annotated[
        list[str] | None,
        typer.Option(help="Criterion that may stay unobserved (CONDITIONAL_GO then). Repeatable."),
    ] = None,
    allow_drift: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What may differ between ranks (CONDITIONAL_GO then): {', '.join(DRIFTS)}."
        ),
    ] = None,
    observe: Annotated[
        bool,
        typer.Option(
            "--observe/--no-observe",
            envvar=OBSERVE,
            help="Observe PyTorch from within; else only its output is read.",
        ),
    ] = True,
    accept: Accept = None,
    as_json: Json = False,
) -> None:
    """Run any program here, supervise it, and judge it; no service is needed."""
    settings = load_settings()
    logging.getLogger("gonogo").addHandler(logging.NullHandler())
    part = find_nodes(nodes, node_rank, master_addr, settings.inherited)
    runs = settings.home / "runs"
    joint = None if part is None else JointStart(runs, settings.home / "starts", part)
    if shutil.which(command[0], path=settings.inherited.get("PATH")) is None:
        raise Rejected(f"{command[0]}: no such program can be started here{_hint(command[0])}")
    count = 1 if part is None else part.count
    order = order_of(
        command,
        pattern or [],
        ranks_of(command, world_size, count, observe=observe),
        name,
        steps,
        stall_s,
        waive or [],
        allow_drift or [],
        nodes=count,
        observe=observe,
    )
    if (plan is None) != (phase is None):
        raise Rejected("--plan and --phase go together")
    if plan is not None and phase is not None:
        own = {"--steps": steps, "--stall-s": stall_s, "--world-size": world_size}
        order = under_plan(order, plan, phase, own)
    check_waivers(order)
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    runs.mkdir(parents=True, exist_ok=True)
    own_signing_key(settings.home)  # fails now rather than after the run
    if part is not None and joint is not None and part.node > 0:
        led = RunDir(runs / joint.follow())
        raise typer.Exit(accepted(_follow_node_0(led, part, settings, as_json), accept))
    run_dir = RunDir(runs / order.run)
    make_run = partial(_make_run, run_dir, order)
    joint.lead(make_run) if joint is not None else make_run()
    say(f"{order.run} in {run_dir.path}")
    interrupted = RunHost(
        order=order,
        run_dir=run_dir,
        settings=settings,
        place=Place.of(order.document()),
        address=None if part is None else part.address,
        quiet=as_json,
    ).supervise()
    document = _judge(run_dir, settings.home)
    code = exit_of_verdict(Verdict(document["verdict"]) if document["verdict"] else None)
    if joint is not None:
        save_verdict(run_dir, code)
    advice = [
        *advise_run(
            order,
            document,
            heard=sorted(run_dir.ranks()),
            read=not (run_dir.path / ATTACHED).exists(),
            planned=plan is not None,
            stopped=interrupted,
        )
    ]
    with shown_if_taken():
        if as_json:
            print_json({**explained(document, run_dir.path), "advice": advice})
        else:
            advice = print_brief(document, run_dir.path, advice)
    for text in advice:
        say(text)
    if interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    raise typer.Exit(accepted(code, accept))


def _make_run(run_dir: RunDir, order: Order) -> str:
    run_dir.path.mkdir()
    save_json(run_dir.order, order.document())
    (run_dir.path / SHIPPED_NAME).write_text(f"gonogo run: {NO_SERVICE} of it\n")
    return order.run


def _follow_node_0(run_dir: RunDir, part: Nodes, settings: Settings, as_json: bool) -> int:
    order = load_record(run_dir.order, Order)
    if order is None:
        raise Unavailable(f"{run_dir.order} cannot be seen from {os.uname().nodename}")
    say(f"node {part.node} of {order.run} in {run_dir.path}")
    place = Place.of(order.document(), part.node)
    host = RunHost(order=order, run_dir=run_dir, settings=settings, place=place, quiet=as_json)
    if host.supervise():
        return Exit.INTERRUPTED
    return wait_for_verdict(run_dir)


def _hint(word: str) -> str:
    if word.endswith(".py") and Path(word).is_file():
        return f"; did you mean python {word}?"
    return "; did you mean it without quotes?" if " " in word else ""


def _judge(run_dir: RunDir, home: Path) -> dict[str, Any]:
    document: dict[str, Any] = judge_directory(run_dir.path, key=own_signing_key(home))
    (home / "decisions").mkdir(exist_ok=True)
    save_json(home / "decisions" / f"{document['id']}.json", document)
    return document


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
    """Return the script's files and identity, of an order whose number of ranks nobody says."""
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
    """Return the watch of a program whose steps, with their batch, take at most so long."""
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


def advise_run(
    order: Order,
    document: Mapping[str, Any],
    *,
    heard: Sequence[int],
    read: bool,
    planned: bool,
    stopped: bool = False,
) -> Iterator[str]:
    """Yield advice, the most useful first; little for a run that failed or was stopped.

    `heard`: ranks of which a line came; `read`: whether the program is known by its output alone.
    """
    facts, verdict, steps = document["facts"], document["verdict"], order.steps
    rows, ranks = document["criteria"], facts["ranks"].values()
    open_ = {row["id"] for row in rows if row["outcome"] == CriterionOutcome.INCONCLUSIVE}
    if (many := max(heard, default=-1) + 1) > order.world_size:
        what = "correct workload.world_size in the plan" if planned else f"say --world-size {many}"
        yield f"{many} ranks were heard and {order.world_size} ordered: {what}"
    if stopped or (facts["outcome"] or {}).get("code") == OutcomeCode.PREFLIGHT_FAILED:
        return
    failed = verdict == Verdict.NO_GO
    count = _counted_steps(facts, steps) if failed or not read else None
    if count is not None:
        remedy = f"say --steps {count} before the --"
        if planned:
            remedy = f"correct the steps of the plan to {count}"
        yield f"{count} steps were counted: {remedy} if that is a whole run"
    if not failed:
        if read:
            yield from _advise_reading(order, facts, open_, heard, planned=planned)
        elif "completed" in open_ and any(row["done_step"] is None for row in ranks):
            yield (
                "a script reports its end by leaving its block without an error: with"
                " gonogo.trainer.attach() as beat (docs/how-to/attach.md)"
            )
        if open_ and steps is None and count is None:
            yield "the last step of a whole run is unknown: say --steps N before the --"


def _advise_reading(
    order: Order,
    facts: Mapping[str, Any],
    open_: Set[str],
    heard: Sequence[int],
    *,
    planned: bool,
) -> Iterator[str]:
    """Yield what opens the verdict of a program that is known by its output alone."""
    if not heard:
        if open_:
            yield UNREAD
        return
    if order.steps is not None and "completed" in open_:
        last = max((row["last_step"] for row in facts["ranks"].values()), default=0)
        yield (
            f"its lines do not prove a whole run (step {last} of {order.steps}): print a number"
            " that counts the whole run, correct --steps or --pattern, or attach it; behind a"
            " shell, write exec before its command"
        )
    if open_ and len(heard) < order.world_size and not planned:
        yield (
            f"only rank {', '.join(map(str, heard))} of {order.world_size} was heard: if one prints"
            " for all, leave --world-size out"
        )
    missing = [name for name in ("identity", "coverage") if name in open_ - set(order.waive)]
    if missing and (planned or "completed" not in open_):
        waivers = " ".join(f"--waive {name}" for name in missing)
        accept = "take CONDITIONAL_GO for success: --accept conditional"
        yield (
            f"a program that is only read cannot report {' and '.join(missing)}: attach it"
            " (three lines, docs/how-to/attach.md), or"
            f" {f'go without: {waivers}' if planned else accept}"
        )


def _counted_steps(facts: Mapping[str, Any], steps: int | None) -> int | None:
    """Return the steps of a clean command, if all ranks agree on another number than ordered."""
    counts = {max(row["done_step"] or 0, row["last_step"]) for row in facts["ranks"].values()}
    ended = facts["exit"] and ExitFacts.model_validate(facts["exit"])
    clean = ended is not None and ended.agent is not None and ended.agent.clean
    count = counts.pop() if len(counts) == 1 and clean else 0
    return count if count > 0 and count != steps else None
