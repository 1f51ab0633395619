"""Messages with the bytes of growing files that the control plane lacks.

Heartbeats, ticks, device samples, findings and logs go by byte offset, from what the control plane
acknowledged last. Nothing is known before its first answer, so the first message is empty.

Not covered: logs are tails. What lies further behind than a megabyte is skipped.
"""

import base64
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from gonogo.contract.finding import Near
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.worker_messages import (
    MAX_LOG_BYTES,
    MAX_STREAM_BYTES,
    MAX_TELEMETRY_LINES,
    STREAM_NAME,
    STREAMS,
    LogTelemetry,
    RankTelemetry,
    StreamTelemetry,
    Telemetry,
    TelemetryAck,
)
from gonogo.files import NoPlainFile, read_plain
from gonogo.rundir import RunDir, complete_bytes, load_lines
from gonogo.supervise.transient_errors import TransientErrors

MAX_MESSAGE_BYTES = 900 * 2**10
"""One message as JSON: proxies often let a megabyte pass. One part alone may be longer."""
LOG_LAG_BYTES = 1_048_576
_STREAM = re.compile(STREAM_NAME)
_LINE_BYTES = 300.0
"""Length of a heartbeat line before one was sent."""

_log = logging.getLogger(__name__)
_Part = TypeVar("_Part", RankTelemetry, LogTelemetry, StreamTelemetry)
_T = TypeVar("_T")


def has_content(telemetry: Telemetry) -> bool:
    """Say whether a message holds more than a sign of life."""
    return bool(telemetry.ranks or telemetry.logs or telemetry.files)


