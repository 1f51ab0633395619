"""No single edit of a healthy run's directory leaves a GO, unless a reason says why not.

The catalogue removes, empties, cuts, replaces and exchanges every file, and changes and removes
every field of every record and of every kind of line, one at a time. `HARMLESS` lists the edits
that still give GO, with the reason. A listed edit that gives no GO any more fails, too.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import GonogoError
from gonogo.contract.order import Order
from gonogo.contract.records import FileSeal, Tick
from gonogo.judge.directory import judge_directory
from gonogo.judge.facts.record import load_run
from gonogo.rundir import iter_lines, save_json
from gonogo.watch.offline_fold import tick_digest, tick_line
from tests.data.make_runs import EPOCH, Rank, exit_of, healthy_ranks, order_of, save_run
from tests.judge.runs import facts_of

Edit = Callable[[Path], None]

SHAPES: dict[str, Callable[[], Order]] = {
    "two ranks": order_of,
    "one rank": lambda: order_of(sets={"workload.world_size": 1}),
    "talkative": order_of,
    "resumed": lambda: order_of(resume_step=6),
    "restarted in place": order_of,
    "with devices": order_of,
    "two nodes": lambda: order_of().model_copy(update={"nodes": 2}),
}
QUICK = ("with devices",)
"""Shapes that every commit tries; `make long` tries all."""
EVERY_SHAPE = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in SHAPES
]


def restarted_ranks(order: Order, after: int = 6) -> list[Rank]:
    """Ranks that restart after a step: the new process's first lines come with the same tick."""
    ranks = [Rank(rank, order) for rank in range(order.world_size)]
    for rank in ranks:
        rank.boot()
        rank.mono += 0.05
        for step in range(1, order.steps + 1):
            rank.step(step)
            if step == after:
                rank.restart(step, boot=f"again0.{rank.rank}")
        rank.done()
    return ranks


def talkative_ranks(order: Order) -> list[Rank]:
    """Ranks that write every kind of line that a healthy one does, and are warned once."""
    ranks = [Rank(rank, order) for rank in range(order.world_size)]
    for rank in ranks:
        rank.boot()
        for step in range(1, order.steps + 1):
            if step == 4:
                rank.say("section", step, "forward", section_age_s=1.1, collective_seq=step)
                rank.say("alive", step, "forward", section_age_s=1.2, collective_seq=step)
            rank.step(step, loss=8.2 if step == 1 else None)
            if step == order.steps:
                rank.say("checkpoint", step, "checkpoint", path=f"checkpoints/{step}", dt=0.1)
        rank.done()
    return ranks


def save_healthy(folder: Path, order: Order, shape: str = "two ranks") -> None:
    if shape == "talkative":
        ranks = talkative_ranks(order)
    elif shape == "restarted in place":
        ranks = restarted_ranks(order)
    else:
        ranks = healthy_ranks(order)
    util = {0: 95.0, 1: 93.0} if shape == "with devices" else None
    save_run(folder, order, ranks, exit_of(ranks, agent=AGENT), util)


