"""`gonogo run -- COMMAND`: any program, supervised and judged, without a service and a checkout.

The command is started once, as it is written, in this folder and environment; with `--nodes` once
on each node, by the same line on each (`gonogo.cli.joint_start`). What it does is told
by its own heartbeats where it is attached (`gonogo.trainer`), else by what it prints. Its keeper
lives in a session of its own: this process may die, and the run goes on. Its terminal may go, or
whoever reads what it shows: it follows the run in silence, and judges it.
"""

import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.exits import Accept, Exit, accepted, exit_of_verdict
from gonogo.cli.following import Following, printed_lines
from gonogo.cli.interrupts import interrupt_on_signals, note_interrupts
from gonogo.cli.joint_start import JointStart, Nodes, find_nodes, save_verdict, wait_for_verdict
from gonogo.cli.judging import explained, print_brief, print_judged
from gonogo.cli.output import print_json, say, shown_if_taken
from gonogo.cli.printed_advice import advise_loss
from gonogo.cli.reach.completing import complete_plans
from gonogo.cli.run_advice import (
    advise,
    advise_drift,
    advise_ranks,
    advise_steps,
    error_told,
    has_some_losses,
    undone_ranks,
    unseen_ranks,
    went_on_after,
)
from gonogo.cli.run_order import check_waivers, order_of, ranks_of, under_plan
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.decision import Verdict
from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.patterns import PATTERNS
from gonogo.contract.plan import DRIFTS
from gonogo.device_slots import choose_together
from gonogo.files import is_there
from gonogo.judge.directory import judge_directory
from gonogo.rundir import NO_SERVICE, SHIPPED_NAME, RunDir, load_record, save_json
from gonogo.signing import own_signing_key
from gonogo.supervise.devices.choice import has_devices, visible_devices
from gonogo.supervise.devices.query import list_host_devices
from gonogo.supervise.end_request import reads_no_halt
from gonogo.supervise.exit_record import last_error_line
from gonogo.supervise.keeper.gone import tell_gone
from gonogo.supervise.keeper.kill import end_marked
from gonogo.supervise.keeper.meeting import MEET_LIMIT_S, find_port
from gonogo.supervise.keeper.part import save_refusal
from gonogo.supervise.late_look import look_late
from gonogo.supervise.launch.command import OBSERVE
from gonogo.supervise.launch.nodes import Place, rendezvous_ports
from gonogo.supervise.locks import (
    HOST_FOLDER,
    DeviceLocks,
    holding,
    keeper_lock,
    launch_lock,
    open_host_folder,
)
from gonogo.supervise.lost import end_lost
from gonogo.supervise.preflight.host_checks import check_host
from gonogo.supervise.processes import NODE_NAME
from gonogo.supervise.quarantine import without_quarantined
from gonogo.supervise.start import start_draining, start_keeper
from gonogo.trainer.line_file import ATTACHED

