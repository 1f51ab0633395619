"""What recorded ticks amount to: what was sealed, heard, lost and added, as the record says it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.tick import FileSeal, Tick
from gonogo.rundir import save_json
from gonogo.watch import WatchRecord, refold, tick_digest, tick_line
from tests.watch.streams import EPOCH, T0, Watched, World, order_of, watch

ONE, OTHER = FileSeal(bytes=1, sha256="1" * 64), FileSeal(bytes=2, sha256="2" * 64)


def record_of(folder: Path) -> WatchRecord:
    record = refold(folder).watch
    assert record is not None
    return record


def end(folder: Path, **said: Any) -> None:
    """Write an exit record that says this."""
    record = {"ended_at": EPOCH + 100.0, "ended_by": "trainer", "reason": "completed"}
    save_json(folder / "exit.json", {**record, **said})


def alone(*, seconds: float = 2.0) -> World:
    """One rank, which ends its first step so long after its boot."""
    world = World(order_of(world_size=1), alive_every_s=99.0).boot(boot_s=0.0, load_s=0.0)
    return world.steps(1, step_s=seconds - world.mono + T0, data_s=0.0).finish()


def looked(world: World, *clocks: float) -> Watched:
    """The watch of a world by ticks that come so long after its begin."""
    return watch(world, ticking=lambda end: [(T0 + clock, 0.0) for clock in clocks])


@pytest.mark.parametrize(("before", "told"), [(2, []), (1, [2])], ids=["within", "behind"])
def test_what_exit_json_seals_reaches_to_the_last_byte_of_its_last_tick(
    before: int, told: list[int], tmp_path: Path
) -> None:
    """Up to there model.json may be written again, and no further."""
    first = Tick(n=0, mono=1.0, ts=1.0, files={"model.json": ONE})
    files = {"model.json": OTHER}
    ticks = [first, Tick(n=1, mono=2.0, ts=2.0, files=files, prev=tick_digest(tick_line(first)))]
    lines = [tick_line(row) for row in ticks]
    save_json(tmp_path / "order.json", order_of().document())
    (tmp_path / "watch.jsonl").write_bytes(b"".join(lines))
    end(tmp_path, watch={"bytes": len(b"".join(lines[:before])), "sha256": "0" * 64})
    assert [row.found for row in record_of(tmp_path).problems] == told


def test_a_changed_line_is_told_at_the_first_tick_that_had_read_it(tmp_path: Path) -> None:
    folder = looked(alone(), 1.0, 3.0, 5.0).save(tmp_path)
    file = folder / "heartbeat_rank0.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"step_start"', b'"alive"'))
    record = record_of(folder)
    (doubt,) = record.problems
    assert (doubt.kind, doubt.rank, doubt.found) == ("lines_changed", 0, 1)
    assert not record.agrees


@pytest.mark.parametrize(
    ("told", "added"),
    [
        (lambda count: {"heartbeat_rank0.jsonl": {"bytes": 1, "lines": count}}, None),
        (lambda count: {"heartbeat_rank0.jsonl": {"bytes": 1, "lines": count - 1}}, 1),
        (lambda count: {}, -1),
    ],
    ids=["as many", "one more", "all of them"],
)
def test_lines_that_exit_json_has_not_counted_were_added_after_the_end(
    told: Callable[[int], dict[str, Any]], added: int | None, tmp_path: Path
) -> None:
    live = looked(alone(), 5.0)
    count = live.files[0].count(b"\n")
    end(live.save(tmp_path), heartbeats=told(count))
    expected = [] if added is None else [count if added < 0 else added]
    assert [row.found for row in record_of(tmp_path).problems] == expected