AGENT = {"v": 1, "code": 0, "signal": None, "at": EPOCH + 30.0}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A healthy directory of each shape, and one of another run."""
    root = tmp_path_factory.mktemp("forgery")
    for name, make in SHAPES.items():
        save_healthy(root / name, make(), name)
        other = make().model_copy(update={"run": "run_01K00000000000000000000009"})
        save_healthy(root / f"other {name}", other, name)
    return {folder.name: folder for folder in root.iterdir()}


def verdict_of(folder: Path) -> str:
    """The verdict, or the refusal to judge at all."""
    try:
        return str(judge_directory(folder)["verdict"])
    except GonogoError as error:
        return type(error).__name__


# ---- edits of whole files -----------------------------------------------------------------------

FILES = (
    "order.json",
    "exit.json",
    "exit_rank0.json",
    "preflight/preflight.json",
    "model.json",
    "env.json",
    "heartbeat_rank0.jsonl",
    "watch.jsonl",
    "findings.jsonl",
    "devices.jsonl",
    "exit_node0.json",
    "exit_node1.json",
    "watch_node1.jsonl",
)


def remove(name: str) -> Edit:
    return lambda folder: (folder / name).unlink()


def empty(name: str) -> Edit:
    return lambda folder: (folder / name).write_bytes(b"") and None


def cut(name: str) -> Edit:
    """Only the first half is left."""

    def edit(folder: Path) -> None:
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[: len(raw) // 2])

    return edit


def cut_lines(name: str, keep: slice) -> Edit:
    def edit(folder: Path) -> None:
        lines = (folder / name).read_bytes().splitlines(keepends=True)
        (folder / name).write_bytes(b"".join(lines[keep]))

    return edit


def garbage(name: str) -> Edit:
    return lambda folder: (folder / name).write_bytes(b"\x00\xff not json\n") and None


def directory(name: str) -> Edit:
    """A directory in place of the file."""

    def edit(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return edit


def link(name: str) -> Edit:
    """A link that leads nowhere in place of the file."""

    def edit(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(folder / "nowhere")

    return edit


def exchange(name: str) -> Edit:
    """The file of another healthy run in place of this one's."""

    def edit(folder: Path) -> None:
        other = folder.parent / f"other {folder.name.partition(' copy')[0]}"
        shutil.copy(other / name, folder / name)

    return edit


def add(name: str, raw: bytes = b"") -> Edit:
    return lambda folder: (folder / name).write_bytes(raw) and None


def append(name: str, raw: bytes) -> Edit:
    def edit(folder: Path) -> None:
        with (folder / name).open("ab") as stream:
            stream.write(raw)

    return edit


WAYS: dict[str, Callable[[str], Edit]] = {
    "removed": remove,
    "emptied": empty,
    "cut": cut,
    "garbage": garbage,
    "a directory": directory,
    "a link": link,
    "another run's": exchange,
}
HALT = {
    "v": 1, "detector": "stall", "severity": "halt", "rank": 0, "at": 1.0, "key": "k", "text": "",
}  # fmt: skip
FOREIGN = {
    "v": 1, "ts": 1.0, "mono": 1.0, "pid": 7, "rank": 7, "boot": "b7", "seq": 1, "step": 1,
    "msg": "alive",
}  # fmt: skip


def file_edits(folder: Path) -> Iterator[tuple[str, Edit]]:
    for name in FILES:
        if not (folder / name).exists():
            continue
        what = name if (folder / name).stat().st_size else f"empty {name}"
        for way, make in WAYS.items():
            yield f"{what} {way}", make(name)
    for name in ("heartbeat_rank0.jsonl", "watch.jsonl"):
        yield f"{name} without its first line", cut_lines(name, slice(1, None))
        yield f"{name} without its last line", cut_lines(name, slice(None, -1))
        yield f"{name} without every second line", cut_lines(name, slice(None, None, 2))
    yield "watch.jsonl only its first tick", cut_lines("watch.jsonl", slice(1))
    yield "watch.jsonl only its last tick", cut_lines("watch.jsonl", slice(-1, None))
    yield "watch.jsonl with garbage after it", append("watch.jsonl", b"{\n")
    yield "heartbeat_rank0.jsonl with garbage after it", append("heartbeat_rank0.jsonl", b"{\n")
    for name in ("heartbeat_rank0.jsonl", "watch.jsonl", "findings.jsonl", "devices.jsonl"):
        if (folder / name).exists():
            yield f"{name} with a blank line after it", append(name, b"\n")
    yield "findings.jsonl with a halt", append("findings.jsonl", wire_line(HALT))
    yield "findings.jsonl with garbage", append("findings.jsonl", b"{\n")
    yield ".HALT added", add(".HALT")
    yield ".kill added", add(".kill")
    yield "heartbeat_rank7.jsonl added", add("heartbeat_rank7.jsonl", wire_line(FOREIGN))
    yield "heartbeat_rank7.jsonl added, empty", add("heartbeat_rank7.jsonl")
    yield "devices.jsonl added, garbage", add("devices.jsonl", b"{\n")
    yield "heartbeats doubled", doubled
    yield "heartbeats in another order", shuffled
    for boot, msg in told_in(folder / "heartbeat_rank0.jsonl"):
        if msg in ("progress", "step_end"):
            yield f"the last {msg} of {boot} changed", last_of(boot, msg)


