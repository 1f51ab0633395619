"""A disk that is full, read-only or gone for a while ends no healthy run, and hides no end."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from gonogo import rundir
from gonogo.contract.ids import Kind, new_id
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.rundir import load_record
from gonogo.supervise import durable
from gonogo.supervise.keeper import keeper
from gonogo.supervise.keeper.keeper import Keeper
from gonogo.supervise.launch.command import Allowed
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.weather import RESERVE_NAME, Reserve, Weather
from tests.supervise.runs import (
    ROOT,
    NewRun,
    SupervisedRun,
    build_test_order,
    starting,
    wait_until,
)

SHIM = Path(__file__).parents[1] / "weather"
SCRIPT = """
import sys, time
import gonogo.trainer
steps, step_s, told = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
with gonogo.trainer.attach() as beat:
    for step in range(1, steps + 1):
        time.sleep(step_s)
        beat.step(loss=1.0 / step, tokens=10)
        with open(told, "w") as stream:
            stream.write(str(step))
"""

LEAVING = """
import os, time
import gonogo.trainer
with gonogo.trainer.attach() as beat:
    while not os.path.exists(os.environ["NSA_FULL"]):
        time.sleep(0.05)
        beat.step(loss=1.0, tokens=10)
    for _ in range(10):
        beat.step(loss=1.0, tokens=10)
    os._exit(int(os.environ["NSA_CODE"]))
"""

UNHEARD = """
import os, sys, time
import gonogo.trainer
steps, full, filler = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with gonogo.trainer.attach() as beat:
    for step in range(1, steps + 1):
        while step > 10 and not os.path.exists(full):
            time.sleep(0.05)
        beat.step(loss=1.0 / step, tokens=10)
        time.sleep(0.05)
os.unlink(filler)
sys.exit(int(sys.argv[4]))
"""


def start_script(
    new_run: NewRun, folder: Path, *, steps: int, watch: object = None, **environ: str
) -> SupervisedRun:
    """Start an attached program of one process that tells its step outside of the run's disk."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(steps), "0.05", str(folder / "told")]
    return new_run(
        "--allow", "any", "--allow-env", "any",  # the program is to feel the weather, too
        environ={"PYTHONPATH": f"{SHIM}:{ROOT}", **environ}, entry=None, command=command,
        world_size=1, steps=steps, identity={"world_size": 1}, watch=watch or {},
    )  # fmt: skip


def told(folder: Path) -> int:
    """Return the step that the program says it has come to."""
    try:
        return int((folder / "told").read_text() or 0)
    except FileNotFoundError:
        return 0


