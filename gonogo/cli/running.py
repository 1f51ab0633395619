"""`gonogo run -- COMMAND`: any program, supervised and judged, without a service and a checkout.

The command is started once, as it is written, in this folder and environment. What it does is told
by its own heartbeats where it is attached (`gonogo.trainer`), else by what it prints. Its keeper
lives in a session of its own: this process may die, and the run goes on. Its terminal may go, or
whoever reads what it shows: it follows the run in silence, and judges it.
"""

import logging
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.exits import Exit, exit_of_verdict
from gonogo.cli.following import Following
from gonogo.cli.interrupts import interrupt_on_signals, note_interrupts
from gonogo.cli.judging import print_judged
from gonogo.cli.output import print_json, say, shown_if_taken
from gonogo.cli.reach.completing import complete_plans
from gonogo.cli.run_advice import (
    advise,
    advise_drift,
    advise_loss,
    advise_ranks,
    counts_lines,
    error_told,
    has_some_losses,
    lengths_told,
    undone_ranks,
    unseen_ranks,
    went_on_after,
)
from gonogo.cli.run_order import check_waivers, order_of, under_plan
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.decision import Verdict
from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.patterns import PATTERNS, fitting
from gonogo.contract.plan import DRIFTS
from gonogo.judge.directory import judge_directory
from gonogo.plain_file import is_there
from gonogo.rundir import NO_SERVICE, SHIPPED_NAME, RunDir, read_tail, save_json
from gonogo.signing import own_signing_key
from gonogo.slots import choose_together
from gonogo.supervise.devices.choice import has_devices
from gonogo.supervise.devices.listing import list_host_devices
from gonogo.supervise.devices.visible import visible_devices
from gonogo.supervise.exit_record import build_refusal, last_error_line
from gonogo.supervise.late_look import look_late
from gonogo.supervise.locks import (
    HOST_FOLDER,
    DeviceLocks,
    holding,
    keeper_lock,
    launch_lock,
    open_host_folder,
)
from gonogo.supervise.lost import end_lost
from gonogo.supervise.preflight.preflight import check_host
from gonogo.supervise.quarantine import without_quarantined
from gonogo.supervise.start import start_draining, start_keeper
from gonogo.trainer.line_file import ATTACHED

LAUNCH_WAIT_S = 60.0
_POLL_S = 0.1
_LOG_BYTES = 2**18
"""Of the log's end: enough to tell how a program prints its steps."""


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
        int, typer.Option(min=1, max=1024, help="How many ranks its lines must show.")
    ] = 1,
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
    as_json: Annotated[
        bool, typer.Option("--json", help="The decision as one JSON object on stdout.")
    ] = False,
) -> None:
    """Run any program here, supervise it, and judge it; no service is needed."""
    settings = load_settings()
    logging.getLogger("gonogo").addHandler(logging.NullHandler())  # what matters is said below
    if shutil.which(command[0], path=settings.inherited.get("PATH")) is None:
        raise Rejected(f"{command[0]}: no such program can be started here{_meant(command[0])}")
    order = order_of(
        command, pattern or [], world_size, name, steps, stall_s, waive or [], allow_drift or []
    )
    if (plan is None) != (phase is None):
        raise Rejected("--plan and --phase go together")
    beside = {"--steps": steps, "--stall-s": stall_s, "--world-size": world_size != 1}
    if plan is not None and (taken := [name for name, value in beside.items() if value]):
        raise Rejected(f"{taken[0]}: the plan says that; leave it out, or change the plan")
    if plan is not None and phase is not None:
        order = under_plan(order, plan, phase)
    check_waivers(order)
    folder = settings.home / "runs" / order.run
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.parent.mkdir(exist_ok=True)
        own_signing_key(settings.home)  # now: after the run it is too late to learn that it is gone
        folder.mkdir()
    except OSError as error:
        raise Rejected(f"GONOGO_HOME: {folder}: {error.strerror}") from error
    run_dir = RunDir(folder)
    save_json(run_dir.order, order.document())
    (folder / SHIPPED_NAME).write_text(f"gonogo run: {NO_SERVICE} of it\n")
    say(f"{order.run} in {folder}")
    interrupted = _supervise(order, run_dir, settings, quiet=as_json)
    document = _judge(run_dir, settings.home, as_json)
    if not as_json:
        heard, read = run_dir.ranks(), not (folder / ATTACHED).exists()
        rows = document["criteria"]
        printed = _printed(run_dir) if read else []
        fits = [] if heard else fitting(printed)
        counted = bool(heard) and counts_lines(order.patterns, printed)
        said = advise_ranks(order, heard, planned=plan is not None)
        said += advise_loss(order, printed)
        said += advise_drift(rows, planned=plan is not None)
        judged = document["verdict"] != Verdict.NO_GO and not interrupted
        if judged and not _was_refused(document):  # that is what it lacks
            planned, told = plan is not None, document["facts"]["ranks"]
            undone = undone_ranks(told, order.steps)
            errors = [error_told(last_error_line(folder, int(rank))) for rank in undone]
            said += advise(
                order,
                rows,
                heard,
                read=read,
                planned=planned,
                fits=fits,
                counted=counted,
                unseen=unseen_ranks(document["facts"]["exit"]),
                undone=bool(undone),
                error=next((text for text in errors if text is not None), None),
                lengths=lengths_told(order.patterns, printed) if heard else (),
                last=max((row["last_step"] for row in told.values()), default=None),
                went_on=went_on_after(told, document["facts"]["boots"]),
                some_losses=has_some_losses(told),
            )
        for text in said:
            say(text)
    if interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    verdict = document["verdict"]
    raise typer.Exit(exit_of_verdict(Verdict(verdict) if verdict else None))


