"""`gonogo run` with real programs: mute, attached, hanging, failing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gonogo.cli import run_host
from gonogo.cli.app import run
from gonogo.cli.exits import Exit
from gonogo.cli.run_host import RunHost
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, Preflight
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.devices.choice import Listing
from gonogo.supervise.devices.device import Device
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.locks import DeviceLocks, holding
from gonogo.supervise.processes import find_process
from tests.data import make_runs
from tests.supervise.runs import kill_before_the_last_look, wait_until

ROOT = Path(__file__).parents[2]
MUTE = """
import sys, time
steps, hang = int(sys.argv[1]), int(sys.argv[2])
for step in range(steps):
    time.sleep(600 if step == hang else 0.02)
    print(f"iter {step}: loss {5 - step / 50:.4f}, time 20.00ms")
sys.exit(int(sys.argv[3]))
"""
ATTACHED = """
import gonogo.trainer
with gonogo.trainer.attach() as beat:
    for step in range(1, 31):
        with beat.section("forward"):
            pass
        beat.step(loss=5 - step / 50)
"""


LONG = ATTACHED.replace("range(1, 31)", "range(1, 100_000)").replace(
    "beat.step(loss=5 - step / 50)",
    "time.sleep(0.01); beat.step(loss=5 - step / 50)\n        if beat.should_halt(): break",
)


WAITS = "import time; time.sleep(600)"


def gonogo(*arguments: str) -> list[str]:
    """As its script starts it: without the folder that it is called in."""
    return [sys.executable, "-P", "-m", "gonogo.cli.main", *arguments]


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "GONOGO_HOME": str(folder / "home"),
    }


def place_of(order: Order) -> Place:
    return Place.of(order.document())


class Ran:
    """How a `gonogo run` went."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        done = subprocess.run(
            gonogo("run", *arguments),
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def decision(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    def criteria(self) -> dict[str, str]:
        return {row["id"]: row["outcome"] for row in self.decision()["criteria"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mute.py").write_text(MUTE)
    (tmp_path / "attached.py").write_text(ATTACHED)
    return tmp_path


def mute(steps: int, *, hang: int = -1, code: int = 0) -> list[str]:
    return ["--", sys.executable, "mute.py", str(steps), str(hang), str(code)]


def test_an_unchanged_program_is_judged_by_what_it_prints_and_is_conditional(folder: Path) -> None:
    ran = Ran(folder, "--steps", "30", "--json", *mute(30))
    assert ran.code == Exit.CONDITIONAL_GO, ran.err
    assert ran.decision()["cause"]["text"].endswith(
        "the program is only read: rank 0 did not report its identity"
    )
    assert "--accept conditional" in ran.decision()["advice"][0]
    assert ran.decision()["next"].startswith("gonogo compare OTHER ")
    assert ran.criteria() == {
        "completed": "pass",
        "identity": "inconclusive",
        "coverage": "inconclusive",
        "preflight": "pass",
        "no_halt_finding": "pass",
    }
    unlabelled = "rank 0: sections: the lines name no section, so a hang has no place"
    assert unlabelled in ran.decision()["not_observed"]
    assert "iter 29: loss 4.4200" in ran.err
    home = folder / "home"
    assert home.stat().st_mode & 0o777 == 0o700
    (recorded,) = (home / "decisions").glob("*.json")
    assert recorded.stem == ran.decision()["id"]
    assert run(["verify", str(home)]) == run(["replay", str(recorded)]) == Exit.OK
    (run_dir,) = (home / "runs").iterdir()
    (run_dir / "heartbeat_rank0.jsonl").unlink()
    assert run(["replay", str(recorded)]) == Exit.UNEXPECTED


def test_what_is_waived_by_name_is_shown_and_makes_it_conditional(folder: Path) -> None:
    waived = ["--waive", "identity", "--waive", "coverage"]
    ran = Ran(folder, "--steps", "30", "--pattern", "nanogpt", *waived, "--json", *mute(30))
    assert ran.code == Exit.CONDITIONAL_GO, ran.err
    decision = ran.decision()
    told = {row["id"]: row["evidence"] for row in decision["criteria"]}
    assert told["identity"].startswith("waived by name: rank 0 did not report")
    assert {row["criterion"]: row["state"] for row in decision["conditions"]} == {
        "identity": "waived",
        "coverage": "waived",
    }


def test_a_program_that_ends_early_is_no_go_and_without_steps_none_is_complete(
    folder: Path,
) -> None:
    assert Ran(folder, "--steps", "40", *mute(30)).code == Exit.NO_GO
    ran = Ran(folder, "--waive", "identity", "--waive", "coverage", "--json", *mute(30))
    assert ran.code == Exit.INCONCLUSIVE, ran.err
    told = {row["id"]: row["evidence"] for row in ran.decision()["criteria"]}
    assert told["completed"] == "the order names no number of steps"


def test_a_program_that_hangs_is_halted_and_its_line_is_named(folder: Path) -> None:
    ran = Ran(folder, "--steps", "90", "--stall-s", "4", *mute(90, hang=50))
    assert ran.code == Exit.NO_GO, ran.err
    assert "halt: stall" in ran.err
    assert "rank 0: <module> (mute.py:5)" in ran.out
    (run_dir,) = (folder / "home" / "runs").iterdir()
    (stack,) = run_dir.glob("evidence/*/stacks_rank0.txt")
    assert f"next     cat {stack}  # where it stood" in ran.out


def test_a_program_that_fails_keeps_its_exit_code_and_last_line(folder: Path) -> None:
    ran = Ran(folder, "--steps", "30", "--json", *mute(30, code=7))
    assert ran.code == Exit.NO_GO, ran.err
    (run_dir,) = (folder / "home" / "runs").iterdir()
    assert json.loads((run_dir / "exit.json").read_text())["code"] == 7
    assert "iter 29" in ran.decision()["cause"]["line"]


def test_an_attached_program_can_be_go(folder: Path) -> None:
    ran = Ran(folder, "--steps", "30", "--", sys.executable, "attached.py")
    assert ran.code == Exit.OK, ran.err
    (run_dir,) = (folder / "home" / "runs").iterdir()
    *_, verdict, following = ran.out.rstrip().splitlines()
    assert verdict == "verdict  GO"
    assert following.startswith(f"next     gonogo compare OTHER {run_dir}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "ended"),
    [
        (signal.SIGINT, ("halted", "operator", 3)),
        pytest.param(signal.SIGTERM, ("preempted", "infra", 3), marks=pytest.mark.long),
    ],
    ids=["Ctrl-C", "a host that is taken away"],
)
def test_who_is_asked_to_end_asks_the_run_to_leave(
    folder: Path, number: signal.Signals, ended: tuple[str, str, int]
) -> None:
    (folder / "long.py").write_text("import time\n" + LONG)
    command = gonogo("run", "--steps", "99999", "--", sys.executable, "long.py")
    ran = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: list(folder.glob("home/runs/*/heartbeat_rank0.jsonl")), what="a heartbeat")
    wait_until(lambda: list(folder.glob("home/runs/*/.GO")), what="the go")
    ran.send_signal(number)
    out, _ = ran.communicate(timeout=300)
    assert ran.returncode == Exit.INTERRUPTED, out
    (run_dir,) = (folder / "home" / "runs").iterdir()
    record = json.loads((run_dir / "exit.json").read_text())
    assert (record["reason"], record["ended_by"], record["code"]) == ended


@pytest.mark.long
def test_an_unchanged_program_is_not_waited_for_when_it_is_to_end(folder: Path) -> None:
    command = gonogo("run", "--steps", "99999", *mute(99999))
    ran = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: list(folder.glob("home/runs/*/heartbeat_rank0.jsonl")), what="a heartbeat")
    ran.send_signal(signal.SIGINT)
    out, _ = ran.communicate(timeout=200)  # a trainer gets 300 s to leave with a checkpoint
    assert ran.returncode == Exit.INTERRUPTED, out
    (run_dir,) = (folder / "home" / "runs").iterdir()
    record = json.loads((run_dir / "exit.json").read_text())
    assert (record["reason"], record["ended_by"]) == ("halted", "operator")
    assert record["ranks"]["0"]["signal"] == signal.SIGTERM
    assert json.loads((run_dir / ".HALT").read_text())["leave_s"] == 0.0


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_asks_while_the_keeper_starts_leaves_no_program_behind(
    folder: Path, number: signal.Signals
) -> None:
    ran = subprocess.Popen(
        gonogo("run", "--steps", "99999", *mute(99999)),
        cwd=folder, env=environment(folder), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: list(folder.glob("home/runs/*/keeper.log")), what="a start of its keeper")
    ran.send_signal(number)
    assert ran.wait(timeout=200) == Exit.INTERRUPTED
    (run_dir,) = (folder / "home" / "runs").iterdir()
    record = json.loads((run_dir / "exit.json").read_text())
    assert record["reason"] in ("halted", "preempted")
    assert list((folder / "home" / "decisions").iterdir()), "it is judged like any other"


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGINT, "halted"), (signal.SIGTERM, "preempted")]
)
def test_who_asks_while_the_host_is_checked_is_told_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, reason: str
) -> None:
    """It left an order, and nothing that says what had become of it."""
    order, run_dir = make_runs.order_of(), RunDir(tmp_path)

    def look(*_: object, **__: object) -> Preflight:
        os.kill(os.getpid(), number)
        raise AssertionError("the check goes on")

    monkeypatch.setattr(run_host, "check_host", look)
    with handlers_kept():
        settings = load_settings({"GONOGO_HOME": str(tmp_path)})
        assert host_of(order, run_dir, settings).supervise()
    record = load_record(run_dir.exit, ExitRecord)
    assert record is not None
    assert (record.reason, record.run) == (reason, order.run)


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ((".read", "heartbeat_rank0.jsonl"), "ending it now (SIGTERM)"),
        (("heartbeat_rank0.jsonl",), "asked to leave with a checkpoint"),
    ],
    ids=["unchanged", "attached"],
)
def test_who_interrupts_is_told_whether_the_program_leaves_or_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], marks: tuple[str, ...], said: str
) -> None:
    for name in (".GO", *marks):
        (tmp_path / name).touch()
    with handlers_kept(), subprocess.Popen([sys.executable, "-c", WAITS]) as keeper:
        order, asked = make_runs.order_of(), [signal.SIGTERM]
        run_dir = RunDir(tmp_path)
        assert host_of(order, run_dir, load_settings({}))._follow(keeper, asked)
    assert said in capfd.readouterr().err