def told_in(file: Path) -> list[tuple[str, str]]:
    """Each process of a file with each kind of line that it has written."""
    rows = map(json.loads, file.read_bytes().splitlines())
    return list(dict.fromkeys((row["boot"], row["msg"]) for row in rows))


def last_of(boot: str, msg: str) -> Edit:
    """Another time on the last such line of a process."""

    def edit(folder: Path) -> None:
        file = folder / "heartbeat_rank0.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        rows = [json.loads(line) for line in lines]
        place = max(i for i, row in enumerate(rows) if (row["boot"], row["msg"]) == (boot, msg))
        lines[place] = wire_line({**rows[place], "mono": rows[place]["mono"] + 1e-6})
        file.write_bytes(b"".join(lines))

    return edit


def doubled(folder: Path) -> None:
    for file in folder.glob("heartbeat*"):
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(line for line in lines for _ in (0, 1)))


def shuffled(folder: Path, seed: int = 7) -> None:
    """A fifth of the lines moved, a fifth doubled."""
    chance = random.Random(seed)
    for file in folder.glob("heartbeat*"):
        lines = file.read_bytes().splitlines(keepends=True)
        for line in chance.sample(lines, len(lines) // 5):
            lines.insert(chance.randrange(len(lines)), line)
        for line in chance.sample(lines, len(lines) // 5):
            lines.remove(line)
            lines.insert(chance.randrange(len(lines)), line)
        file.write_bytes(b"".join(lines))


# ---- edits of fields ----------------------------------------------------------------------------


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, list):
        return value[:-1] if value else ["x"]
    if isinstance(value, dict):
        return dict(list(value.items())[:-1]) if value else {"x": "y"}
    return 1


def paths(value: Any, path: tuple[Any, ...] = (), depth: int = 2) -> Iterator[tuple[Any, ...]]:
    """Paths of fields, down to `depth`."""
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value[:1])
    for key, inner in pairs:
        yield (*path, key)
        if depth > 1:
            yield from paths(inner, (*path, key), depth - 1)


def with_field(document: Any, path: tuple[Any, ...], *, gone: bool) -> Any:
    """The document with one field changed, or gone."""
    found = json.loads(json.dumps(document))
    node = found
    for key in path[:-1]:
        node = node[key]
    if gone:
        del node[path[-1]]
    else:
        node[path[-1]] = changed(node[path[-1]])
    return found


def field_of(name: str, path: tuple[Any, ...], *, gone: bool) -> Edit:
    def edit(folder: Path) -> None:
        document = json.loads((folder / name).read_bytes())
        (folder / name).write_text(json.dumps(with_field(document, path, gone=gone), indent=1))

    return edit


def field_of_line(
    name: str, which: Callable[[dict[str, Any]], bool], path: tuple[Any, ...], *, gone: bool
) -> Edit:
    """One field of the first line that is such a one."""

    def edit(folder: Path) -> None:
        lines = (folder / name).read_bytes().splitlines(keepends=True)
        place = next(i for i, line in enumerate(lines) if which(json.loads(line)))
        lines[place] = wire_line(with_field(json.loads(lines[place]), path, gone=gone))
        (folder / name).write_bytes(b"".join(lines))

    return edit


def without_line(name: str, which: Callable[[dict[str, Any]], bool]) -> Edit:
    def edit(folder: Path) -> None:
        lines = (folder / name).read_bytes().splitlines(keepends=True)
        place = next(i for i, line in enumerate(lines) if which(json.loads(line)))
        (folder / name).write_bytes(b"".join(lines[:place] + lines[place + 1 :]))

    return edit


