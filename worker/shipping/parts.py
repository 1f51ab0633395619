"""Which part of a file goes into the next message? From the acknowledged byte, within limits."""

import base64
import io
import re
from pathlib import Path

from gonogo.contract.agent import (
    MAX_LOG_BYTES,
    MAX_STREAM_BYTES,
    MAX_TELEMETRY_LINES,
    STREAM_NAME,
    STREAMS,
    LogTelemetry,
    RankTelemetry,
    StreamTelemetry,
)
from gonogo.contract.records import ExitRecord
from gonogo.files import NoPlainFile, is_for_good, read_plain
from gonogo.rundir import Lines, RunDir, complete_bytes, load_lines

_STREAM = re.compile(STREAM_NAME)
LOG_LAG_BYTES = 1_048_576


def build_rank_part(
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
    raw = _load_between(path, start, part.offset)
    plain = "".join(f"{line}\n" for line in lines).encode() == raw
    return RankTelemetry(
        rank=rank,
        start=start,
        end=part.offset,
        lines=lines,
        raw_b64=None if plain else base64.b64encode(raw).decode("ascii"),
    )


def build_stream_part(
    run_dir: RunDir, name: str, start: int, most_bytes: int = MAX_STREAM_BYTES
) -> StreamTelemetry | None:
    """Return the complete lines of another growing file from byte `start` on; None: there are none.

    At most `most_bytes` of them; a line that alone is more is sent in parts.
    """
    path = run_dir.path / name
    raw = _load_between(path, start, start + most_bytes)
    cut = raw.rfind(b"\n") + 1
    if cut == 0 and len(raw) == most_bytes:
        cut = min(len(raw), max(0, complete_bytes(path) - start))
    if not cut:
        return None
    content = base64.b64encode(raw[:cut]).decode("ascii")
    return StreamTelemetry(name=name, start=start, content_b64=content)


def stream_sizes(run_dir: RunDir) -> dict[str, int]:
    """Return growing file → bytes of complete lines in it, of those that there are."""
    return {name: complete_bytes(run_dir.path / name) for name in stream_names(run_dir)}


def stream_names(run_dir: RunDir) -> list[str]:
    """Return the growing files that there are, besides heartbeats and logs."""
    of_nodes = sorted(path.name for path in run_dir.path.glob("watch_node*.jsonl"))
    names = [*STREAMS, *(name for name in of_nodes if _STREAM.fullmatch(name))]
    return [name for name in names if (run_dir.path / name).is_file()]


def _load_between(path: Path, start: int, end: int) -> bytes:
    with read_plain(path) as stream:
        stream.seek(start)
        return stream.read(end - start)


def _load_fewer(path: Path, start: int, end: int) -> Lines:
    """Return as many of the lines between two bytes as one message takes, at least one.

    A line may hold carriage returns, which readers take for ends of lines too; of one that alone
    is too many for a message the rest is left out (it is no heartbeat).
    """
    whole = io.BytesIO(_load_between(path, start, end))
    taken: list[bytes] = []
    for line in whole:
        pieces = line.splitlines()
        if taken and len(taken) + len(pieces) > MAX_TELEMETRY_LINES:
            break
        taken.extend(pieces)
        start += len(line)
    return Lines(lines=taken[:MAX_TELEMETRY_LINES], offset=start)


def replaced_files(run_dir: RunDir, exit_record: ExitRecord) -> frozenset[str]:
    """Return the files of heartbeats and of findings that are none, and were none at the end.

    A program has made a pipe or a folder of them. What stood there before can never be sent, and
    the end says that nothing stood there.

    Raises:
        OSError: nobody can say just now.
    """
    said = {name: row.bytes for name, row in (exit_record.heartbeats or {}).items()}
    if exit_record.findings is not None:
        said[run_dir.findings.name] = exit_record.findings.bytes
    empty = (name for name, size in said.items() if size == 0)
    return frozenset(name for name in empty if _is_replaced(run_dir.path / name))


def _is_replaced(path: Path) -> bool:
    try:
        read_plain(path).close()
    except FileNotFoundError:
        return False
    except OSError as error:
        if not is_for_good(error):
            raise
        return True
    return False


def log_names(run_dir: RunDir) -> list[str]:
    """Return the logs that there are."""
    whole = ["torchrun.log"] if (run_dir.path / "torchrun.log").exists() else []
    return [*whole, *(f"rank{rank}.log" for rank in run_dir.logged_ranks())]


def build_log_part(run_dir: RunDir, name: str, start: int) -> LogTelemetry | None:
    """Return what a log has from byte `start` on (its tail, when that is far behind)."""
    found = load_log_bytes(run_dir.path / name, start, MAX_LOG_BYTES, LOG_LAG_BYTES)
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
        except OSError:
            continue
        total += max(0, size - acked.get(rank, 0))
    return total


def load_log_bytes(path: Path, offset: int, most: int, lag: int) -> tuple[int, bytes] | None:
    """Return what follows `offset`, at most `most` bytes, as (start, bytes); None when nothing.

    What is no regular file is no log: nobody waits for the other end of a pipe.

    A reader further than `lag` bytes behind jumps to the last `most` bytes.
    """
    try:
        with read_plain(path) as stream:
            size = stream.seek(0, 2)
            start = size - most if size - offset > lag else min(offset, size)
            stream.seek(start)
            data = stream.read(most)
    except (FileNotFoundError, NoPlainFile):
        return None
    return (start, data) if data else None
