"""A rank that the kernel killed for want of memory is named so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.supervise.keeper.oom import LOOK_EVERY_S, OutOfMemory, load_oom_kills
from tests.supervise.runs import ROOT, SupervisedRun, build_test_order

V2 = "0::/a/b\n"
EVENTS = "low 0\nhigh 0\nmax 41\noom 9\noom_kill {}\noom_group_kill 0\n"


def build_host(folder: Path, group: str, files: dict[str, str]) -> int | None:
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "self" / "cgroup").write_text(group)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return load_oom_kills(folder / "proc", folder / "groups")


@pytest.mark.parametrize(
    ("group", "files", "found"),
    [
        (V2, {"groups/a/b/memory.events": EVENTS.format(3)}, 3),
        (V2, {"groups/memory.events": EVENTS.format(4)}, 4),
        (V2, {"proc/vmstat": "nr_free_pages 7\noom_kill 8\n"}, 8),
        ("", {"proc/vmstat": "oom_kill many\n"}, None),
        (V2, {"groups/a/b/memory.events": "max 3\n", "proc/vmstat": "oom_kill 2\n"}, 2),
    ],
    ids=["group", "in a container", "host", "nothing", "no count"],
)
def test_the_nearest_counter_tells(
    tmp_path: Path, group: str, files: dict[str, str], found: int | None
) -> None:
    assert build_host(tmp_path, group, files) == found


def test_only_a_counter_that_has_grown_tells_a_kill() -> None:
    counts = iter([2, 2, None, 2, 3])
    memory = OutOfMemory(lambda: next(counts))
    for look in range(3):
        memory.look(look * LOOK_EVERY_S)
        assert memory.at is None
    memory.look(3 * LOOK_EVERY_S - 0.5)
    assert memory.at is None
    memory.look(3 * LOOK_EVERY_S - 0.4, at_once=True)
    assert memory.at is not None


HOG = "import time; time.sleep(1); held = [b'x' * 2**20 for _ in range(400)]; time.sleep(600)"


@pytest.fixture
def narrow_group() -> Iterator[Path]:
    """A control group whose processes may use 200 MB together."""
    for folder, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        place = folder / f"gonogo_oom_{os.getpid()}"
        try:
            place.mkdir()
            (place / limit).write_text(str(200 * 2**20))
        except OSError:
            continue
        yield place
        place.rmdir()
        return
    pytest.skip("no control groups of memory can be made here")


@pytest.mark.long
def test_a_program_that_outgrows_its_group_ended_for_want_of_memory(
    tmp_path: Path, narrow_group: Path
) -> None:
    order = build_test_order(
        "run_01J00000000000000000000OOM", entry=None, command=[sys.executable, "-c", HOG],
        world_size=1, steps=None, identity={"world_size": 1}, watch={},
    )  # fmt: skip
    run = SupervisedRun(path=tmp_path / order.run, order=order)
    run.module = "tests.supervise.keeper.test_oom"
    run.environ = {"GONOGO_TEST_GROUP": str(narrow_group), "PYTHONPATH": str(ROOT)}
    try:
        record = run.start("--allow", "any").wait_for_exit()
    finally:
        run.clean_up()
    assert (record.reason, record.ended_by) == (OutcomeCode.OOM, Actor.TRAINER)
    assert record.signal == 9
    assert "out of memory" in record.text


if __name__ == "__main__":  # a keeper in a group of its own
    from gonogo.supervise.keeper.__main__ import main

    Path(os.environ["GONOGO_TEST_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
    sys.exit(main(sys.argv[1:]))
