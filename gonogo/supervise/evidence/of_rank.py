"""What is read of one rank's process for a round of evidence? On the host where it runs.

The watcher reads those of its own host. Of a run with several nodes it asks: `.round.json` in the
round's folder says what is wanted, and each node's follower writes the same files there
(`of_node`).
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gonogo.contract.tick import StackProbe
from gonogo.files import create_plain
from gonogo.supervise.durable import save_json
from gonogo.supervise.evidence.stacks import Readers, read_stacks
from gonogo.supervise.threads import start_thread

ASKED_NAME = ".round.json"
MAX_FILE_BYTES = 2 * 2**20
_PROC_FILES = ("status", "wchan", "io", "stack", "syscall")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A rank to look at; `pid` is None when its process is gone."""

    rank: int
    pid: int | None
    stopped: bool = False
    elsewhere: bool = False
    """Whether it runs on another node, whose follower looks at it."""


def names_of_node(rank: int) -> tuple[str, str]:
    """Return the files that only a rank's own host can write."""
    return f"stacks_rank{rank}.txt", f"proc_rank{rank}.txt"


def save_asked(folder: Path, number: int, *, native: bool) -> None:
    """Ask every node's follower for its part of a round.

    Raises:
        OSError: the disk refuses.
    """
    save_json(folder / ASKED_NAME, {"v": 1, "number": number, "native": native})


def read_target(
    readers: Readers,
    program: str | None,
    keep: Callable[[StackProbe], object],
    number: int,
    target: Target,
    native: bool,
) -> str:
    """Return a rank's stacks as text; what a detector uses of them is given to `keep`."""
    assert target.pid is not None
    found = read_stacks(
        target.pid,
        rank=target.rank,
        round_number=number,
        stopped=target.stopped,
        native=native,
        program=program,
        readers=readers,
    )
    if found.probe is not None:
        keep(found.probe)
    return found.text


def read_proc(pid: int) -> str:
    """Return what the kernel says of a process."""
    parts = []
    for name in _PROC_FILES:
        try:
            text = Path(f"/proc/{pid}/{name}").read_text(errors="replace")
        except OSError as error:
            text = f"{error}\n"
        parts.append(f"== /proc/{pid}/{name}\n{text.rstrip()}\n")
    return "".join(parts)


def start_collector(path: Path, collect: Callable[[], str]) -> threading.Thread | None:
    """Start a collector; None where the host has no thread for it, which its file says then."""
    try:
        return start_thread(partial(run_collector, path, collect), path.name)
    except OSError as error:
        run_collector(path, partial(_fail, error))
        return None


def _fail(error: OSError) -> str:
    raise error


def run_collector(path: Path, collect: Callable[[], str]) -> None:
    """Write what a collector found, or why it found nothing."""
    try:
        text = collect()
    except Exception as error:  # noqa: BLE001 - edge of a thread: evidence that fails says so
        _log.warning("%s: %s", path.name, error, extra={"action": "evidence_failed"})
        text = f"failed: {type(error).__name__}: {error}\n"
    draft = path.with_name(f".{path.name}.part")
    try:
        with create_plain(draft) as stream:
            stream.write(text[-MAX_FILE_BYTES:].encode(errors="replace"))
        draft.replace(path)
    except OSError as error:
        _log.warning("%s: %s", path.name, error, extra={"action": "evidence_unwritten"})