def contradicted(name: str, which: Callable[[dict[str, Any]], bool]) -> Edit:
    """The same line once more, with another step: two writers."""

    def edit(folder: Path) -> None:
        lines = (folder / name).read_bytes().splitlines(keepends=True)
        line = next(json.loads(line) for line in lines if which(json.loads(line)))
        lines.append(wire_line({**line, "step": line["step"] + 1}))
        (folder / name).write_bytes(b"".join(lines))

    return edit


def said(msg: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line.get("msg") == msg


def number(n: int) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line.get("n") == n


def record_edits(name: str, document: Any, depth: int) -> Iterator[tuple[str, Edit]]:
    """Every field of one record changed, and gone."""
    for path in paths(document, depth=depth):
        where = ".".join(map(str, path))
        yield f"{name}: {where} changed", field_of(name, path, gone=False)
        yield f"{name}: {where} gone", field_of(name, path, gone=True)


def first_line_edits(folder: Path, name: str) -> Iterator[tuple[str, Edit]]:
    """Every field of a file's first line changed, and gone."""
    raw = (folder / name).read_bytes() if (folder / name).exists() else b""
    for path in paths(json.loads(raw.splitlines()[0]), depth=1) if raw else ():
        for way, gone in (("changed", False), ("gone", True)):
            edit = field_of_line(name, lambda line: True, path, gone=gone)
            yield f"{name}: {path[0]} {way}", edit


def field_edits(folder: Path) -> Iterator[tuple[str, Edit]]:
    """Every field of every record and kind of line of a directory."""
    for name in ("order.json", "exit.json", "exit_rank0.json", "preflight/preflight.json",
                 "model.json", "env.json"):  # fmt: skip
        if not (folder / name).exists():
            continue
        document = json.loads((folder / name).read_bytes())
        yield from record_edits(name, document, depth=3 if "preflight" in name else 2)
    name = "heartbeat_rank0.jsonl"
    kinds: dict[str, dict[str, Any]] = {}
    for raw in (folder / name).read_bytes().splitlines():
        line = json.loads(raw)
        kinds.setdefault(line["msg"], line)
    for msg, line in kinds.items():
        yield f"{name}: {msg} gone", without_line(name, said(msg))
        yield f"{name}: {msg} contradicted", contradicted(name, said(msg))
        for path in paths(line, depth=1):
            yield (
                f"{name}: {msg}.{path[0]} changed",
                field_of_line(name, said(msg), path, gone=False),
            )
            yield f"{name}: {msg}.{path[0]} gone", field_of_line(name, said(msg), path, gone=True)
    for name in ("findings.jsonl", "devices.jsonl"):
        yield from first_line_edits(folder, name)
    name = "watch.jsonl"
    ticks = [json.loads(raw) for raw in (folder / name).read_bytes().splitlines()]
    for what, tick in (
        ("first", ticks[0]),
        ("middle", ticks[len(ticks) // 2]),
        ("last", ticks[-1]),
    ):
        yield f"{name}: {what} tick gone", without_line(name, number(tick["n"]))
        for path in paths(tick):
            where = ".".join(map(str, path))
            yield (
                f"{name}: {what} tick's {where} changed",
                field_of_line(name, number(tick["n"]), path, gone=False),
            )
            yield (
                f"{name}: {what} tick's {where} gone",
                field_of_line(name, number(tick["n"]), path, gone=True),
            )


# ---- what decides nothing -----------------------------------------------------------------------

HARMLESS = {
    "empty findings.jsonl removed": "nothing stood in it; the fold is the witness",
    "empty findings.jsonl emptied": "it was empty",
    "empty findings.jsonl cut": "it was empty",
    "empty findings.jsonl another run's": "it was empty, and so is the other",
    "findings.jsonl: source gone": "default is what it is where a finding does not say it",
    "findings.jsonl: rank gone": "it was null",
    "findings.jsonl: section gone": "it was null",
    "findings.jsonl: act gone": "it was null",
    "findings.jsonl: v *": "what a finding says is the same in every version",
    "findings.jsonl: value *": "the fold is the witness: it makes the number again",
    "findings.jsonl: threshold *": "the fold is the witness: it makes the number again",
    "findings.jsonl: since *": "the fold is the witness: it makes the time again",
    "findings.jsonl: at changed": "the fold is the witness: it makes the time again",
    "findings.jsonl: evidence *": "of what was kept for people no verdict rests on anything",
    "findings.jsonl: text changed": "the fold is the witness: it makes the words again",
    "devices.jsonl: v gone": "1 is what it is where a line does not say it",
    "env.json: *": "it says where the run was made, for people; its digest is in the facts",
    "env.json removed": "it says where the run was made, for people",
    "env.json emptied": "it says where the run was made, for people",
    "env.json cut": "it says where the run was made, for people",
    "env.json garbage": "it says where the run was made, for people",
    "env.json a link": "it says where the run was made, for people",
    "*.jsonl with a blank line after it": "a blank line tells nothing",
    "heartbeat_rank0.jsonl with garbage after it": "what is no heartbeat says nothing",
    "heartbeat_rank7.jsonl added, empty": "an empty file says nothing",
    "watch.jsonl: last tick's v *": "what a tick says is the same in every version",
    "watch.jsonl: last tick's n changed": "no tick follows that one",
    "watch.jsonl: last tick's mono changed": "the end was seen then, or a second later",
    "watch.jsonl: last tick's ts changed": "no deadline runs by the wall clock",
    "watch.jsonl: last tick's interval_s gone": "0.25 is what it is where a tick does not say it",
    "watch.jsonl: last tick's interval_s changed": "the next tick would have been meant later",
    "watch.jsonl: last tick's go *": "the trainer had its .GO long before it ended",
    "watch.jsonl: last tick's upto*": "every line had been read by the ticks before",
    "watch.jsonl: last tick's ranks changed": "what a rank's exit was stands in three other places",
    "watch.jsonl: last tick's ranks gone": "what a rank's exit was stands in three other places",
    "watch.jsonl: last tick's ranks.0 *": "what a rank's exit was stands in three other places",
}
"""Pattern of an edit's name → why that byte does not matter."""


def reason_of(name: str) -> str | None:
    return next((why for row, why in HARMLESS.items() if fnmatchcase(name, row)), None)


def copied(folder: Path) -> Path:
    copy = folder.parent / f"{folder.name} copy"
    shutil.rmtree(copy, ignore_errors=True)
    return shutil.copytree(folder, copy)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def untrue(folder: Path, edits: Iterable[tuple[str, Edit]]) -> tuple[list[str], int]:
    """Edits that `HARMLESS` describes wrongly, and the number of edits."""
    wrong, tried = [], 0
    for name, edit in edits:
        copy = copied(folder)
        before = bytes_of(copy)
        edit(copy)
        if bytes_of(copy) == before:
            continue
        tried += 1
        verdict = verdict_of(copy)
        if (verdict == "GO") != (reason_of(name) is not None):
            wrong.append(f"{name}: {verdict}")
    return wrong, tried


@pytest.mark.parametrize("shape", EVERY_SHAPE)
def test_no_edit_of_a_file_leaves_a_go(shape: str, healthy: dict[str, Path]) -> None:
    assert verdict_of(healthy[shape]) == "GO"
    wrong, tried = untrue(healthy[shape], file_edits(healthy[shape]))
    assert wrong == []
    assert tried >= 60


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3))])
def test_no_edit_of_a_field_leaves_a_go(part: int, healthy: dict[str, Path]) -> None:
    """Every field is changed or removed; which of the two, its name decides."""
    folder = healthy["talkative"]
    wrong, tried = untrue(folder, one_of_each_field(field_edits(folder), part))
    assert wrong == []
    assert tried >= 50