LAUNCH_WAIT_S = 60.0
_POLL_S = 0.1


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND…", help="Program and arguments, after --.")
    ],
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            help="How its lines tell steps: a regular expression with groups step, loss, lr,"
            f" grad_norm, tokens, toks_per_s, rank, or one of {', '.join(PATTERNS)}. Repeatable."
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="How many ranks it has, on all nodes; default: as many as a launcher's line says.",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="On how many nodes the command runs, started by this line once on each; auto: as"
            " the launcher tells (srun, mpirun, SkyPilot, dstack, JobSet).",
        ),
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option(min=0, help="Number of this node, where no launcher tells it.")
    ] = None,
    master_addr: Annotated[
        str | None, typer.Option(help="Address of node 0, where no launcher tells it.")
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
        float | None, typer.Option(min=1.0, max=1e9, help="Halt when no step has come for so long.")
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="Gate and identity of this plan.", autocompletion=complete_plans),
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
            help="Observe PyTorch from within; else only what it prints is known.",
        ),
    ] = True,
    accept: Accept = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="At the end, show each criterion and what was not observed."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The decision as one JSON object on stdout.")
    ] = False,
) -> None:
    """Run any program here, supervise it, and judge it; no service is needed."""
    settings = load_settings()
    logging.getLogger("gonogo").addHandler(logging.NullHandler())  # what matters is said below
    part = find_nodes(nodes, node_rank, master_addr, settings.inherited)
    runs = settings.home / "runs" if folder is None else folder.absolute()
    starts = settings.home / "starts" if folder is None else runs / ".starts"
    joint = None if part is None else JointStart(runs, starts, part, command, node_wait_s)
    if shutil.which(command[0], path=settings.inherited.get("PATH")) is None:
        raise Rejected(f"{command[0]}: no such program can be started here{_meant(command[0])}")
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
    beside = {"--steps": steps, "--stall-s": stall_s, "--world-size": world_size is not None}
    order = _lay_plan(order, plan, phase, [option for option, said in beside.items() if said])
    check_waivers(order)
    _make_folders(settings, runs)
    if part is not None and joint is not None and part.node > 0:  # it would refuse the same
        led = RunDir(runs / joint.follow())
        raise typer.Exit(accepted(_follow_node_0(led, part, settings, as_json), accept))
    run_dir = RunDir(runs / order.run)
    if joint is None:
        _make_run(run_dir, order)
    else:
        joint.lead(partial(_make_run, run_dir, order))
    say(f"{order.run} in {run_dir.path}")
    place = Place.of(order.document())
    address = None if part is None else part.address
    interrupted = _supervise(order, run_dir, settings, place, quiet=as_json, address=address)
    document = _judge(run_dir, settings.home)
    verdict = document["verdict"]
    code = exit_of_verdict(Verdict(verdict) if verdict else None)
    if joint is not None:
        save_verdict(run_dir, code)
    said = _advise(order, run_dir, document, planned=plan is not None, interrupted=interrupted)
    with shown_if_taken():
        if as_json:
            print_json({**explained(document, run_dir.path), "advice": said})
        elif verbose:
            print_judged(document, run_dir.path)
        else:
            said = print_brief(document, run_dir.path, said)
    if verbose and not as_json:
        say(
            f"recorded with hash {document['hash']}; gonogo replay {document['id']} derives it"
            " again, gonogo verify --anchor HASH shows later that it is still there"
        )
    for text in [] if as_json else said:
        say(text)
    if interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    raise typer.Exit(accepted(code, accept))


def _lay_plan(order: Order, plan: str | None, phase: str | None, said: list[str]) -> Order:
    """Return the order under a plan's phase, where one is named.

    Args:
        order: of the command.
        plan, phase: `--plan` and `--phase`.
        said: options that the plan decides.

    Raises:
        NotFound, Rejected: no such plan or phase, or the options do not fit it.
    """
    if plan is None and phase is None:
        return order
    if plan is None or phase is None:
        raise Rejected("--plan and --phase go together")
    if said:
        raise Rejected(f"{said[0]}: the plan says that; leave it out, or change the plan")
    planned = under_plan(order, plan, phase)
    if planned.nodes != order.nodes:
        raise Rejected(f"--nodes: found {order.nodes}; the plan says {planned.nodes}")
    return planned


def _make_folders(settings: Settings, runs: Path) -> None:
    """Make the home and the folder of run directories.

    Raises:
        Rejected: they cannot be made, or hold no key that can be read.
    """
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        runs.mkdir(parents=True, exist_ok=True)
        own_signing_key(settings.home)  # now: after the run it is too late to learn that it is gone
    except OSError as error:
        raise Rejected(f"GONOGO_HOME: {runs}: {error.strerror}") from error


def _make_run(run_dir: RunDir, order: Order) -> str:
    """Make a run's directory with its order; return its id.

    Raises:
        Rejected: it cannot be made.
    """
    try:
        run_dir.path.mkdir()
    except OSError as error:
        raise Rejected(f"GONOGO_HOME: {run_dir.path}: {error.strerror}") from error
    save_json(run_dir.order, order.document())
    (run_dir.path / SHIPPED_NAME).write_text(f"gonogo run: {NO_SERVICE} of it\n")
    return order.run