def host_of(order: Order, run_dir: RunDir, settings: Settings) -> RunHost:
    return RunHost(order=order, run_dir=run_dir, settings=settings, place=place_of(order))


@contextmanager
def handlers_kept() -> Iterator[None]:
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_run_whose_keeper_is_killed_has_an_end_and_leaves_nothing(folder: Path) -> None:
    """A shell's child does not notice the shell's death: it continued beside its verdict."""
    shell = f"{sys.executable} mute.py 99999 -1 0 & echo $! > pid; wait; true"
    command = gonogo("run", "--steps", "99999", "--", "sh", "-c", shell)
    ran = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: list(folder.glob("home/runs/*/heartbeat_rank0.jsonl")), what="a heartbeat")
    (run_dir,) = (folder / "home" / "runs").iterdir()
    program = find_process(int((folder / "pid").read_text()))
    assert program is not None
    os.kill(json.loads((run_dir / "keeper.json").read_text())["pid"], signal.SIGKILL)
    _, said = ran.communicate(timeout=120)
    lived_on = program.is_alive() and program.send(signal.SIGKILL)
    assert not lived_on
    assert "its keeper was killed" in said
    record = json.loads((run_dir / "exit.json").read_text())
    assert (record["reason"], record["ended_by"]) == ("keeper_lost", "infra")


