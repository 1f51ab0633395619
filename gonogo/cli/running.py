"""`gonogo run -- COMMAND`: supervise and judge any program, without a service and a checkout.

The command is started once, as written, in this folder and environment. With `--nodes` the same
line is typed once on each node (`gonogo.cli.joint_start`). The keeper has a session of its own, so
the run survives this process and its terminal.
"""

import logging
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.exits import Accept, Exit, accepted, exit_of_verdict
from gonogo.cli.joint_start import JointStart, Nodes, find_nodes, save_verdict, wait_for_verdict
from gonogo.cli.judging import explained, print_brief, print_judged
from gonogo.cli.output import Json, print_json, say, shown_if_taken
from gonogo.cli.run_advice import advise_run
from gonogo.cli.run_host import RunHost
from gonogo.cli.run_order import check_waivers, order_of, ranks_of, under_plan
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.decision import Verdict
from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.order import Order
from gonogo.contract.patterns import PATTERNS
from gonogo.contract.plan import DRIFTS
from gonogo.judge.directory import judge_directory
from gonogo.rundir import NO_SERVICE, SHIPPED_NAME, RunDir, load_record, save_json
from gonogo.signing import own_signing_key
from gonogo.supervise.keeper.nodes import MEET_LIMIT_S
from gonogo.supervise.launch.command import OBSERVE
from gonogo.supervise.launch.nodes import Place


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
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Ranks on all nodes together; default: as many as a launcher's line says.",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Number of nodes; start this line once on each. auto: read it from the launcher"
            " (srun, mpirun, SkyPilot, dstack, JobSet).",
        ),
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option(min=0, help="Number of this node, when no launcher sets it.")
    ] = None,
    master_addr: Annotated[
        str | None, typer.Option(help="Address of node 0, when no launcher sets it.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Folder of run directories, shared by all nodes; else GONOGO_HOME/runs."
        ),
    ] = None,
    node_wait_s: Annotated[
        float, typer.Option(min=1.0, max=1e6, help="How long the nodes wait for each other.")
    ] = MEET_LIMIT_S,
    name: Annotated[str, typer.Option(help="Name of the run.")] = "",
    steps: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="Last step of a whole run; without it no run is GO."),
    ] = None,
    stall_s: Annotated[
        float | None,
        typer.Option(min=1.0, max=1e9, help="Halt after so many seconds without a step."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="Gate and identity of this plan."),
    ] = None,
    phase: Annotated[str | None, typer.Option(help="Phase of that plan.")] = None,
    waive: Annotated[
        list[str] | None,
        typer.Option(help="Criterion that may stay unobserved (CONDITIONAL_GO then). Repeatable."),
    ] = None,
    allow_drift: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What may differ between ranks (CONDITIONAL_GO then): {', '.join(DRIFTS)}."
            " Repeatable."
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
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="At the end, show each criterion and what was not observed."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run any program here, supervise it, and judge it; no service is needed."""
    settings = load_settings()
    logging.getLogger("gonogo").addHandler(logging.NullHandler())
    part = find_nodes(nodes, node_rank, master_addr, settings.inherited)
    runs = settings.home / "runs" if folder is None else folder.absolute()
    starts = settings.home / "starts" if folder is None else runs / ".starts"
    joint = None if part is None else JointStart(runs, starts, part, command, node_wait_s)
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
    advice = advise_run(order, run_dir, document, planned=plan is not None, stopped=interrupted)
    _print_end(document, run_dir.path, advice, verbose=verbose, as_json=as_json)
    if interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    raise typer.Exit(accepted(code, accept))


def _print_end(
    document: dict[str, Any], path: Path, advice: list[str], *, verbose: bool, as_json: bool
) -> None:
    with shown_if_taken():
        if as_json:
            print_json({**explained(document, path), "advice": advice})
            return
        if verbose:
            print_judged(document, path)
        else:
            advice = print_brief(document, path, advice)
    if verbose:
        say(
            f"recorded with hash {document['hash']}; gonogo replay {document['id']} derives it"
            " again, gonogo verify --anchor HASH shows later that it is still there"
        )
    for text in advice:
        say(text)


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
    if Path(word).is_file():
        return "; it is there, and no program: did you mean chmod +x, or its interpreter before it?"
    if " " in word:
        return "; did you mean it without quotes?"
    is_setting = re.match(r"[A-Za-z_]\w*=", word) is not None
    return f"; no shell reads this: did you mean env {word} …?" if is_setting else ""


def _judge(run_dir: RunDir, home: Path) -> dict[str, Any]:
    document: dict[str, Any] = judge_directory(run_dir.path, key=own_signing_key(home))
    (home / "decisions").mkdir(exist_ok=True)
    save_json(home / "decisions" / f"{document['id']}.json", document)
    return document
