"""Records by which the processes of a run find each other. Standard library only.

- `keeper.json`: the keeper of a run.
- `.rank{N}.json`: the process of a rank. Its wrapper writes it. A command may start its ranks
  itself (torchrun, accelerate, a shell). Until they are found, the command's own process stands for
  rank 0. Then each rank has a record marked `launched`.
- `.meet_node{K}.json`: node K has come for this attempt.
- `.met.json`: node 0 has seen all nodes; the launchers' address.
- `.alive_node{K}`: rewritten every second by node K's follower.
- `watch_node{K}.jsonl`: what node K's follower sees.
- `exit_node{K}.json`: how node K's part ended.
- `.gone_node{K}.json`: proof by an engine or an operator that node K ended without `exit_node`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.processes import ProcessRef, boot_id, load_stat, pid_namespace

_NAME = re.compile(r"\.rank(0|[1-9][0-9]{0,5})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One rank's process."""

    ref: ProcessRef
    wrapper: int  # Process id of the writer.
    launched: bool = False  # Whether the command started it, and may restart it.
    by_shell: bool = False  # Whether a shell stands between, which hides exit codes.


def save_rank_record(folder: Path, rank: int, record: RankRecord, at: float) -> None:
    """Write a rank's record; `at` in Unix seconds."""
    document = {
        "v": 1,
        "pid": record.ref.pid,
        "start_ticks": record.ref.start_ticks,
        "wrapper": record.wrapper,
        "at": at,
        **({"launched": True} if record.launched else {}),
        **({"by_shell": True} if record.by_shell else {}),
    }
    save_json(_path(folder, rank), document)


def load_rank_record(folder: Path, rank: int) -> RankRecord | None:
    """Return a rank's record; None if there is none that can be read."""
    found = load_json(_path(folder, rank)) or {}
    try:
        return RankRecord(
            ref=ProcessRef(pid=int(found["pid"]), start_ticks=int(found["start_ticks"])),
            wrapper=int(found["wrapper"]),
            launched=bool(found.get("launched")),
            by_shell=bool(found.get("by_shell")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def recorded_ranks(folder: Path) -> Iterator[int]:
    """Yield the numbers of the ranks that have a record, in their order."""
    matches = map(_NAME.fullmatch, os.listdir(folder))
    yield from sorted(int(match[1]) for match in matches if match is not None)


def _path(folder: Path, rank: int) -> Path:
    return folder / f".rank{rank}.json"


def living_keeper(run_dir: Path, name: str = "keeper.json") -> ProcessRef | None:
    """Return the keeper of a run, or of one node's part of it, if it lives on this host."""
    record = load_json(run_dir / name) or {}
    keeper = process_of(record)
    if keeper is None or record.get("boot_id") != boot_id() or not keeper.is_alive():
        return None
    return keeper


def is_kept_here(run_dir: Path) -> bool:
    """Return whether a keeper of any node of a run lives on this host."""
    return any(living_keeper(run_dir, path.name) for path in run_dir.glob("keeper*.json"))


def is_kept_elsewhere(run_dir: Path) -> bool:
    """Return whether all keepers of a run are recorded on other hosts."""
    records = (load_json(path) or {} for path in run_dir.glob("keeper*.json"))
    boots = {row.get("boot_id") for row in records} - {None}
    return bool(boots) and boot_id() not in boots


def process_of(record: Mapping[str, Any] | None) -> ProcessRef | None:
    """Return the process that a record names by `pid` and `start_ticks`."""
    row = record if isinstance(record, dict) else {}
    pid, start_ticks = row.get("pid"), row.get("start_ticks")
    if not isinstance(pid, int) or not isinstance(start_ticks, int):
        return None
    return ProcessRef(pid=pid, start_ticks=start_ticks)


MET_NAME = ".met.json"
MEET_NAME, EXIT_NAME, GONE_NAME = ".meet_node{}.json", "exit_node{}.json", ".gone_node{}.json"
ALIVE_NAME, WATCH_NAME = ".alive_node{}", "watch_node{}.jsonl"
SILENT_S = 10.0  # A node is silent after so long without a sign of its follower.


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """The keeper of one node, as `.meet_node{K}.json` names it."""

    node: int
    token: int
    host: str
    boot_id: str
    pid_ns: str  # The namespace of its process id.
    pid: int
    start_ticks: int
    address: str  # `host:port` at which node 0 can be reached.

    def document(self, at: float) -> dict[str, Any]:
        """Return the JSON form; `at` in Unix seconds."""
        return {"v": 1, **asdict(self), "at": at}


def own_keeping(*, node: int, token: int, address: str) -> Keeping:
    """Return the record of this process."""
    stat = load_stat(os.getpid())
    return Keeping(
        node=node,
        token=token,
        host=os.uname().nodename,
        boot_id=boot_id(),
        pid_ns=pid_namespace(),
        pid=os.getpid(),
        start_ticks=stat.start_ticks if stat else 0,
        address=address,
    )


def load_end(run_dir: Path, node: int, token: int) -> dict[str, Any] | None:
    """Return how a node's part of an attempt ended; None if it has not reported that."""
    found = load_json(run_dir / EXIT_NAME.format(node)) or {}
    written = found.get("token", token)
    return found if found and isinstance(written, int) and written >= token else None


def load_sign(run_dir: Path, node: int) -> str:
    """Return the newest sign of a node's follower; a changed one is a sign of life."""
    try:
        return (run_dir / ALIVE_NAME.format(node)).read_text()
    except FileNotFoundError:
        return ""


def load_keeping(run_dir: Path, node: int) -> Keeping | None:
    """Return the keeper of a node; None if it has not come."""
    found = load_json(run_dir / MEET_NAME.format(node)) or {}
    try:
        kinds: dict[str, Any] = {row.name: row.type for row in fields(Keeping)}
        return Keeping(**{name: kind(found[name]) for name, kind in kinds.items()})
    except (KeyError, TypeError, ValueError):
        return None


def proof_of_loss(run_dir: Path, node: int) -> str | None:
    """Return why it is certain that a node's part ended without a report; None if it is not.

    Silence proves nothing. Proof is `.gone_node{K}.json`, or that the node's keeper was a process
    of this host and is dead: its ranks die with it.
    """
    ended = run_dir / EXIT_NAME.format(node)
    if ended.exists():
        return None
    proof = _proof(run_dir, node)
    return None if ended.exists() else proof  # it may have been written in between


def _proof(run_dir: Path, node: int) -> str | None:
    word = load_json(run_dir / GONE_NAME.format(node))
    if word is not None:
        return f"{word.get('by') or 'somebody'} says: {word.get('text') or 'it has ended'}"
    keeping = load_keeping(run_dir, node)
    if keeping is None or ProcessRef(pid=keeping.pid, start_ticks=keeping.start_ticks).is_alive():
        return None
    # Virtual machines resumed from one snapshot share a boot id, but not a host name.
    here = os.uname().nodename, boot_id(), pid_namespace()
    if (keeping.host, keeping.boot_id, keeping.pid_ns) != here:
        return None
    return f"its keeper, process {keeping.pid}, is gone"