class _Room:
    """What is left of a message: many ranks, or many nodes, fill more than one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._full = False

    def take(self, parts: Iterable[_Part | None]) -> list[_Part]:
        """Return the parts that fit; none is built after the first that does not."""
        found: list[_Part] = []
        if self._full:
            return found
        for part in parts:
            if part is None:
                continue
            size = len(part.model_dump_json().encode())
            self._full = self._used > 0 and self._used + size > self._most
            if self._full:
                break
            self._used += size
            found.append(part)
        return found


class GrowingFiles:
    """The growing files of one run and how much of each is acknowledged."""

    def __init__(self, run_dir: RunDir, token: int) -> None:
        self._dir = run_dir
        self._token = token
        self._ranks: dict[int, int] = {}
        self._logs: dict[str, int] = {}
        self._files: dict[str, int] = {}
        self._line_bytes = _LINE_BYTES
        self.asked = False
        """Whether the control plane has reported what it holds."""
        self.backlog_lines = 0
        """About how many complete lines have not been acknowledged."""
        self.unread: OSError | None = None
        """Why the last message may lack lines that the end promises."""
        self._transient = TransientErrors(_log)

    @property
    def acknowledged(self) -> dict[str, int]:
        """Growing file (without logs) → bytes that the control plane has."""
        return {**{str(rank): size for rank, size in self._ranks.items()}, **self._files}

    def build_message(self, *, suspect: bool, near: Mapping[str, Near] | None = None) -> Telemetry:
        """Return the next part of every file that can be read, as far as there is room."""
        ranks: list[RankTelemetry] = []
        logs: list[LogTelemetry] = []
        files: list[StreamTelemetry] = []
        self.unread = None
        if self.asked:
            room = _Room(MAX_MESSAGE_BYTES)
            ranks = room.take(self._rank_parts())
            logs = room.take(self._log_parts())
            files = room.take(self._stream_parts())
        return Telemetry(
            token=self._token,
            ranks=ranks,
            logs=logs,
            files=files,
            suspect=suspect,
            near=None if near is None else dict(near),
        )

    def take_over(self, sent: Telemetry, ack: TelemetryAck) -> bool:
        """Note what the control plane says it has; return whether that is new."""
        for part in sent.ranks:
            self._line_bytes = max(1.0, (part.end - part.start) / max(1, len(part.lines)))
        before = self.asked, self._ranks, self._logs, self._files
        self.asked = True
        self._ranks = {int(rank): offset for rank, offset in ack.acked.items()}
        self._logs = dict(ack.logs)
        self._files = dict(ack.files)
        self.backlog_lines = self._count_backlog()
        return before != (self.asked, self._ranks, self._logs, self._files)

    def _rank_parts(self) -> Iterator[RankTelemetry | None]:
        """Yield a part of each rank, first those that are furthest behind."""
        ranks = self._try("the ranks", self._dir.ranks) or []
        share = max(MAX_LINE_BYTES, MAX_MESSAGE_BYTES // 2 // max(1, len(ranks)))
        for rank in sorted(ranks, key=lambda rank: self._ranks.get(rank, 0)):
            start = self._ranks.get(rank, 0)
            build = partial(build_rank_part, self._dir, rank, start, share)
            yield self._try(f"the lines of rank {rank}", build)

    def _log_parts(self) -> Iterator[LogTelemetry | None]:
        for name in self._try("the logs", partial(log_names, self._dir), promised=False) or []:
            build = partial(build_log_part, self._dir, name, self._logs.get(name, 0))
            yield self._try(name, build, promised=False)

    def _stream_parts(self) -> Iterator[StreamTelemetry | None]:
        most = min(MAX_STREAM_BYTES, MAX_MESSAGE_BYTES // 2)
        for name in self._try("the files", partial(stream_names, self._dir)) or []:
            build = partial(build_stream_part, self._dir, name, self._files.get(name, 0), most)
            yield self._try(name, build)

    def _try(self, what: str, read: Callable[[], _T | None], *, promised: bool = True) -> _T | None:
        """Return what is read; None where that is impossible now."""

        def read_or_note() -> _T | None:
            try:
                return read()
            except OSError as error:
                self.unread = error if promised else self.unread
                raise

        return self._transient.tried(what, read_or_note, cast("_T | None", None))

    def _count_backlog(self) -> int:
        unsent = self._try("the ranks", partial(unsent_bytes, self._dir, self._ranks)) or 0
        return round(unsent / self._line_bytes)


def build_rank_part(
    run_dir: RunDir, rank: int, start: int, most_bytes: int
) -> RankTelemetry | None:
    """Return complete lines of a rank's file from byte `start` on; None when there are none."""
    path = run_dir.heartbeat(rank)
    end = load_lines(path, start, start + most_bytes).offset
    if end == start:
        end = load_lines(path, start).offset
    if end == start:
        return None
    raw = b"".join(_load_between(path, start, end).splitlines(keepends=True)[:MAX_TELEMETRY_LINES])
    lines = [line.decode("utf-8", "replace") for line in raw.splitlines()]
    plain = "".join(f"{line}\n" for line in lines).encode() == raw
    return RankTelemetry(
        rank=rank,
        start=start,
        end=start + len(raw),
        lines=lines,
        raw_b64=None if plain else base64.b64encode(raw).decode("ascii"),
    )


def build_stream_part(
    run_dir: RunDir, name: str, start: int, most_bytes: int = MAX_STREAM_BYTES
) -> StreamTelemetry | None:
    """The same of another growing file; a line longer than `most_bytes` goes in parts."""
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
    """Return growing file → bytes of complete lines in it."""
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


def log_names(run_dir: RunDir) -> list[str]:
    """Return the logs that there are."""
    whole = ["torchrun.log"] if (run_dir.path / "torchrun.log").exists() else []
    return [*whole, *(f"rank{rank}.log" for rank in run_dir.logged_ranks())]


def build_log_part(run_dir: RunDir, name: str, start: int) -> LogTelemetry | None:
    """Return what a log has from byte `start` on; its tail, when that is far behind."""
    try:
        with read_plain(run_dir.path / name) as stream:
            size = stream.seek(0, 2)
            begin = size - MAX_LOG_BYTES if size - start > LOG_LAG_BYTES else min(start, size)
            stream.seek(begin)
            data = stream.read(MAX_LOG_BYTES)
    except (FileNotFoundError, NoPlainFile):
        return None
    if not data:
        return None
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