@pytest.mark.long
def test_a_run_whose_keeper_is_killed_after_its_end_is_judged_by_what_it_did(folder: Path) -> None:
    slow = ATTACHED.replace("import gonogo.trainer", "import time, gonogo.trainer").replace(
        "beat.step(", "time.sleep(0.1); beat.step("
    )
    (folder / "slow.py").write_text(slow)
    command = gonogo("run", "--steps", "30", "--", sys.executable, "slow.py")
    ran = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: list(folder.glob("home/runs/*/heartbeat_rank0.jsonl")), what="a heartbeat")
    (run_dir,) = (folder / "home" / "runs").iterdir()
    kill_before_the_last_look(run_dir)
    out, said = ran.communicate(timeout=120)
    assert ran.returncode == Exit.OK, out + said
    assert (run_dir / "watcher.log").exists()


def is_judged(folder: Path, ran: subprocess.Popen[bytes]) -> None:
    """Wait for a mute run that nobody listens to; it has its verdict, and a recorded decision."""
    assert ran.wait(timeout=200) == Exit.CONDITIONAL_GO
    (recorded,) = (folder / "home" / "decisions").iterdir()
    rows = json.loads(recorded.read_text())["criteria"]
    assert {row["id"]: row["outcome"] for row in rows}["completed"] == "pass"


