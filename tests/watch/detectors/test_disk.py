"""D19: a disk that is full, or nearly so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Act
from gonogo.contract.outcome import OutcomeCode
from gonogo.watch.registry import cause_of
from tests.watch.detectors.host import checkpoint, disk, host_order, tell
from tests.watch.streams import Watched, World, watch

REFUSALS = [
    ("OSError", "[Errno 28] No space left on device: '/runs/x/checkpoints/.step_000020.draft'"),
    ("OSError", "[Errno 30] Read-only file system"),
    ("OSError", "[Errno 122] Disk quota exceeded"),
    ("CheckpointFailure", "[Errno 28] No space left on device"),
    ("RuntimeError", "PytorchStreamWriter failed writing file data/3: No space left on device"),
]
OTHER_ERRORS = [
    ("OSError", "[Errno 2] No such file or directory: 'x'"),
    ("OSError", "[Errno 280] no such number"),
    ("OSError", "[Errno 5] Input/output error"),
    ("OSError", None),
]


SOON: dict[str, Any] = {"every_steps": 20}
"""A cadence by which a checkpoint is always due within ten seconds."""


def steps_with_room(
    *rooms: float, mb: float | None = 1_000.0, steps: int = 400, cadence: Mapping[str, Any] = SOON
) -> World:
    """A run that saved a checkpoint of `mb`, and then finds room every five seconds."""
    world = World(host_order(steps=steps, checkpoint=cadence)).boot().steps(2)
    if mb is not None:
        tell(world, checkpoints=[checkpoint(2, mb=mb)])
    for room in rooms:
        world.steps(10)
        tell(world, disk=disk(room))
    return world.steps(2)


def of_disk(seen: Watched) -> list[tuple[str, float | None]]:
    return [(f.severity.value, f.threshold) for f in seen.findings if f.detector == "disk"]


@pytest.mark.parametrize(("kind", "text"), REFUSALS)
def test_a_write_that_the_file_system_refused_halts_at_once(kind: str, text: str) -> None:
    world = World(host_order()).boot().steps(3)
    world.ranks[0].say("error", type=kind, text=text)
    (halt,) = watch(world.steps(1)).halts
    assert (halt.detector, halt.rank, halt.section, halt.step) == ("disk", None, None, 3)
    assert halt.act is Act.NOW
    assert "refused a write" in halt.text


NO_SPACE, READ_ONLY, QUOTA = (text for _, text in REFUSALS[:3])


@pytest.mark.parametrize(
    ("text", "free", "mb", "code"),
    [
        (NO_SPACE, 10.0, None, OutcomeCode.DISK_FULL),
        (NO_SPACE, 63.9, 20.0, OutcomeCode.DISK_FULL),
        (NO_SPACE, 64.0, 20.0, OutcomeCode.RESOURCE_LIMIT),
        (NO_SPACE, 999.0, 1_000.0, OutcomeCode.DISK_FULL),
        (NO_SPACE, 1_000.0, 1_000.0, OutcomeCode.RESOURCE_LIMIT),
        (NO_SPACE, None, 1_000.0, OutcomeCode.RESOURCE_LIMIT),
        (QUOTA, 10.0, 1_000.0, OutcomeCode.RESOURCE_LIMIT),
        (READ_ONLY, 10.0, 1_000.0, OutcomeCode.RESOURCE_LIMIT),
    ],
)
def test_a_disk_without_room_is_the_hosts_and_a_quota_the_runs(
    text: str, free: float | None, mb: float | None, code: OutcomeCode
) -> None:
    world = World(host_order()).boot().steps(2)
    if mb is not None:
        tell(world, checkpoints=[checkpoint(2, mb=mb)])
        world.steps(1)
    if free is not None:
        tell(world, disk=disk(free))
    world.steps(1).ranks[0].say("error", type="OSError", text=text)
    (halt,) = watch(world.steps(1)).halts
    assert cause_of(halt) is code


@pytest.mark.parametrize(("kind", "text"), OTHER_ERRORS)
def test_other_errors_are_not_the_disks(kind: str, text: str | None) -> None:
    world = World(host_order()).boot().steps(3)
    world.ranks[0].say("error", type=kind, text=text)
    assert watch(world.steps(1)).findings == []


@pytest.mark.parametrize(
    ("free", "mb", "found"),
    [
        (5_000, 1_000, []), (4_999, 1_000, [("warn", 5_000.0)]),
        (5_000, 4_000, [("warn", 8_000.0)]), (8_000, 4_000, []),
        (1_000, 1_000, [("warn", 5_000.0)]), (999, 1_000, [("warn", 5_000.0), ("halt", 1_000.0)]),
        (0, 1_000, [("warn", 5_000.0), ("halt", 1_000.0)]), (10, None, [("warn", 5_000.0)]),
    ],
    ids=str,
)  # fmt: skip
def test_room_is_held_against_the_last_checkpoint(
    free: float, mb: float | None, found: list[tuple[str, float]]
) -> None:
    seen = watch(steps_with_room(free, free, free, mb=mb))
    assert of_disk(seen) == found
    assert {cause_of(halt) for halt in seen.halts} <= {OutcomeCode.DISK_FULL}


@pytest.mark.parametrize(
    ("free", "checkpoints", "expected"),
    [
        (6_000.0, 500.0, [("warn", 5_000.0), ("halt", 1_000.0)]),
        (500.0, 90_000.0, [("warn", 5_000.0)]),
        (6_000.0, 90_000.0, []),
    ],
    ids=["checkpoints have no room", "they have, and logs have little", "both"],
)
def test_checkpoints_need_room_where_they_lie_and_nowhere_else(
    free: float, checkpoints: float, expected: list[tuple[str, float]]
) -> None:
    world = World(host_order(steps=400, checkpoint=SOON)).boot().steps(2)
    tell(world, checkpoints=[checkpoint(2, mb=1_000.0)])
    for _ in range(4):
        world.steps(10)
        tell(world, disk={**disk(free), "checkpoints_mb": checkpoints})
    seen = watch(world.steps(2))
    assert of_disk(seen) == expected
    lie = [row.text for row in seen.findings if "where its checkpoints lie" in row.text]
    assert bool(lie) is (checkpoints < free)


def test_room_that_is_short_while_a_checkpoint_is_written_is_no_shortage() -> None:
    world = steps_with_room(1_500)
    for rank in world.ranks:
        rank.enter("checkpoint")
    for _ in range(5):
        for rank in world.ranks:
            rank.spend(5.0)
        tell(world, disk=disk(400))
    for rank in world.ranks:
        rank.say("checkpoint", dt=25.0)
        rank.enter(None)
    world.steps(4)
    tell(world, disk=disk(1_400))
    assert of_disk(watch(world.steps(2))) == [("warn", 5_000.0)]


@given(st.lists(st.floats(0, 990), min_size=2, max_size=10))
@settings(max_examples=8, deadline=None)
def test_less_than_one_checkpoint_for_long_always_halts(rooms: list[float]) -> None:
    found = of_disk(watch(steps_with_room(*rooms), interval_s=1.0))
    assert found == [("warn", 5_000.0), ("halt", 1_000.0)]


@pytest.mark.parametrize(
    ("cadence", "looks", "halts"),
    [
        ({"every_s": 3600.0, "every_steps": 4000}, 24, []), ({}, 11, []),
        ({}, 15, [("halt", 1_000.0)]), ({"every_steps": 300}, 15, []),
        ({"every_steps": 300}, 28, [("halt", 1_000.0)]), ({"every_s": 150.0}, 15, []),
        ({"every_s": 150.0}, 28, [("halt", 1_000.0)]),
        ({"every_s": 300.0, "every_steps": 20}, 3, [("halt", 1_000.0)]),
    ],
    ids=str,
)  # fmt: skip
def test_room_that_is_back_before_the_next_checkpoint_is_due_was_never_needed(
    cadence: dict[str, Any], looks: int, halts: list[tuple[str, float]]
) -> None:
    world = steps_with_room(*[999] * looks, 9_000, 9_000, steps=10_000, cadence=cadence)
    seen = watch(world, interval_s=1.0)
    assert of_disk(seen) == [("warn", 5_000.0), *halts]


@pytest.mark.parametrize(("ended", "halts"), [(17, []), (18, [("halt", 1_000.0)])])
def test_with_long_steps_the_next_write_is_at_most_two_steps_away(
    ended: int, halts: list[tuple[str, float]]
) -> None:
    world = World(host_order(steps=10_000, checkpoint={"every_steps": 20}), alive_every_s=5.0)
    world.boot().steps(2, step_s=39.99)
    tell(world, checkpoints=[checkpoint(2)], disk=disk(9_000.0))
    world.steps(ended - 2, step_s=39.99)
    for _ in range(2):
        tell(world, disk=disk(999.0))
        world.pause(None, 6.0)
    tell(world, disk=disk(9_000.0))
    assert of_disk(watch(world.steps(1), interval_s=1.0)) == [("warn", 5_000.0), *halts]


def test_an_invalid_checkpoint_has_no_size() -> None:
    world = World(host_order(steps=400, checkpoint=SOON)).boot().steps(2)
    tell(world, checkpoints=[checkpoint(2, mb=1.0)])
    for _ in range(4):
        world.steps(10)
        torn = {**checkpoint(12, text="torn"), "bytes": 90_000 * 2**20}
        tell(world, checkpoints=[torn], disk=disk(6_000.0))
    assert of_disk(watch(world.steps(2))) == []


def test_without_a_checkpoint_only_the_plans_megabytes_count() -> None:
    world = World(host_order({"disk": {"warn_mb": 0.25}})).boot().steps(2)
    tell(world, disk=disk(0.3))
    assert of_disk(watch(world.steps(2))) == []


def test_a_run_that_has_ended_its_last_step_is_left_alone() -> None:
    world = World(host_order(steps=20)).boot().steps(10)
    tell(world, checkpoints=[checkpoint(10)])
    world.steps(10)
    for _ in range(4):
        world.pause("eval", 5.0)
        tell(world, disk=disk(100))
    assert watch(world.finish()).findings == []


def test_a_long_refusal_is_cut_at_two_hundred_characters() -> None:
    world = World(host_order()).boot().steps(1)
    world.ranks[0].say("error", type="OSError", text="Errno 30 " + "x" * 300)
    (halt,) = watch(world.steps(1)).halts
    assert halt.text.endswith("Errno 30 " + "x" * 191)


@pytest.mark.parametrize(
    ("free_files", "code"),
    [(0, OutcomeCode.DISK_FULL), (15, OutcomeCode.DISK_FULL), (16, OutcomeCode.RESOURCE_LIMIT)],
)
def test_a_disk_without_inodes_is_full(free_files: int, code: OutcomeCode) -> None:
    world = World(host_order()).boot().steps(2)
    tell(world, disk=disk(50_000.0, free_files=free_files))
    world.steps(1).ranks[0].say("error", type="OSError", text=NO_SPACE)
    (halt,) = watch(world.steps(1)).halts
    assert cause_of(halt) is code
    assert halt.text.endswith(f"{free_files} inodes were free where the run writes")