def one_of_each_field(edits: Iterable[tuple[str, Edit]], part: int) -> Iterator[tuple[str, Edit]]:
    """One edit of every field whose name is of this part of four."""
    fields: dict[str, list[tuple[str, Edit]]] = {}
    for name, edit in edits:
        fields.setdefault(name.rpartition(" ")[0], []).append((name, edit))
    for field, rows in fields.items():
        number = _drawn(field)
        if number % 4 == part:
            yield rows[number // 4 % len(rows)]


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_no_edit_of_any_field_of_any_shape_leaves_a_go(
    shape: str, healthy: dict[str, Path]
) -> None:
    wrong, tried = untrue(healthy[shape], field_edits(healthy[shape]))
    assert wrong == []
    assert tried >= 600


def test_no_edit_of_what_a_node_said_of_its_part_leaves_a_go(healthy: dict[str, Path]) -> None:
    folder, name = healthy["two nodes"], "exit_node1.json"
    assert verdict_of(folder) == "GO"
    edits = list(record_edits(name, json.loads((folder / name).read_bytes()), depth=2))
    line = "watch_node1.jsonl"
    edits += [
        (
            f"{line}: the state changed",
            field_of_line(line, number(0), ("ranks", 0, "state"), gone=False),
        ),
        (f"{line}: without its last line", cut_lines(line, slice(None, -1))),
        *((f"{name} {way}", WAYS[way](name)) for way in WAYS),
        *((f"{line} {way}", WAYS[way](line)) for way in WAYS if way != "another run's"),
    ]
    checked = "preflight/node1/preflight.json"
    edits += record_edits(checked, json.loads((folder / checked).read_bytes()), depth=2)
    edits += [(f"{checked} {way}", WAYS[way](checked)) for way in WAYS]
    wrong, tried = untrue(folder, edits)
    assert wrong == []
    assert tried >= 20


def test_a_node_that_nobody_checked_is_not_passed(healthy: dict[str, Path]) -> None:
    copy = copied(healthy["two nodes"])
    name, text = "preflight/node1/preflight.json", "node 1: no preflight is recorded"
    found = facts_of(load_run(copy))
    assert found.preflight is not None
    assert found.preflight.unchecked == []
    assert name in found.files
    ticks = [
        tick.model_copy(update={"files": {k: v for k, v in tick.files.items() if k != name}})
        for tick in ticks_in(copy)
    ]
    sealed_anew(copy, ticks)
    found = facts_of(load_run(copy))
    assert found.preflight is not None
    assert found.preflight.unchecked == [1]
    assert name not in found.files
    decision = judge_directory(copy)
    assert decision["verdict"] == "INCONCLUSIVE"
    (checked,) = (row for row in decision["criteria"] if row["id"] == "preflight")
    assert (checked["outcome"], checked["evidence"]) == ("inconclusive", text)


def _drawn(name: str) -> int:
    """A number that is the same everywhere."""
    return hashlib.sha256(name.encode()).digest()[0]


def ticks_in(folder: Path) -> list[Tick]:
    return [Tick.model_validate_json(line) for line in iter_lines(folder / "watch.jsonl")]


def sealed_anew(folder: Path, ticks: Iterable[Tick]) -> None:
    """Write other ticks as a whole chain, under an exit record that seals all but the last."""
    lines: list[bytes] = []
    previous = None
    *before, last = ticks
    for tick in before:
        whole = tick.model_copy(update={"prev": previous})
        previous = tick_digest(tick_line(whole))
        lines.append(tick_line(whole))
    raw = b"".join(lines)
    seal = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    said = json.loads((folder / "exit.json").read_bytes())
    save_json(folder / "exit.json", {**said, "watch": seal})
    raw = (folder / "exit.json").read_bytes()
    seal = FileSeal(bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())
    files = {**last.files, "exit.json": seal}
    end = last.model_copy(update={"prev": previous, "files": files})
    (folder / "watch.jsonl").write_bytes(raw + tick_line(end))