def completes(run: SupervisedRun, steps: int) -> None:
    """The run ends as it would have: every line there, nobody blamed."""
    record = run.wait_for_exit()
    assert (record.reason, record.ended_by) == (OutcomeCode.COMPLETED, Actor.TRAINER), record.text
    assert run.halts() == []
    beats = run.beats(0)
    assert [beat["seq"] for beat in beats] == list(range(1, len(beats) + 1))
    assert run.step() == steps
    assert run.living() == []
    assert not (run.path / RESERVE_NAME).exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of six megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take every byte that is left."""
    filler = folder / "filler"
    with filler.open("wb") as stream, pytest.raises(OSError, match="No space left"):
        os.posix_fallocate(stream.fileno(), 0, 2**30)
    with filler.open("ab", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(b"\0" * 4096):
            pass
    return filler


def test_a_full_disk_that_is_emptied_again_costs_nothing(tmp_path: Path, small_disk: Path) -> None:
    with starting(small_disk) as new_run:
        run = start_script(new_run, tmp_path, steps=150)
        run.wait_for_step(10)
        filler = fill(small_disk)
        full_at = told(tmp_path)
        wait_until(lambda: told(tmp_path) >= full_at + 60, "three seconds on a full disk")
        assert run.keeper is not None
        assert run.keeper.poll() is None
        filler.unlink()
        completes(run, 150)


@pytest.mark.long
def test_a_disk_that_is_full_for_longer_than_a_step_may_take_ends_no_run(
    tmp_path: Path, small_disk: Path
) -> None:
    """And nothing of what was watched meanwhile is missing from the record."""
    limits = {
        "stall": {"suspect_s": 1, "halt_s": 3, "min_steps": 3, "corroborate_s": 1, "early_s": 4},
        "alive_lost": {"suspect_s": 1, "halt_s": 2},
    }
    with starting(small_disk) as new_run:
        run = start_script(new_run, tmp_path, steps=1400, watch=limits)
        run.wait_for_step(10)
        filler = fill(small_disk)
        full_at = told(tmp_path)
        wait_until(lambda: told(tmp_path) >= full_at + 800, "forty seconds on a full disk")
        filler.unlink()
        completes(run, 1400)
        run.assert_replays()


@pytest.mark.parametrize("save", [durable.save_json, durable.create_json, rundir.save_json])
def test_what_a_full_disk_refuses_leaves_nothing_behind(
    small_disk: Path, save: Callable[[Path, object], object]
) -> None:
    """It is tried again and again: what each try left would take every name of the disk."""
    path, document = small_disk / "record.json", {"text": "x" * 5000}
    filler = fill(small_disk)
    for _ in range(5):
        with pytest.raises(OSError, match="No space left"):
            save(path, document)
    assert list(small_disk.iterdir()) == [filler]
    filler.unlink()
    save(path, document)
    assert list(small_disk.iterdir()) == [path]


@pytest.mark.long
def test_a_run_that_ends_on_a_full_disk_says_how(tmp_path: Path, small_disk: Path) -> None:
    with starting(small_disk) as new_run:
        run = start_script(new_run, tmp_path, steps=80)
        run.wait_for_step(10)
        fill(small_disk)
        record = run.wait_for_exit()
        assert told(tmp_path) == 80
        assert record.code == 0
        assert run.living() == []


@pytest.mark.long
@pytest.mark.parametrize("code", [0, 7])
def test_how_a_rank_below_torchrun_ended_is_told_on_a_full_disk(
    tmp_path: Path, small_disk: Path, code: int
) -> None:
    """Nobody but its wrapper sees it; it was told as killed, and as the program's own failure."""
    script, full = tmp_path / "script.py", tmp_path / "full"
    script.write_text(LEAVING)
    with starting(small_disk) as new_run:
        run = new_run(
            "--allow", "any", entry=str(script), world_size=1, steps=100, train={}, watch={},
            identity={"world_size": 1}, env={"NSA_FULL": str(full), "NSA_CODE": str(code)},
            environ={"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        run.wait_for_step(10)
        fill(small_disk)
        full.touch()
        record = run.wait_for_exit()
        assert record.ranks["0"].code == code
        assert (record.reason, record.signal) == (OutcomeCode.DISK_FULL, None), record.text
        assert run.living() == []
        assert not list(run.path.glob(f"{RESERVE_NAME}*"))


@pytest.mark.long
@pytest.mark.parametrize("code", [0, 7])
def test_a_disk_that_refused_a_programs_last_words_alone_is_the_cause(
    tmp_path: Path, small_disk: Path, code: int
) -> None:
    """It took the stamp at once: nobody knew why the last steps were missing, and it was NO_GO."""
    script, full = tmp_path / "script.py", tmp_path / "full"
    script.write_text(UNHEARD)
    filler = str(small_disk / "filler")
    subprocess.run(("mount", "-o", "remount,size=64m", str(small_disk)), check=True)
    command = [sys.executable, str(script), "40", str(full), filler, str(code)]
    with starting(small_disk) as new_run:
        run = new_run(
            "--allow", "any", environ={"PYTHONPATH": str(ROOT)}, entry=None, command=command,
            world_size=1, steps=40, identity={"world_size": 1}, watch={},
        )  # fmt: skip
        run.wait_for_step(10)
        fill(small_disk)
        full.touch()
        record = run.wait_for_exit()
        assert record.ranks["0"].code == code
        assert record.reason is OutcomeCode.DISK_FULL, record.text
        assert run.living() == []
        assert not list(run.path.glob(".room*"))


def test_a_run_on_a_full_disk_can_be_ended(tmp_path: Path, small_disk: Path) -> None:
    with starting(small_disk) as new_run:
        run = start_script(new_run, tmp_path, steps=10_000)
        run.wait_for_step(10)
        fill(small_disk)
        assert run.keeper is not None
        for _ in range(2):
            run.keeper.send_signal(signal.SIGINT)
            time.sleep(0.2)
        record = run.wait_for_exit()
        assert (record.reason, record.ended_by) == (OutcomeCode.HALTED, Actor.OPERATOR)
        assert run.living() == []


@pytest.fixture
def real_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of the kind that goes read-only when its disk fails."""
    image, folder = tmp_path / "image", tmp_path / "real"
    folder.mkdir()
    with image.open("wb") as stream:
        stream.truncate(32 * 2**20)
    commands = [["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]]
    for command in commands:
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"there is no {command[0]} here")
        if done.returncode != 0:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.long
def test_a_disk_that_the_kernel_makes_read_only_ends_no_run(
    tmp_path: Path, real_disk: Path
) -> None:
    """As ext4 does on an error, with every file open: nothing can be written there any more."""
    with starting(real_disk) as new_run:
        run = start_script(new_run, tmp_path, steps=150)
        run.wait_for_step(10)
        failed = ["mount", "-o", "remount,abort", str(real_disk)]
        subprocess.run(failed, check=False, capture_output=True)
        with pytest.raises(OSError, match="Read-only file system"):
            (run.path / "probe").touch()
        assert told(tmp_path) < 150
        wait_until(lambda: told(tmp_path) == 150, "its last step")
        wait_until(lambda: run.living() == [], "its end")
        assert run.halts() == []


def start_where_scarce(
    run_dir: Path, order: Order, folder: Path, *, start_s: float
) -> Popen[bytes]:
    """Start the keeper of a run on a host that has no process to give while `scarce` is there."""
    (folder / "scarce").touch()
    run_dir.mkdir()
    (run_dir / "order.json").write_text(json.dumps(order.document()))
    environ = {
        **os.environ,
        "GONOGO_TEST_SCARCE": str(folder / "scarce"),
        "GONOGO_TEST_START_S": str(start_s),
    }
    module = "gonogo.supervise.keeper.__main__"
    command = [sys.executable, "-m", "tests.supervise.scarce_host", module, str(run_dir)]
    with (run_dir / "keeper.log").open("wb") as log:
        return Popen([*command, "--allow", "any"], cwd=ROOT, env=environ, stdout=log, stderr=log)


def order_of_command(run: str, *command: str) -> Order:
    """Return an order of one program that says nothing."""
    return build_test_order(
        run, entry=None, command=list(command), world_size=1, steps=None,
        identity={"world_size": 1}, watch={},
    )  # fmt: skip


def test_a_host_that_has_no_process_for_a_moment_begins_the_run_later(tmp_path: Path) -> None:
    """The keeper ended there, without exit.json, and its reserve was left behind."""
    run_dir = tmp_path / new_id(Kind.RUN)
    order = order_of_command(run_dir.name, sys.executable, "-c", "print('hello')")
    keeper = start_where_scarce(run_dir, order, tmp_path, start_s=60.0)
    log = run_dir / "keeper.log"
    wait_until(lambda: "the program: [Errno 11]" in log.read_text(), "that it cannot start")
    (tmp_path / "scarce").unlink()
    assert keeper.wait(timeout=120) == 0, log.read_text()
    record = load_record(run_dir / "exit.json", ExitRecord)
    assert record is not None
    assert (record.reason, record.code) == (OutcomeCode.COMPLETED, 0)
    assert (run_dir / "rank0.log").read_text() == "hello\n"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        pytest.param(None, OutcomeCode.PREFLIGHT_FAILED, id="for longer"),
        pytest.param(signal.SIGTERM, OutcomeCode.PREEMPTED, id="and is taken away"),
    ],
)
def test_a_host_that_has_no_process_is_not_fit_for_the_run(
    tmp_path: Path, number: int | None, reason: OutcomeCode
) -> None:
    run_dir = tmp_path / new_id(Kind.RUN)
    order = order_of_command(run_dir.name, sys.executable, "-c", "print('hello')")
    keeper = start_where_scarce(run_dir, order, tmp_path, start_s=60.0 if number else 0.5)
    log = run_dir / "keeper.log"
    if number is not None:
        wait_until(lambda: "the program: [Errno 11]" in log.read_text(), "that it cannot start")
        keeper.send_signal(number)
    assert keeper.wait(timeout=120) == 0, log.read_text()
    record = load_record(run_dir / "exit.json", ExitRecord)
    assert record is not None
    assert (record.reason, record.ended_by) == (reason, Actor.INFRA)
    assert not list(run_dir.glob(f"{RESERVE_NAME}*"))


WEATHERS = [errno.EIO, errno.ESTALE, errno.EROFS, errno.EDQUOT]


@pytest.mark.long
@pytest.mark.parametrize(
    "number",
    WEATHERS,
    ids=lambda number: errno.errorcode[number],
)
def test_a_file_system_that_fails_everyone_for_seconds_costs_nothing(
    new_run: NewRun, tmp_path: Path, number: int
) -> None:
    """Keeper, watcher, wrapper and trainer: every look and every write of theirs."""
    flag = tmp_path / "weather"
    sky = {"TEST_WEATHER": str(flag), "TEST_SKY": f"{tmp_path}/run_"}
    run = start_script(new_run, tmp_path, steps=150, **sky)
    run.wait_for_step(10)
    since = told(tmp_path)
    flag.write_text(str(number))
    wait_until(lambda: told(tmp_path) >= since + 60, "three seconds of bad weather")
    flag.unlink()
    completes(run, 150)
    assert run.beats(0)[-1]["write_failures"] > 0, "the program had other weather"


@pytest.mark.parametrize(
    "name",
    [
        "order.json",
        *(pytest.param(name, marks=pytest.mark.long) for name in (".keeper.lock", "exit.json")),
    ],
)
def test_a_disk_that_refuses_the_first_looks_begins_the_run_later(
    tmp_path: Path, name: str
) -> None:
    """The keeper ended there, with a traceback or a bad order, and the run was lost."""
    run_dir, flag = tmp_path / new_id(Kind.RUN), tmp_path / "weather"
    order = order_of_command(run_dir.name, sys.executable, "-c", "print('hello')")
    run_dir.mkdir()
    (run_dir / "order.json").write_text(json.dumps(order.document()))
    flag.write_text(str(errno.ESTALE))
    environ = {"PYTHONPATH": f"{SHIM}:{ROOT}", "TEST_WEATHER": str(flag)}
    environ |= {"TEST_SKY": str(run_dir / name)}
    run = SupervisedRun(path=run_dir, order=order, environ=environ)
    run.start("--allow", "any")
    log = run_dir / "keeper.log"
    wait_until(lambda: "Stale file handle" in log.read_text(), "that it cannot look")
    time.sleep(0.3)
    flag.unlink()
    record = run.wait_for_exit()
    assert (record.reason, record.code) == (OutcomeCode.COMPLETED, 0), record.text


def test_the_same_failure_is_said_once_until_it_went_well_again(
    caplog: pytest.LogCaptureFixture,
) -> None:

    weather = Weather(logging.getLogger("test"))

    def fail() -> int:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    assert [weather.tried("it", fail, 7) for _ in range(3)] == [7, 7, 7]
    assert weather.failures == 3
    assert len(caplog.messages) == 1
    assert weather.tried("it", lambda: 1, 7) == 1
    assert weather.tried("it", fail, 7) == 7
    assert len(caplog.messages) == 3
    with pytest.raises(ZeroDivisionError):
        weather.tried("it", lambda: 1 // 0, 7)


PRINTING = """
import sys, time
for step in range(1, 121):
    time.sleep(0.1)
    print("step", step, "loss", 1.0 / step, "." * 600, flush=True)
    with open(sys.argv[1], "w") as stream:
        stream.write(str(step))
"""


def start_printing(new_run: NewRun, folder: Path) -> SupervisedRun:
    """Start a program that knows nothing of gonogo, prints much, and takes twelve seconds."""
    script = folder / "printing.py"
    script.write_text(PRINTING)
    return new_run(
        "--allow", "any", entry=None, command=[sys.executable, str(script), str(folder / "told")],
        world_size=1, steps=120, identity={},
        patterns=[r"step (?P<step>\d+) loss (?P<loss>\S+)"],
    )  # fmt: skip


@pytest.mark.long
def test_a_program_may_print_on_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    """Its output goes to a log of the run: a print that is refused ends most programs."""
    with starting(small_disk) as new_run:
        run = start_printing(new_run, tmp_path)
        log = run.path / "rank0.log"
        wait_until(lambda: log.exists() and _room_of(log) > 2**19, "room for the log")
        filler = fill(small_disk)
        full_at = told(tmp_path)
        wait_until(lambda: told(tmp_path) >= full_at + 30, "three seconds on a full disk")
        filler.unlink()
        record = run.wait_for_exit()
        assert (record.reason, record.code) == (OutcomeCode.COMPLETED, 0), record.text
        assert log.read_text().count("\n") == 120
        assert _room_of(log) < 2**16


def _room_of(log: Path) -> int:
    """Return how many bytes a log takes beyond its end."""
    found = log.stat()
    return found.st_blocks * 512 - found.st_size


def test_last_words_use_the_room_held_for_them(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    reserve.hold()
    held = tmp_path / RESERVE_NAME
    assert held.stat().st_blocks * 512 >= 2**20
    tries: list[bool] = []

    def write() -> str:
        tries.append(held.exists())
        if held.exists():
            raise OSError(errno.ENOSPC, "full")
        return "written"

    assert reserve.write(write) == "written"
    assert tries == [True, False]


@pytest.mark.long
def test_a_disk_without_names_has_some_for_every_last_word(
    tmp_path: Path, small_disk: Path
) -> None:
    """A quota of files, or a disk without inodes: stamps took the only name that was held."""
    with starting(small_disk) as new_run:
        run = start_printing(new_run, tmp_path)
        wait_until(lambda: told(tmp_path) >= 10, "ten steps")
        subprocess.run(("mount", "-o", "remount,nr_inodes=40", str(small_disk)), check=True)
        for number in range(100):  # a draft of somebody's may be in between
            with contextlib.suppress(OSError):
                (small_disk / f"filler{number}").touch()
            time.sleep(0.01)
        record = run.wait_for_exit()
        assert (record.reason, record.code) == (OutcomeCode.COMPLETED, 0), record.text
        run.assert_replays()


def test_no_more_is_given_up_than_what_is_written_takes(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    reserve.hold(3)
    files = set(tmp_path.iterdir())
    assert len(files) == 4
    reserve.write(lambda: None)
    assert set(tmp_path.iterdir()) == files

    def write() -> None:
        if len(list(tmp_path.iterdir())) > 2:
            raise OSError(errno.EDQUOT, "no more files")

    reserve.write(write)
    assert len(list(tmp_path.iterdir())) == 2
    assert not (tmp_path / RESERVE_NAME).exists(), "the room goes first"
    with pytest.raises(OSError, match="full"):
        reserve.write(_refused)
    assert not list(tmp_path.iterdir())


def _refused() -> None:
    raise OSError(errno.ENOSPC, "full")


def test_the_end_of_a_part_is_written_however_late_its_disk_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 0 waits for it, and Slurm holds the job of both, so nobody ends it as lost."""
    monkeypatch.setattr(keeper, "LAST_WORDS_S", 0.0)
    monkeypatch.setattr(Keeper, "_wait", lambda self, wake: None)
    tried: list[int] = []

    def save() -> None:
        tried.append(1)
        if len(tried) < 4:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    _kept(tmp_path, 1)._save(0, save)
    assert len(tried) == 4
    tried.clear()
    with pytest.raises(OSError, match="Read-only"):
        _kept(tmp_path, 0)._save(0, save)
    tried.clear()
    (tmp_path / "exit.json").touch()  # node 0 waits no more
    with pytest.raises(OSError, match="Read-only"):
        _kept(tmp_path, 1)._save(0, save)


@pytest.mark.parametrize("gone", ["run", "home", "disk"])
def test_the_end_of_a_part_whose_directory_was_removed_is_waited_for_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """Its keeper held the job until the time limit; a home that is not mounted comes back."""
    monkeypatch.setattr(keeper, "LAST_WORDS_S", 0.0)
    monkeypatch.setattr(Keeper, "_wait", lambda self, wake: None)
    run_dir = tmp_path / "runs" / "run_x"
    run_dir.mkdir(parents=True)
    kept = _kept(run_dir, 1)
    tried: list[int] = []

    def save() -> None:
        tried.append(1)
        if len(tried) < 4:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    away = run_dir if gone == "run" else run_dir.parent
    away.rename(tmp_path / "away")
    if gone == "disk":  # where it was mounted there is an empty folder
        away.mkdir()
    with pytest.raises(FileNotFoundError) if gone == "run" else contextlib.nullcontext():
        kept._save(0, save)
    assert (len(tried) == 4) is (gone != "run")


def _kept(run_dir: Path, node: int) -> Keeper:
    order = build_test_order("run_x", nodes=2).document()
    return Keeper(
        run_dir=run_dir,
        order=order,
        ordered=json.dumps(order).encode(),
        locks={},
        environ=os.environ,
        allowed=Allowed(programs=frozenset({"any"})),
        watcher="watcher",
        place=Place.of(order, node),
    )