@pytest.mark.long
def test_a_run_whose_terminal_goes_is_judged_all_the_same(folder: Path) -> None:
    ours, its = os.openpty()
    command = ["setsid", "--ctty", *gonogo("run", "--steps", "200", *mute(200))]
    ran = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    wait_until(lambda: list(folder.glob("home/runs/*/heartbeat_rank0.jsonl")), what="a heartbeat")
    os.close(ours)  # the window is closed: SIGHUP, and every write is refused
    is_judged(folder, ran)


def test_a_run_whose_output_nobody_reads_is_judged_all_the_same(folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.Popen(
        gonogo("run", "--steps", "30", *mute(30)),
        cwd=folder, env=environment(folder), stdout=writing,
    )  # fmt: skip
    os.close(writing)
    is_judged(folder, ran)


@pytest.mark.long
def test_a_home_whose_key_is_gone_says_so_before_anything_runs(folder: Path) -> None:
    assert Ran(folder, "--steps", "1", "--", "true").code != Exit.BAD_INPUT
    for name in ("signing.key", "signing.pub"):
        (folder / "home" / name).unlink()
    before = sorted((folder / "home" / "runs").iterdir())
    again = Ran(folder, "--steps", "1", "--", "true")
    assert again.code == Exit.BAD_INPUT
    assert "signing.key is gone" in again.err
    assert sorted((folder / "home" / "runs").iterdir()) == before


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("train.py", "did you mean python train.py?"),
        ("python train.py", "did you mean it without quotes?"),
    ],
)
def test_what_somebody_may_have_meant_is_suggested(folder: Path, word: str, meant: str) -> None:
    (folder / "train.py").touch()
    ran = Ran(folder, "--", word)
    assert ran.code == Exit.BAD_INPUT
    assert ran.err == f"gonogo: {word}: no such program can be started here; {meant}\n"


