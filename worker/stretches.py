"""Which part of a file goes into the next message? From the acknowledged byte, within limits."""

import io
from pathlib import Path

from gonogo.contract.agent import (
    MAX_LOG_BYTES,
    MAX_TELEMETRY_LINES,
    LogTelemetry,
    RankTelemetry,
)
from gonogo.contract.rundir import Lines, RunDir, load_lines
from worker.spool import load_tail

LOG_LAG_BYTES = 1_048_576


def build_rank_stretch(
    run_dir: RunDir, rank: int, start: int, most_bytes: int
) -> RankTelemetry | None:
    """Return the complete lines of a rank's file from byte `start` on; None when there are none.

    At most `most_bytes` of them, or one line when that is longer.
    """
    path = run_dir.heartbeat(rank)
    part = load_lines(path, start, start + most_bytes)
    if part.offset == start:
        part = load_lines(path, start)
    if part.offset == start:
        return None
    if len(part.lines) > MAX_TELEMETRY_LINES:
        part = _load_fewer(path, start, part.offset)
    lines = [line.decode("utf-8", "replace") for line in part.lines]
    return RankTelemetry(rank=rank, start=start, end=part.offset, lines=lines)


def _load_fewer(path: Path, start: int, end: int) -> Lines:
    """Return as many of the lines between two bytes as one message takes, at least one.

    A line may hold carriage returns, which readers take for ends of lines too; of one that alone
    is too many for a message the rest is left out (it is no heartbeat).
    """
    with path.open("rb") as stream:
        stream.seek(start)
        whole = io.BytesIO(stream.read(end - start))
    taken: list[bytes] = []
    for line in whole:
        pieces = line.splitlines()
        if taken and len(taken) + len(pieces) > MAX_TELEMETRY_LINES:
            break
        taken.extend(pieces)
        start += len(line)
    return Lines(lines=taken[:MAX_TELEMETRY_LINES], offset=start)


def log_names(run_dir: RunDir) -> list[str]:
    """Return the logs that there are."""
    names = ["torchrun.log", *(f"rank{rank}.log" for rank in run_dir.ranks())]
    return [name for name in names if (run_dir.path / name).exists()]


def build_log_stretch(run_dir: RunDir, name: str, start: int) -> LogTelemetry | None:
    """Return what a log has from byte `start` on (its tail, when that is far behind)."""
    found = load_tail(run_dir.path / name, start, MAX_LOG_BYTES, LOG_LAG_BYTES)
    if found is None:
        return None
    begin, data = found
    text = data.decode("utf-8", "replace").replace("\x00", "\ufffd")
    return LogTelemetry(name=name, start=begin, end=begin + len(data), text=text)


def unsent_bytes(run_dir: RunDir, acked: dict[int, int]) -> int:
    """Return how many bytes of heartbeats have not been acknowledged."""
    total = 0
    for rank in run_dir.ranks():
        try:
            size = run_dir.heartbeat(rank).stat().st_size
        except FileNotFoundError:
            continue
        total += max(0, size - acked.get(rank, 0))
    return total
