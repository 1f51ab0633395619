"""A rank that the kernel killed for want of memory is named so."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.supervise.keeper.run_end import OutOfMemory, load_oom_kills

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
    for _ in range(3):
        memory.look()
        assert memory.at is None
    memory.look()
    assert memory.at is not None