def _follow_node_0(run_dir: RunDir, part: Nodes, settings: Settings, as_json: bool) -> int:
    """Keep this node's part of the run that node 0 has begun; return the exit code of its verdict.

    Raises:
        Corrupt: its order cannot be read.
        Unavailable: node 0 tells no verdict.
    """
    order = load_record(run_dir.order, Order)
    if order is None:
        raise Unavailable(f"{run_dir.order} cannot be seen from {os.uname().nodename}")
    say(f"node {part.node} of {order.run} in {run_dir.path}")
    place = Place.of(order.document(), part.node)
    if _supervise(order, run_dir, settings, place, quiet=as_json, address=None):
        return Exit.INTERRUPTED
    return wait_for_verdict(run_dir)


def _advise(
    order: Order,
    run_dir: RunDir,
    document: Mapping[str, Any],
    *,
    planned: bool,
    interrupted: bool,
) -> list[str]:
    """Return what can be done next.

    Args:
        order: what was run.
        run_dir: its directory.
        document: the decision.
        planned: whether a plan says how many steps and ranks there are.
        interrupted: whether a person ended it.
    """
    heard, read = run_dir.ranks(), not (run_dir.path / ATTACHED).exists()
    rows, told = document["criteria"], document["facts"]["ranks"]
    printed = printed_lines(run_dir) if read else []
    said = advise_ranks(order, heard, planned=planned)
    said += advise_loss(order, printed)
    said += advise_drift(rows, planned=planned)
    ended = document["facts"]["exit"]
    if interrupted or _was_refused(document):
        return said
    failed, went_on = document["verdict"] == Verdict.NO_GO, None
    if not read:
        went_on = went_on_after(told, document["facts"]["boots"])
    counted = []
    if went_on is None and (failed or not read):  # `advise_end` knows what lines may count
        counted = advise_steps(order, told, ended, planned=planned)
    said += counted
    if failed:
        return said
    undone = undone_ranks(told, order.steps)
    errors = [error_told(last_error_line(run_dir.path, int(rank))) for rank in undone]
    return said + advise(
        order,
        rows,
        heard,
        read=read,
        planned=planned,
        printed=printed,
        unseen=unseen_ranks(ended),
        undone=bool(undone),
        error=next((text for text in errors if text is not None), None),
        last=max((row["last_step"] for row in told.values()), default=None),
        went_on=went_on,
        some_losses=has_some_losses(told),
        counted=bool(counted),
    )


def _was_refused(document: Mapping[str, Any]) -> bool:
    """Say whether the host was not fit to start the program at all."""
    outcome = document["facts"]["outcome"] or {}
    return bool(outcome.get("code") == OutcomeCode.PREFLIGHT_FAILED)


