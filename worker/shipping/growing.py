"""What of a run's growing files does the control plane lack? Messages from what it acknowledged.

Nothing is known before its first answer, so the first message is empty; what it says it has counts,
whatever was said before.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar, cast

from gonogo.contract.agent import (
    MAX_STREAM_BYTES,
    LogTelemetry,
    RankTelemetry,
    StreamTelemetry,
    Telemetry,
    TelemetryAck,
)
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.near import Near
from gonogo.rundir import RunDir
from gonogo.supervise.weather import Weather
from worker.shipping.parts import (
    build_log_part,
    build_rank_part,
    build_stream_part,
    log_names,
    stream_names,
    unsent_bytes,
)

MAX_BATCH_BYTES = 2 * 2**20
"""Heartbeat bytes in one message."""
MAX_MESSAGE_BYTES = 8 * 2**20
"""Of one message as JSON, half of what the service takes; one part alone may be longer."""
LEAST_MESSAGE_BYTES = 2 * MAX_LINE_BYTES
"""What anybody on the way has to let pass: a line and its frame."""
_LINE_BYTES = 300.0
"""How long a heartbeat line is before one was sent."""

_log = logging.getLogger(__name__)
_Part = TypeVar("_Part", RankTelemetry, LogTelemetry, StreamTelemetry)
_T = TypeVar("_T")


def brings(telemetry: Telemetry) -> bool:
    """Say whether a message brings anything but a sign of life."""
    return bool(telemetry.ranks or telemetry.logs or telemetry.files)


class _Room:
    """What is left of a message: many ranks, or the watchers of many nodes, fill more than one."""

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
    """Heartbeats, ticks, device samples, findings and logs of one run, by byte offset.

    Args:
        run_dir: the run's directory.
        token: the token that the run was claimed with.
    """

    def __init__(self, run_dir: RunDir, token: int) -> None:
        self._dir = run_dir
        self._token = token
        self._ranks: dict[int, int] = {}
        self._logs: dict[str, int] = {}
        self._files: dict[str, int] = {}
        self._line_bytes = _LINE_BYTES
        self._most = MAX_MESSAGE_BYTES
        self.asked = False
        """Whether the control plane has said what it has."""
        self.backlog_lines = 0
        """About how many complete lines have not been acknowledged."""
        self.unseen: OSError | None = None
        """Why the last message may lack what the end promises; of logs it promises nothing."""
        self.left_out: frozenset[str] = frozenset()
        """Heartbeat files that are none, and never will be: nothing of them is sent."""
        self._weather = Weather(_log)

    @property
    def acknowledged(self) -> dict[str, int]:
        """Growing file, but logs → bytes that the control plane says it has."""
        return {**{str(rank): size for rank, size in self._ranks.items()}, **self._files}

    def shrink(self) -> bool:
        """Build messages of half the size from now on; False where they are small already.

        A proxy on the way may take less than the service: many take a megabyte.
        """
        if self._most <= LEAST_MESSAGE_BYTES:
            return False
        self._most = max(LEAST_MESSAGE_BYTES, self._most // 2)
        return True

    def build_message(self, *, suspect: bool, near: Mapping[str, Near] | None = None) -> Telemetry:
        """Return the next part of every file, as far as there is room, heartbeats first.

        It is empty until the offsets are known. A file that cannot be read just now holds back
        neither the others nor the sign of life.
        """
        ranks: list[RankTelemetry] = []
        logs: list[LogTelemetry] = []
        files: list[StreamTelemetry] = []
        self.unseen = None
        if self.asked:
            room = _Room(self._most)
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
            backlog_lines=self._count_backlog(),
        )

    def take_over(self, sent: Telemetry, ack: TelemetryAck) -> bool:
        """Take over what the control plane says it has; say whether that is anything new."""
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
        """Yield a part of each rank, of those first that are furthest behind."""
        found = self._seen("the ranks", self._dir.ranks) or []
        ranks = [rank for rank in found if self._dir.heartbeat(rank).name not in self.left_out]
        batch = min(MAX_BATCH_BYTES, self._most // 2)
        share = max(MAX_LINE_BYTES, batch // max(1, len(ranks)))
        for rank in sorted(ranks, key=lambda rank: self._ranks.get(rank, 0)):
            start = self._ranks.get(rank, 0)
            build = partial(build_rank_part, self._dir, rank, start, share)
            yield self._seen(f"the lines of rank {rank}", build)

    def _log_parts(self) -> Iterator[LogTelemetry | None]:
        for name in self._seen("the logs", partial(log_names, self._dir), promised=False) or []:
            build = partial(build_log_part, self._dir, name, self._logs.get(name, 0))
            yield self._seen(name, build, promised=False)

    def _stream_parts(self) -> Iterator[StreamTelemetry | None]:
        most = min(MAX_STREAM_BYTES, self._most // 2)
        for name in self._seen("the files", partial(stream_names, self._dir)) or []:
            build = partial(build_stream_part, self._dir, name, self._files.get(name, 0), most)
            yield self._seen(name, build)

    def _seen(
        self, what: str, look: Callable[[], _T | None], *, promised: bool = True
    ) -> _T | None:
        """Return what there is to see; None where that cannot be read just now."""
        nothing = cast("_T | None", None)

        def try_it() -> _T | None:
            try:
                return look()
            except OSError as error:
                self.unseen = error if promised else self.unseen
                raise

        return self._weather.tried(what, try_it, nothing)

    def _count_backlog(self) -> int:
        unsent = self._seen("the ranks", partial(unsent_bytes, self._dir, self._ranks)) or 0
        return round(unsent / self._line_bytes)
