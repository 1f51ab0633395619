"""Convert the predecessor's heartbeat files into ordinary heartbeats.

Its lines (`ts iso pid rank step msg …`, rank 0 only, a progress line every `log_every` steps) have
no `mono`, `boot` or `seq`, no sections and no identity. `ts` becomes `mono`, the process id becomes
the boot. The steps between two progress lines share the time between the lines evenly. A step's
tokens are those that the reported speed implies, where these differ from the ordered tokens: so a
toy's speed is never taken for the model's (R70).
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import Msg, parse_heartbeat, parse_object
from gonogo.rundir import RunDir, iter_lines

MESSAGES = {
    "beat": Msg.ALIVE,
    "heartbeat": Msg.ALIVE,
    "fineweb_loader_ready": Msg.LOADER_READY,
    "fineweb_loader_error": Msg.LOADER_ERROR,
    "loader_timeout": Msg.LOADER_ERROR,
}
"""Its messages under our names; the others keep theirs."""
TOKENS_DIFFER = 0.1
"""Share by which a reported speed may differ from the distance between the lines."""
MOST_BETWEEN = 10_000
"""Steps between two lines that are written out; a line may name any step."""
_KEPT = ("exit.json", "order.json")


def is_predecessor(streams: Iterable[Iterable[bytes]]) -> bool:
    """Say whether the lines are the predecessor's: readable ones, none with `boot` and `seq`."""
    seen = False
    for lines in streams:
        for raw in lines:
            row = _row(raw)
            if row is None or not {"ts", "step", "msg"} <= row.keys():
                continue
            if "seq" in row or "boot" in row:
                return False
            seen = True
    return seen


def convert_directory(
    run_dir: RunDir, ranks: Iterable[int], folder: Path, tokens_per_step: int | None
) -> RunDir:
    """Write a directory of ordinary heartbeats, with the records of how the run ended.

    Args:
        folder: where to write; it exists and is empty.
        tokens_per_step: the ordered tokens of a step, where an order names them.
    """
    found = RunDir(folder)
    for name in _KEPT:
        if (run_dir.path / name).is_file():
            shutil.copyfile(run_dir.path / name, folder / name)
    for rank in ranks:
        with found.heartbeat(rank).open("wb") as stream:
            stream.writelines(convert(rank, iter_lines(run_dir.heartbeat(rank)), tokens_per_step))
    return found


@dataclass(slots=True)
class _Process:
    """One process of the predecessor."""

    boot: str
    rank: int
    ordered: int | None
    seq: int = 0
    step: int = 0
    ts: float = float("-inf")
    """Latest stamp."""
    advanced_ts: float | None = None
    """Stamp of the last progress line."""
    tokens: int | None = None

    def line(self, row: dict[str, Any], **fields: Any) -> bytes:
        """Return one ordinary line."""
        self.seq += 1
        made = {"pid": 0, **row, "rank": self.rank, "boot": self.boot, "seq": self.seq}
        made |= {"step": self.step, "mono": max(self.ts, row["ts"]), "section": None, **fields}
        return wire_line(made)

    def advance(self, row: dict[str, Any]) -> Iterator[bytes]:
        """Yield the lines of the steps up to the one that a progress line names."""
        step, ts, began = row["step"], row["ts"], self.advanced_ts
        bare = {"ts": ts, "pid": row.get("pid", 0)}
        if began is not None and began < ts:
            each_s = (ts - began) / (step - self.step)
            self.tokens = self._tokens(row.get("toks_per_s"), each_s)
            for done in range(max(self.step, step - MOST_BETWEEN), step):
                at = ts - (step - done) * each_s
                self.step = done + 1
                yield self.line({**bare, "ts": at}, msg=Msg.STEP_START, mono=at)
                if self.step < step:
                    at += each_s
                    end = {"msg": Msg.STEP_END, "mono": at, "tokens": self.tokens}
                    yield self.line({**bare, "ts": at}, **end)
        self.step, self.advanced_ts = step, ts
        yield self.line(row, msg=Msg.PROGRESS)
        yield self.line(bare, msg=Msg.STEP_END, tokens=self.tokens)

    def _tokens(self, told: float | None, each_s: float) -> int | None:
        """Return the tokens of a step that a reported speed implies, or the ordered ones."""
        if not isinstance(told, int | float) or not 0.0 < told < 1e12:
            return self.ordered
        implied = told * each_s
        if self.ordered and abs(implied - self.ordered) <= TOKENS_DIFFER * self.ordered:
            return self.ordered
        return round(implied)


def convert(rank: int, lines: Iterable[bytes], tokens_per_step: int | None) -> Iterator[bytes]:
    """Yield ordinary heartbeats of one rank; a line that cannot be read stays as it is."""
    processes: dict[str, _Process] = {}
    for raw in lines:
        row = _row(raw)
        name = f"pid-{(row or {}).get('pid', 0)}"
        process = processes.setdefault(name, _Process(name, rank, tokens_per_step))
        if row is None or not _is_heartbeat(row, process):
            yield raw if raw.endswith(b"\n") else raw + b"\n"
            continue
        msg = MESSAGES.get(row["msg"], row["msg"])
        if msg in (Msg.PROGRESS, Msg.STEP_END):
            if row["step"] > process.step:
                yield from process.advance(row)
        else:
            yield process.line(row, msg=msg)
        process.ts = max(process.ts, row["ts"])


def _is_heartbeat(row: dict[str, Any], process: _Process) -> bool:
    """Say whether a row would be an ordinary heartbeat with the fields that it lacks."""
    try:
        whole = {"pid": 0, **row, "rank": process.rank, "boot": process.boot, "seq": 0}
        parse_heartbeat(wire_line({**whole, "mono": row.get("ts"), "section": None}))
    except (Corrupt, TypeError, ValueError):
        return False
    return True


def _row(raw: bytes) -> dict[str, Any] | None:
    try:
        return parse_object(raw)
    except Corrupt:
        return None