def _supervise(
    order: Order,
    run_dir: RunDir,
    settings: Settings,
    place: Place,
    *,
    quiet: bool,
    address: str | None,
) -> bool:
    """Check the host, and follow this node's part to its end; True when it was interrupted here.

    Args:
        order: the run's order.
        run_dir: its directory.
        settings: ours.
        place: the part of the run that is kept here.
        quiet: whether its output goes to stderr.
        address: where the other nodes reach node 0; None: its keeper finds that out.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the run outlives its terminal: so do we
    environ = dict(settings.inherited)
    shared = open_host_folder(settings.locks or HOST_FOLDER) if has_devices(order) else None
    home = settings.home
    if not place.is_whole:  # nodes share the home, and none of their locks
        home = home / "hosts" / os.uname().nodename
    host = _Host(order, run_dir, place, settings.home, DeviceLocks(home=home, shared=shared))
    asked: list[int] = []
    refuse = partial(save_refusal, run_dir.path, order.document(), place)
    try:
        keeper = _start(host, environ, asked, address)
    except _Refused as refused:
        refuse("preflight_failed", "infra", str(refused))
        return False
    except KeyboardInterrupt as told:
        refuse(*_why(told))
        return True
    interrupted = _follow(keeper, run_dir, order, place, asked, quiet=quiet)
    if keeper.returncode != 0:
        how = "was killed" if keeper.returncode < 0 else "has failed"
        _end_lost(host, environ, how)
    return interrupted


@dataclass(frozen=True, slots=True)
class _Host:
    """What of a run is kept on this host, and whose devices it may take."""

    order: Order
    run_dir: RunDir
    place: Place
    home: Path
    locks: DeviceLocks


class _Refused(Exception):
    """The host is not fit for the run."""


def _start(
    host: _Host, environ: dict[str, str], asked: list[int], address: str | None
) -> "subprocess.Popen[bytes]":
    """Check the host and start the keeper; signals that come while it starts are in `asked`.

    Raises:
        _Refused: the host is not fit.
        KeyboardInterrupt: a signal came before it was started.
    """
    while True:
        interrupt_on_signals()
        devices = _devices_of(host, environ)
        checked = check_host(
            host.order, host.run_dir, devices=devices, cwd=Path.cwd(), node=host.place.node
        )
        for check in checked.checks:
            if check.outcome != "pass":
                say(f"preflight {check.id}: {check.outcome}: {check.text}")
        if not checked.passed or devices is None:
            raise _Refused("; ".join(row.text for row in checked.checks if row.outcome == "fail"))
        try:
            keeper = _launch(host, environ, devices, asked, address)
        except OSError as error:
            text = f"its keeper cannot be started: {error}"
            say(text)
            raise _Refused(text) from error
        if keeper is not None:
            return keeper


def _why(told: KeyboardInterrupt) -> tuple[str, str, str]:
    """Return cause, who, and why, of a signal that came before a keeper would have said so."""
    if told.args[:1] == (signal.SIGTERM,):
        return "preempted", "infra", "the host told the run to end (SIGTERM) before it began"
    return "halted", "operator", "it was interrupted before it began"


def _devices_of(host: _Host, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the devices of this part of a run: of a profile that has some one a rank.

    They are the first free ones.

    None where there are too few, none at all where the driver does not say which there are: the
    preflight says why.

    Args:
        host: what is kept here.
        environ: ours; CUDA_VISIBLE_DEVICES may name fewer, and in another order.
    """
    if not has_devices(host.order):
        return ()
    listing = list_host_devices()
    if listing.error is not None:
        return ()
    seen = visible_devices(listing.devices, environ)
    fit = without_quarantined(host.home, [row.uuid for row in seen], time.time())
    return choose_together(host.locks.free(fit), len(host.place.ranks))


def _follow(
    keeper: "subprocess.Popen[bytes]",
    run_dir: RunDir,
    order: Order,
    place: Place,
    asked: list[int],
    *,
    quiet: bool,
) -> bool:
    """Follow the run to its end; True when it was interrupted here, or while it was started.

    Args:
        keeper: of the run.
        run_dir: its directory.
        order: its order.
        place: the part of it that is kept here.
        asked: signals that came while the keeper was started.
        quiet: whether its output goes to stderr.
    """
    interrupt_on_signals()
    following = Following(run_dir, order, quiet=quiet, place=place)
    interrupts = 0
    while True:
        try:
            ended = keeper.poll() is not None
            if asked and not ended:
                raise KeyboardInterrupt(asked.pop(0))
            following.look()
            if ended:
                following.end_line()
                if keeper.returncode > 0:
                    say(_last_line(run_dir.path / place.own("keeper.log")))
                return interrupts > 0
            time.sleep(_POLL_S)
        except KeyboardInterrupt as told:
            interrupts += 1
            number = told.args[0] if told.args else signal.SIGINT
            keeper.send_signal(number)  # Ctrl-C is a person's, SIGTERM a host that is taken away
            if interrupts == 1 and _reads_no_halt(run_dir):
                say("an unchanged program saves no checkpoint when asked: ending it now (SIGTERM)")
            elif interrupts == 1 and _was_let_go(run_dir):
                say("asked to leave with a checkpoint; Ctrl-C again ends it now")
            else:  # who was never let go reads no request to leave
                both = {signal.SIGINT, signal.SIGTERM}
                keeper.send_signal((both - {number}).pop())  # beside the first: its second
                say("ending it now")


def _reads_no_halt(run_dir: RunDir) -> bool:
    """Say whether the keeper ends the program at the first request; False if no disk says."""
    try:
        return is_there(run_dir.go) and reads_no_halt(run_dir.path)
    except OSError:
        return False