def _was_refused(document: Mapping[str, Any]) -> bool:
    """Say whether the host was not fit to start the program at all."""
    outcome = document["facts"]["outcome"] or {}
    return bool(outcome.get("code") == OutcomeCode.PREFLIGHT_FAILED)


def _supervise(order: Order, run_dir: RunDir, settings: Settings, *, quiet: bool) -> bool:
    """Check the host, and follow the run to its end; True when it was interrupted here."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the run outlives its terminal: so do we
    environ = dict(settings.inherited)
    shared = open_host_folder(settings.locks or HOST_FOLDER) if has_devices(order) else None
    locks = DeviceLocks(home=settings.home, shared=shared)
    asked: list[int] = []
    try:
        keeper = _start(order, run_dir, locks, environ, asked)
    except _Refused as refused:
        _save_refusal(run_dir, order, "preflight_failed", "infra", str(refused))
        return False
    except KeyboardInterrupt as told:
        _save_refusal(run_dir, order, *_why(told))
        return True
    interrupted = _follow(keeper, run_dir, order, asked, quiet=quiet)
    if keeper.returncode != 0:
        how = "was killed" if keeper.returncode < 0 else "has failed"
        _end_lost(run_dir, order, locks, environ, how)
    return interrupted


class _Refused(Exception):
    """The host is not fit for the run."""


def _start(
    order: Order,
    run_dir: RunDir,
    locks: DeviceLocks,
    environ: dict[str, str],
    asked: list[int],
) -> "subprocess.Popen[bytes]":
    """Check the host and start the keeper; signals that come while it starts are in `asked`.

    Raises:
        _Refused: the host is not fit.
        KeyboardInterrupt: a signal came before it was started.
    """
    while True:
        interrupt_on_signals()
        devices = _devices_of(order, environ, locks)
        checked = check_host(order, run_dir, devices=devices, cwd=Path.cwd())
        for check in checked.checks:
            if check.outcome != "pass":
                say(f"preflight {check.id}: {check.outcome}: {check.text}")
        if not checked.passed or devices is None:
            raise _Refused("; ".join(row.text for row in checked.checks if row.outcome == "fail"))
        try:
            keeper = _launch(run_dir, locks, environ, devices, asked)
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


def _save_refusal(run_dir: RunDir, order: Order, reason: str, ended_by: str, text: str) -> None:
    document, now = order.document(), time.time()
    refusal = build_refusal(reason, ended_by, text, run_dir=run_dir.path, order=document, now=now)
    save_json(run_dir.exit, refusal)


def _devices_of(
    order: Order, environ: Mapping[str, str], locks: DeviceLocks
) -> tuple[str, ...] | None:
    """Return the devices of a run: on a profile with devices one a rank, the first free ones.

    None where there are too few, none at all where the driver does not say which there are: the
    preflight says why.

    Args:
        order: the run's order.
        environ: ours; CUDA_VISIBLE_DEVICES may name fewer, and in another order.
        locks: who holds which.
    """
    if not has_devices(order):
        return ()
    listing = list_host_devices()
    if listing.error is not None:
        return ()
    seen = visible_devices([row.device() for row in listing.devices], environ)
    fit = without_quarantined(locks.home, [row.uuid for row in seen], time.time())
    return choose_together(locks.free(fit), order.world_size)


def _follow(
    keeper: "subprocess.Popen[bytes]",
    run_dir: RunDir,
    order: Order,
    asked: list[int],
    *,
    quiet: bool,
) -> bool:
    """Follow the run to its end; True when it was interrupted here, or while it was started.

    Args:
        keeper: of the run.
        run_dir: its directory.
        order: its order.
        asked: signals that came while the keeper was started.
        quiet: whether its output goes to stderr.
    """
    interrupt_on_signals()
    following = Following(run_dir, order, quiet=quiet)
    interrupts = 0
    while True:
        try:
            ended = keeper.poll() is not None
            if asked and not ended:
                raise KeyboardInterrupt(asked.pop(0))
            following.look()
            if ended:
                if keeper.returncode > 0:
                    say(_last_line(run_dir.path / "keeper.log"))
                return interrupts > 0
            time.sleep(_POLL_S)
        except KeyboardInterrupt as told:
            interrupts += 1
            number = told.args[0] if told.args else signal.SIGINT
            keeper.send_signal(number)  # Ctrl-C is a person's, SIGTERM a host that is taken away
            if interrupts == 1 and _was_let_go(run_dir):
                say("asked to leave with a checkpoint; Ctrl-C again ends it now")
            else:  # who was never let go reads no request to leave
                both = {signal.SIGINT, signal.SIGTERM}
                keeper.send_signal((both - {number}).pop())  # beside the first: its second
                say("ending it now")


def _was_let_go(run_dir: RunDir) -> bool:
    """Say whether the program has begun; where the disk does not say, it may have."""
    try:
        return is_there(run_dir.go)
    except OSError:
        return True


def _end_lost(
    run_dir: RunDir, order: Order, locks: DeviceLocks, environ: Mapping[str, str], how: str
) -> None:
    """End what is left of a run whose keeper is lost: without a service nobody else does."""
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


def _printed(run_dir: RunDir) -> list[str]:
    """Return what the program printed last, a bar's states too; nothing where it has no log."""
    return re.split(r"[\r\n]+", read_tail(run_dir.rank_log(0), _LOG_BYTES))


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"{path} is empty"


