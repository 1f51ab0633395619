"""The end of a run, or of one node's part: requests, killing, exit stamps, exit.json. Stdlib only.

Each keeper of a run with several nodes writes `exit_node{K}.json`, and node 0's writes `exit.json`
when it knows of all (`nodes`). Called from the keeper's one loop.
"""

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import Reserve, load_json, save_json
from gonogo.supervise.end_request import (
    HALT_LIMIT_S,
    HALT_NAME,
    KILL_NAME,
    EndRequest,
    ask_halt,
    ask_kill,
    asked_by,
    is_asked,
    load_request,
    reads_no_halt,
    until_after,
)
from gonogo.supervise.exit_record import build_exit
from gonogo.supervise.keeper.children import Child
from gonogo.supervise.keeper.kill import Killer, scan_for
from gonogo.supervise.keeper.nodes import save_node_end
from gonogo.supervise.last_lines import Ended, ended_of
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.process_records import (
    RankRecord,
    load_rank_record,
    proof_of_loss,
    recorded_ranks,
)


def load_oom_kills(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return how many processes the kernel has killed for want of memory; None: unknown.

    In a container the path of our group may be the host's. Then the root is our group.
    """
    groups = [row[3:] for row in _lines(proc / "self" / "cgroup") if row.startswith("0::/")]
    own = [cgroups / group.lstrip("/") / "memory.events" for group in (*groups, "/")]
    for path in (*own, proc / "vmstat"):
        for line in _lines(path):
            key, _, count = line.partition(" ")
            if key == "oom_kill" and count.isdecimal():
                return int(count)
    return None


class OutOfMemory:
    """When the kernel last killed for want of memory."""

    def __init__(self, load: Callable[[], int | None] = load_oom_kills) -> None:
        self._load, self._known = load, load()
        self.at: float | None = None
        """Unix seconds of the look that found more kills than the one before."""

    def look(self) -> None:
        """Read the counter."""
        found = self._load()
        if found is not None and self._known is not None and found > self._known:
            self.at = time.time()
        self._known = found if found is not None else self._known


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


OTHERS_EVERY_S = 1.0
DEAF_LIMIT_S = 30.0
"""The time to leave of ranks that have not written a line, and so have nothing to save."""


class RunEnd:
    """The end of one run, or of the part of it that one node has."""

    def __init__(
        self,
        run_dir: Path,
        order: Mapping[str, Any],
        place: Place,
        spare: Callable[[], frozenset[int]],
        reserve: Reserve,
        memory: OutOfMemory,
    ) -> None:
        self._dir, self._order, self._spare, self._reserve = run_dir, order, spare, reserve
        self._place, self._memory = place, memory
        self._unwritten: EndRequest | None = None
        """The first request that the disk refused; it is obeyed all the same."""
        self._programs = place.programs(order)
        self._launches = bool(order.get("command"))
        self._grace_s = float((order.get("halt") or {}).get("grace_s") or 0.0)
        self._killer: Killer | None = None
        self._halt_until: float | None = None
        self._first_node_at = float("-inf")

    def ask_to_leave(self, reason: str, ended_by: str, text: str, *, shield: bool = False) -> None:
        """Ask the ranks to leave with a checkpoint, unless the run is ending already.

        With `shield` the scheduler has sent them the same signal.
        """
        if not self._is_asked():
            leave_s = HALT_LIMIT_S
            if reads_no_halt(self._dir):
                leave_s = 0.0 if self._launches and not shield else DEAF_LIMIT_S
            self._put(ask_halt, self._request(reason, ended_by, text, leave_s))

    def obey(self, now: float, agent: Child, *, at_once: bool) -> None:
        """Do what the request files ask; `at_once` after a second signal."""
        if self._is_asked() and all(self._stamp(rank).exists() for rank in self._programs):
            self._finish(now, agent)  # torchrun takes seconds to report what the stamps show
        if self._killer is not None:
            return
        request = load_request(self._dir / KILL_NAME)
        if request is None and at_once:
            request = self.end_now("the keeper was asked again, to end at once")
        if request is None and self._has_run_out(now):
            request = self.end_now("asked to leave, the ranks did not")
        if request is None and self._first_node_ended(now):
            request = self._request("keeper_lost", "infra", "node 0 has ended", None)
        if request is not None:
            self._kill(now, agent, grace_s=request.grace_s, dump=True)

    def end_unseen(self, now: float, agent: Child, cause: tuple[str, str, str]) -> None:
        """Kill every process without a look at the run directory, whose file system may be gone."""
        if self._killer is None:
            self._unwritten = self._unwritten or self._request(*cause, None)
            self._kill(now, agent, grace_s=0.0, unseen=True)

    def is_over(self, now: float, agent: Child) -> bool:
        """Return whether all processes have ended, or those left are to be reported; kill them."""
        if agent.ended is not None:
            self._finish(now, agent)
        if self._killer is None:
            return False
        clear = self._killer.advance(now) and agent.ended is not None
        return clear or self._killer.has_given_up(now)

    def is_clear(self, now: float) -> bool:
        """Return whether nothing of the run is left; kill what is."""
        return self._killer is None or self._killer.advance(now)

    def left(self) -> list[dict[str, Any]]:
        """Return the processes of the run that outlive SIGKILL."""
        return [] if self._killer is None else self._killer.left()

    def save_exit(self, agent: Child, statuses: Mapping[int, Ended]) -> None:
        """Write exit.json, or this node's part."""
        self._memory.look()
        stamps, oom_at = self._complete_stamps(statuses, agent.ended), self._memory.at
        if not self._place.is_whole:
            save_node_end(
                self._dir,
                self._order,
                self._place,
                agent=agent.ended,
                ranks=stamps,
                left=self.left(),
                oom_at=oom_at,
            )
            return
        record = build_exit(
            run_dir=self._dir,
            order=self._order,
            request=self.first_request(),
            agent=agent.ended,
            ranks=stamps,
            left=self.left(),
            oom_at={} if oom_at is None else dict.fromkeys(stamps, oom_at),
            now=time.time(),
        )
        save_json(self._dir / "exit.json", record)

    def end_now(self, text: str) -> EndRequest:
        """Write `.kill` with the cause of the request before it, if there is one."""
        request, first = self._request("halted", "operator", text, None), self.first_request()
        if first is not None:
            request = replace(request, reason=first.reason, ended_by=first.ended_by, key=first.key)
        self._put(ask_kill, request)
        return load_request(self._dir / KILL_NAME) or request

    def first_request(self) -> EndRequest | None:
        """Return the first request to end the run, if there was one."""
        found = [row for row in (asked_by(self._dir), self._unwritten) if row is not None]
        return min(found, key=lambda request: request.at, default=None)

    def _is_asked(self) -> bool:
        written = any(is_asked(self._dir / name) for name in (HALT_NAME, KILL_NAME))
        return written or self._unwritten is not None

    def _stamp(self, rank: int) -> Path:
        return self._dir / f"exit_rank{rank}.json"

    def _has_run_out(self, now: float) -> bool:
        if self._halt_until is None:
            request = load_request(self._dir / HALT_NAME) or self._unwritten
            if request is None:
                return False
            until = request.until_mono
            if not self._place.is_whole:  # it may have been written on another host
                until = None if request.leave_s is None else now + request.leave_s
            self._halt_until = until or now + HALT_LIMIT_S
        return now >= self._halt_until

    def _first_node_ended(self, now: float) -> bool:
        """Return, on another node, whether node 0 is over: nobody watches this part any more."""
        if self._place.leads or now < self._first_node_at:
            return False
        self._first_node_at = now + OTHERS_EVERY_S
        return (self._dir / "exit.json").exists() or proof_of_loss(self._dir, 0) is not None

    def _put(self, ask: Callable[[Path, EndRequest], bool], request: EndRequest) -> None:
        try:
            self._reserve.write(partial(ask, self._dir, request))
        except OSError:
            self._unwritten = self._unwritten or request

    def _request(self, reason: str, by: str, text: str, leave_s: float | None) -> EndRequest:
        return EndRequest(
            reason=reason,
            ended_by=by,
            at=time.time(),
            text=text,
            until_mono=None if leave_s is None else until_after(leave_s),
            leave_s=leave_s,
            grace_s=self._grace_s,
        )

    def _finish(self, now: float, agent: Child) -> None:
        if self._killer is None:
            self._kill(now, agent, grace_s=0.0)
        else:
            self._killer.hurry(now)

    def _kill(
        self, now: float, agent: Child, *, grace_s: float, dump: bool = False, unseen: bool = False
    ) -> None:
        records = {} if unseen else self._rank_records()
        self._killer = Killer(
            scan=scan_for(str(self._order["run"]), self._place),
            agent=agent.ref if agent.ended is None else None,
            ranks=[record.ref for record in records.values()],
            spare=self._spare,
            grace_s=grace_s,
            dump=dump,
            now=now,
        )

    def _rank_records(self) -> dict[int, RankRecord]:
        ranks: Iterable[int] = self._programs
        if self._launches:  # a command may start more ranks than one
            ranks = [rank for rank in recorded_ranks(self._dir) if rank in self._place.ranks]
        records = {rank: load_rank_record(self._dir, rank) for rank in ranks}
        return {rank: record for rank, record in records.items() if record is not None}

    def _complete_stamps(
        self, statuses: Mapping[int, Ended], agent: Ended | None
    ) -> dict[int, Ended]:
        """Return how each rank ended; write the stamps that no wrapper could write."""
        exits: dict[int, Ended] = {}
        for rank, record in self._rank_records().items():
            document = load_json(self._stamp(rank))
            if document is not None:
                exits[rank] = ended_of(document)
            elif record.ref.is_alive():  # it cannot be killed
                exits[rank] = Ended(code=None, signal=None, at=time.time())
            else:
                known, wrapper = statuses.get(record.ref.pid), statuses.get(record.wrapper)
                exits[rank] = known or presumed_end(record, wrapper, agent)
                save_json(self._stamp(rank), exits[rank].document())
        return exits


def presumed_end(record: RankRecord, wrapper: Ended | None, agent: Ended | None) -> Ended:
    """Return how a rank ended if nobody saw it.

    A launcher that left with 0 vouches for its ranks; a shell does not. A rank below torchrun whose
    wrapper wrote nothing was killed, unless torchrun left with 0.
    """
    clean = agent is not None and agent.code == 0 and not record.by_shell
    if not record.launched and not clean:
        return wrapper or Ended(code=None, signal=int(signal.SIGKILL), at=time.time())
    return Ended(code=0 if clean else None, signal=None, at=agent.at if agent else time.time())