def _was_let_go(run_dir: RunDir) -> bool:
    """Say whether the program has begun; where the disk does not say, it may have."""
    try:
        return is_there(run_dir.go)
    except OSError:
        return True


def _end_lost(host: _Host, environ: Mapping[str, str], how: str) -> None:
    """End what is left of a run whose keeper is lost: without a service nobody else does.

    Of a node behind the first, node 0 is told: its keeper ends the rest.
    """
    run_dir, order, place, locks = host.run_dir, host.order, host.place, host.locks
    if not place.leads:
        say(f"the keeper of node {place.node} {how}: what is left here is ended")
        end_marked(f"{order.run}/{place.node}", run_dir.path, name=NODE_NAME)
        tell_gone(run_dir.path, place.node, order.token, time.time())
        return
    with holding(keeper_lock(run_dir.path)) as mine:
        if not mine:
            return
        if is_there(run_dir.exit):
            look_late(run_dir, environ)
            return
        say(f"its keeper {how}: what is left of the run is ended")
        try:
            while end_lost(run_dir, order, time.time()) is None:
                time.sleep(_POLL_S)  # what outlives SIGKILL is waited for, for a minute
        except OSError as error:  # its processes are ended; no disk takes the word
            say(f"its end cannot be written: {error}")
        start_draining(run_dir.path, home=locks.home, locks=locks, environ=environ)


def _meant(word: str) -> str:
    """Return what somebody may have meant whose command cannot be started."""
    if word.endswith(".py") and Path(word).is_file():
        return f"; did you mean python {word}?"
    if Path(word).is_file():
        return "; it is there, and no program: did you mean chmod +x, or its interpreter before it?"
    if " " in word:
        return "; did you mean it without quotes?"
    is_setting = re.match(r"[A-Za-z_]\w*=", word) is not None
    return f"; no shell reads this: did you mean env {word} …?" if is_setting else ""


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"{path} is empty"


def _launch(
    host: _Host,
    environ: dict[str, str],
    devices: tuple[str, ...],
    asked: list[int],
    address: str | None,
) -> "subprocess.Popen[bytes] | None":
    """Start the keeper; None where somebody has taken one of its devices since they were chosen.

    One without devices takes none from another launch, and waits for none. From its start on an
    interrupt is noted in `asked`: to end now would leave the program behind, with nobody to judge.

    Raises:
        Unavailable: another launch in this home takes for ever.
    """
    locks, place = host.locks, host.place
    home = locks.home
    options = ["--allow", "any", "--allow-env", "any"]
    if not place.is_whole:
        options += ["--node", str(place.node)]
    if address is not None:
        options += [
            "--rendezvous",
            f"{address}:{find_port(rendezvous_ports(host.order.document()))}",
        ]

    def start() -> subprocess.Popen[bytes]:
        note_interrupts(asked)
        return start_keeper(
            host.run_dir.path,
            home=host.home,
            locks=locks,
            devices=devices,
            environ=environ,
            cwd=Path.cwd(),
            place=place,
            options=options,
        )

    if not devices:
        return start()
    give_up = time.monotonic() + LAUNCH_WAIT_S
    while time.monotonic() < give_up:
        with holding(launch_lock(home)) as mine:
            if mine:
                return start() if locks.free(devices) == devices else None
        time.sleep(_POLL_S)
    raise Unavailable(f"{launch_lock(home)} is held for a minute: another launch hangs")


def _judge(run_dir: RunDir, home: Path) -> dict[str, Any]:
    """Judge the run directory, record the decision in the home, and return it.

    Raises:
        OSError: the disk does not take it.
    """
    key = own_signing_key(home)
    document: dict[str, Any] = judge_directory(run_dir.path, key=key)
    decisions = home / "decisions"
    try:
        decisions.mkdir(exist_ok=True)
        save_json(decisions / f"{document['id']}.json", document)
    except OSError:
        say(f"no decision can be recorded; gonogo judge {run_dir.path} shows what it would say")
        raise
    return document


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(context_settings={"allow_interspersed_args": False})(run)