def _launch(
    run_dir: RunDir,
    locks: DeviceLocks,
    environ: dict[str, str],
    devices: tuple[str, ...],
    asked: list[int],
) -> "subprocess.Popen[bytes] | None":
    """Start the keeper; None where somebody has taken one of its devices since they were chosen.

    One without devices takes none from another launch, and waits for none. From its start on an
    interrupt is noted in `asked`: to end now would leave the program behind, with nobody to judge.

    Raises:
        Unavailable: another launch in this home takes for ever.
    """
    home = locks.home

    def start() -> subprocess.Popen[bytes]:
        note_interrupts(asked)
        return start_keeper(
            run_dir.path,
            home=home,
            locks=locks,
            devices=devices,
            environ=environ,
            cwd=Path.cwd(),
            options=("--allow", "any", "--allow-env", "any"),
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


def _judge(run_dir: RunDir, home: Path, as_json: bool) -> dict[str, Any]:
    """Judge the run directory, record the decision in the home, show and return it.

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
    with shown_if_taken():
        if as_json:
            print_json(document)
        else:
            print_judged(document, run_dir.path)
    if not as_json:
        say(
            f"recorded with hash {document['hash']}; gonogo replay {document['id']} derives it"
            " again, gonogo verify --anchor HASH shows later that it is still there"
        )
    return document


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(context_settings={"allow_interspersed_args": False})(run)