def test_a_program_that_is_not_there_says_so(folder: Path) -> None:
    ran = Ran(folder, "--steps", "3", "--", "no-such-program")
    assert ran.code == Exit.BAD_INPUT
    assert ran.err == "gonogo: no-such-program: no such program can be started here\n"
    assert not (folder / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pattern", "("], "pattern '('"),
        (["--pattern", "nanogtp"], "did you mean nanogpt?"),
        (["--pattern", r"(?P<stop>\d)"], "found group 'stop'"),
        (["--waive", "completed"], "without it nothing is proved"),
        (["--waive", "identiti"], "did you mean identity?"),
        (["--allow-drift", "devise"], "did you mean device?"),
        (["--plan", "demo"], "--plan and --phase go together"),
        (["--plan", "demo", "--phase", "x"], "no phase x"),
        (["--plan", "demo", "--phase", "smok"], "no phase smok; did you mean smoke?"),
        (["--plan", "dem", "--phase", "smoke"], "did you mean demo?"),
        (["--plan", "demo", "--phase", "smoke", "--steps", "3"], "--steps: the plan says that"),
        (["--plan", "demo", "--phase", "smoke", "--stall-s", "9"], "--stall-s: the plan says"),
        (["--plan", "demo", "--phase", "smoke", "--world-size", "4"], "--world-size: the plan"),
        (["--steps", "0"], "steps"),
        (["--plan", "demo", "--phase", "smoke", "--waive", "finit"], "did you mean finite?"),
    ],
)
def test_bad_input_is_one_line_and_runs_nothing(
    arguments: list[str],
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GONOGO_HOME", str(folder / "home"))
    code = run(["run", *arguments, "--", sys.executable, "mute.py", "1", "-1", "0"])
    assert code in (Exit.BAD_INPUT, Exit.NOT_FOUND)
    assert said in capsys.readouterr().err
    assert not (folder / "home" / "runs").exists()


@pytest.mark.parametrize(
    ("profile", "visible", "devices"),
    [
        ("cpu", "0,1", ()),
        ("h100", None, ("GPU-0", "GPU-1")),
        ("h100", "3, 2,1", ("GPU-3", "GPU-1")),  # another run has the GPU between
        ("h100", "GPU-3,GPU-0", ("GPU-3", "GPU-0")),
        ("h100", "3", None),
        ("h100", "", None),
    ],
)
def test_a_run_gets_the_devices_that_are_seen_and_free(
    profile: str,
    visible: str | None,
    devices: tuple[str, ...] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [Device(uuid=f"GPU-{n}", index=n, name="H100") for n in range(4)]
    monkeypatch.setattr(run_host, "list_host_devices", lambda: Listing(devices=rows))
    order = make_runs.order_of().model_copy(update={"profile": profile, "world_size": 2})
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    locks = DeviceLocks(home=tmp_path / "home", shared=tmp_path / "locks")
    environ |= {"GONOGO_HOME": str(locks.home), "GONOGO_LOCKS": str(locks.shared)}
    with holding(locks.path("GPU-2")):
        assert host_of(order, RunDir(tmp_path), load_settings(environ))._devices() == devices


def test_a_device_that_another_launch_took_meanwhile_is_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs at once chose the same GPU: the second was refused, beside others that were free."""
    rows = [Device(uuid=f"GPU-{n}", index=n, name="H100") for n in range(2)]
    order = make_runs.order_of().model_copy(update={"profile": "h100", "world_size": 1})
    settings = load_settings(
        {"GONOGO_HOME": str(tmp_path), "GONOGO_LOCKS": str(tmp_path / "locks")}
    )
    locks = DeviceLocks(home=tmp_path, shared=tmp_path / "locks")
    looked, started = [], []
    with ExitStack() as other:

        def look(*_: object, devices: tuple[str, ...], **__: object) -> Preflight:
            if not looked:
                assert other.enter_context(holding(locks.path(devices[0])))
            looked.append(devices)
            return Preflight(passed=True, checks=[])

        def start(*_: object, devices: tuple[str, ...], **__: object) -> subprocess.Popen[bytes]:
            started.append(devices)
            return subprocess.Popen(["true"])

        monkeypatch.setattr(run_host, "list_host_devices", lambda: Listing(devices=rows))
        monkeypatch.setattr(run_host, "check_host", look)
        monkeypatch.setattr(run_host, "start_keeper", start)
        with handlers_kept():
            host_of(order, RunDir(tmp_path), settings).supervise()
    assert looked == [("GPU-0",), ("GPU-1",)]
    assert started == [("GPU-1",)]
