"""How does a run come to its end, as the keeper sees it? Requests, processes, exit.json.

Reads `.HALT` and `.kill`, ends every process when it is time, fills in the exit stamps that no
wrapper could write any more, and writes `exit.json` when nothing of the run is left. Of a run with
several nodes each keeper ends its own part (`exit_node{K}.json`), and node 0's writes `exit.json`
when it knows of all (`nodes`). Stdlib only; called from the keeper's one loop.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import load_json, save_json
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
from gonogo.supervise.exit_record import ENDED_BY_ITSELF, Ended, build_exit, ended_of
from gonogo.supervise.keeper.children import Child
from gonogo.supervise.keeper.kill import Killer
from gonogo.supervise.keeper.marked import environs_of
from gonogo.supervise.keeper.nodes import Nodes
from gonogo.supervise.keeper.oom import OutOfMemory
from gonogo.supervise.keeper.part import save_part
from gonogo.supervise.keeper.refusals import Refusals
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.node_record import load_end, proof_of_loss
from gonogo.supervise.processes import ProcessRef
from gonogo.supervise.rank_record import RankRecord, load_rank_record, recorded_ranks
from gonogo.supervise.weather import Reserve

LEAD_EVERY_S = 1.0
AFTERMATH_S = 10.0
"""Who is killed so long after a rank has failed, or was asked to end, is killed for that: torchrun
waits 30 s for one that does not leave."""
DEAF_LIMIT_S = 30.0
"""How long ranks get to leave that cannot know of it, or have nothing to save: none has spoken.

A command that looks for no `.HALT` gets as long only where it was sent the signal itself.
"""


_GONE = "the run's directory was moved, removed or unmounted while it ran"


class Ending:
    """The end of one run, or of the part of it that one node has.

    Args:
        run_dir: the run's directory.
        order: the order as data.
        place: the ranks that are ended here.
        spare: returns the processes whose trees stay (the watcher).
        reserve: room for requests on a full disk.
        memory: what the kernel killed for want of memory.
        refusals: when the disk took no writes.
    """

    def __init__(
        self,
        run_dir: Path,
        order: Mapping[str, Any],
        place: Place,
        spare: Callable[[], frozenset[int]],
        reserve: Reserve,
        memory: OutOfMemory,
        refusals: Refusals,
    ) -> None:
        self._dir, self._order, self._spare, self._reserve = run_dir, order, spare, reserve
        self._place = place
        self._memory, self._refusals = memory, refusals
        self._at = _inode(run_dir)
        self._unwritten: EndRequest | None = None
        """The first request that no disk took; it is obeyed all the same."""
        self._unheld: frozenset[int] = frozenset()
        """Ranks whose wrapper was gone first: once their stamps are completed nothing tells it."""
        self._programs = place.programs(order)
        self._launches = bool(order.get("command"))
        self._grace_s = float((order.get("halt") or {}).get("grace_s") or 0.0)
        self._killer: Killer | None = None
        self._halt_until: float | None = None
        self._lead_at = self._others_at = float("-inf")
        self.disk_refused = False
        """Whether the disk refused at first how the run ended."""
        self.late_s: dict[int, float] = {}
        """Pid → for how long the keeper had stood still when it was told of its end."""

    def ask_to_leave(self, reason: str, ended_by: str, text: str, *, shield: bool = False) -> None:
        """Ask the ranks to leave with a checkpoint, unless the run is ending already.

        Args:
            reason, ended_by, text: why.
            shield: whether the ranks were sent the signal that ends the run, too.
        """
        if not self._asked():
            leave_s = HALT_LIMIT_S
            if reads_no_halt(self._dir):
                leave_s = 0.0 if self._launches and not shield else DEAF_LIMIT_S
            self._put(ask_halt, self._request(reason, ended_by, text, leave_s))

    def obey(self, now: float, agent: Child, *, at_once: bool) -> None:
        """Do what the request files ask.

        Args:
            now: monotonic seconds.
            agent: torchrun.
            at_once: whether the keeper was told to stop a second time.
        """
        if self._all_stamped() and (self._asked() or self._waits_in_vain(now)):
            self._finish(now, agent)  # torchrun takes seconds to report what the stamps say
        if self._killer is not None:
            return
        request = load_request(self._dir / KILL_NAME)
        if request is None and at_once:
            request = self.end_now("the keeper was told again, to end at once")
        if request is None and self._has_run_out(now):
            request = self.end_now(self._why_now())
        if request is None and self._has_ended_elsewhere(now):
            request = self._request("keeper_lost", "infra", "node 0 has ended", None)
        if request is not None:
            self._kill(now, agent, grace_s=request.grace_s, dump=request.dump)

    def end_unseen(self, now: float, agent: Child, why: tuple[str, str, str]) -> None:
        """End every process without a look at the run directory, which may be gone for good.

        What is not known by its record is found by its parent or its token.

        Args:
            now: monotonic seconds.
            agent: torchrun.
            why: cause, who, and text.
        """
        if self._killer is None:
            self._unwritten = self._unwritten or self._request(*why, None)
            self._killer = self._killer_of(now, agent, grace_s=0.0)

    def is_over(self, now: float, agent: Child) -> bool:
        """Say whether all that can be ended has ended, or what cannot is to be told; sweep it."""
        if agent.ended is not None:
            self._finish(now, agent)
        if self._killer is None:
            return False
        clear = self._killer.advance(now) and agent.ended is not None
        return clear or self._killer.has_given_up(now)

    def is_clear(self, now: float) -> bool:
        """Say whether nothing of the run is left; sweep what is, when it is time."""
        return self._killer is None or self._killer.advance(now)

    def left(self) -> list[dict[str, Any]]:
        """Return what of the run outlives SIGKILL."""
        return [] if self._killer is None else self._killer.left()

    def save_exit(self, agent: Child, statuses: Mapping[int, Ended]) -> None:
        """Write exit.json.

        Args:
            agent: torchrun.
            statuses: pid → how it ended, of all that the keeper reaped.
        """
        self._memory.look(time.monotonic(), at_once=True)
        self._unheld |= self._find_unheld(statuses, agent.ended)
        stamps = self._complete_stamps(statuses, agent.ended)
        stamps = {
            rank: replace(ended, disk_refused=True)
            if self.disk_refused or self._refusals.met(ended.at)
            else ended
            for rank, ended in stamps.items()
        }
        if not self._place.is_whole:
            save_part(
                self._dir,
                self._order,
                self._place,
                agent=agent.ended,
                ranks=stamps,
                left=self.left(),
                oom_at=self._memory.at,
                unheld=self._unheld,
            )
            return
        record = build_exit(
            run_dir=self._dir,
            order=self._order,
            request=self._asked_first(),
            agent=agent.ended,
            ranks=stamps,
            left=self.left(),
            oom_at={} if self._memory.at is None else dict.fromkeys(stamps, self._memory.at),
            unheld=self._unheld,
            now=time.time(),
        )
        if record["reason"] == ENDED_BY_ITSELF and _inode(self._dir) != self._at:
            record |= {
                "reason": "keeper_lost",
                "ended_by": "infra",
                "text": _GONE,
                "error": [],
            }
        save_json(self._dir / "exit.json", record)

    def save_end_of_all(self, agent: Child, nodes: Nodes) -> None:
        """Write exit.json of a run with several nodes."""
        record = build_exit(
            run_dir=self._dir,
            order=self._order,
            request=self._asked_first(),
            agent=nodes.agent(agent.ended),
            ranks=nodes.stamps(),
            left=nodes.left(),
            oom_at=nodes.oom_at(),
            unheld=nodes.unheld(),
            now=time.time(),
        )
        told = {"unheard": nodes.unheard, "nodes": nodes.seals()}
        save_json(self._dir / "exit.json", {**record, **told})

    def _asked_first(self) -> EndRequest | None:
        """Return the request that names the cause: the first one, whether it could be written."""
        found = [row for row in (asked_by(self._dir), self._unwritten) if row is not None]
        return min(found, key=lambda request: request.at, default=None)

    def _asked(self) -> bool:
        written = any(is_asked(self._dir / name) for name in (HALT_NAME, KILL_NAME))
        return written or self._unwritten is not None

    def _all_stamped(self) -> bool:
        return all(self._stamp(rank).exists() for rank in self._programs)

    def _stamp(self, rank: int) -> Path:
        return self._dir / f"exit_rank{rank}.json"

    def _has_run_out(self, now: float) -> bool:
        """Say whether the time to leave, as `.HALT` tells it, is over."""
        if self._halt_until is None:
            request = load_request(self._dir / HALT_NAME) or self._unwritten
            if request is None:
                return False
            until = request.until_mono
            if not self._place.is_whole:  # it may have been written on another host
                until = None if request.leave_s is None else now + request.leave_s
            self._halt_until = until or now + HALT_LIMIT_S
        return now >= self._halt_until

    def _why_now(self) -> str:
        """Return why the ranks are ended whose time to leave is over."""
        asked = load_request(self._dir / HALT_NAME) or self._unwritten
        if asked is not None and asked.leave_s == 0.0:
            return "the program does not leave when asked, and was ended"
        return "asked to leave, the ranks did not"

    def _has_ended_elsewhere(self, now: float) -> bool:
        """Say whether node 0 is over, which ends a run for all: what goes on here nobody watches.

        It writes exit.json last of all, unless this part was not heard of, or somebody else did
        for a keeper that is gone.
        """
        if self._place.leads or now < self._lead_at:
            return False
        self._lead_at = now + LEAD_EVERY_S
        return (self._dir / "exit.json").exists() or proof_of_loss(self._dir, 0) is not None

    def _waits_in_vain(self, now: float) -> bool:
        """Say whether another node's launcher has not come to where launchers wait for each other.

        Behind their last rank they meet once more, and torch gives that five minutes. A launcher
        whose rank has failed waits for nobody, and says what became of it.
        """
        if self._place.is_whole or now < self._others_at:
            return False
        self._others_at = now + LEAD_EVERY_S
        if any((load_json(self._stamp(rank)) or {}).get("code") != 0 for rank in self._programs):
            return False
        token = int(self._order["token"])
        others = set(range(self._place.nodes)) - {self._place.node}
        ends = [load_end(self._dir, node, token) for node in others]
        failed = any((end.get("agent") or {}).get("code") != 0 for end in ends if end is not None)
        return failed or any(proof_of_loss(self._dir, node) is not None for node in others)

    def end_now(self, text: str) -> EndRequest:
        """Write `.kill`; what was asked before it keeps naming the cause.

        So it says that one's: which was first is told by clocks, and those may have been set back.
        """
        request, first = self._request("halted", "operator", text, None), self._asked_first()
        if first is not None:
            request = replace(request, reason=first.reason, ended_by=first.ended_by, key=first.key)
        self._put(ask_kill, request)
        return load_request(self._dir / KILL_NAME) or request

    def _put(self, ask: Callable[[Path, EndRequest], bool], request: EndRequest) -> None:
        """Write a request; one that no disk takes is kept here."""
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
        """End what is left without waiting."""
        if self._killer is None:
            self._kill(now, agent, grace_s=0.0, dump=False)
        else:
            self._killer.hurry(now)

    def _kill(self, now: float, agent: Child, *, grace_s: float, dump: bool) -> None:
        self._killer = self._killer_of(
            now,
            agent,
            grace_s=grace_s,
            ranks=[record.ref for record in self._rank_records().values()],
            dump=dump,
            pipes=sorted(self._dir.glob(".nccl_dump_rank_*")),
        )

    def _killer_of(
        self,
        now: float,
        agent: Child,
        *,
        grace_s: float,
        ranks: Sequence[ProcessRef] = (),
        dump: bool = False,
        pipes: Sequence[Path] = (),
    ) -> Killer:
        return Killer(
            token=str(self._order["run"]),
            agent=agent.ref if agent.ended is None else None,
            ranks=ranks,
            spare=self._spare,
            grace_s=grace_s,
            dump=dump,
            pipes=pipes,
            now=now,
            environs=environs_of(str(self._order["run"]), self._place, self._dir),
        )

    def _rank_records(self) -> dict[int, RankRecord]:
        """Return the process of every rank that was started; a command may start more than one."""
        ranks: Iterable[int] = self._programs
        if self._launches:  # process ids of other nodes mean nothing here
            ranks = [rank for rank in recorded_ranks(self._dir) if rank in self._place.ranks]
        records = {rank: load_rank_record(self._dir, rank) for rank in ranks}
        return {rank: record for rank, record in records.items() if record is not None}

    def _find_unheld(self, statuses: Mapping[int, Ended], agent: Ended | None) -> frozenset[int]:
        """Return the ranks whose wrapper was killed: nobody but it would have reaped its program.

        That of a command is the agent; it may have been killed before it wrote what it started. A
        torchrun that was killed takes all wrappers along, and is no process of ours. What a
        launcher started the keeper reaps, too, where the launcher is killed: that tells nothing.
        Nor does a wrapper that was killed when the run was ending already; one that ended while
        this process stood still may have been killed when that began.
        """
        records = self._rank_records()
        until = self._first_bad_end(records) + AFTERMATH_S
        killed = agent is not None and agent.signal == signal.SIGKILL
        if killed is not self._launches:
            return frozenset()
        if self._launches and not records:
            first = self._programs.start
            return frozenset() if self._stamp(first).exists() else frozenset({first})
        return frozenset(
            rank
            for rank, record in records.items()
            if (ended := statuses.get(record.ref.pid)) is not None
            and ended.at - self.late_s.get(record.ref.pid, 0.0) < until
            and not (record.launched or self._stamp(rank).exists())
        )

    def _first_bad_end(self, ranks: Iterable[int]) -> float:
        """Return when the first rank told of its failure, or the run was asked to end."""
        told = [ended_of(row) for rank in ranks if (row := load_json(self._stamp(rank)))]
        asked = self._asked_first()
        ends = [ended.at for ended in told if ended.code or ended.signal]
        return min([*ends, *([asked.at] if asked is not None else [])], default=math.inf)

    def _complete_stamps(
        self, statuses: Mapping[int, Ended], agent: Ended | None
    ) -> dict[int, Ended]:
        """Return how each rank ended; what a wrapper could not write any more is written here."""
        exits: dict[int, Ended] = {}
        for rank, record in self._rank_records().items():
            document = load_json(self._stamp(rank))
            if document is None and record.ref.is_alive():
                ended = Ended(code=None, signal=None, at=time.time())  # it cannot be killed
            elif document is None:
                known = statuses.get(record.ref.pid)
                wrapper = statuses.get(record.wrapper)
                ended = known or _presumed(record, wrapper, agent, refused=self.disk_refused)
                ended = replace(ended, disk_refused=self.disk_refused)
                save_json(self._stamp(rank), ended.document())
            else:
                ended = ended_of(document)
            exits[rank] = ended
        return exits


def _inode(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another of its name; None where it cannot be seen."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _presumed(
    record: RankRecord, wrapper: Ended | None, agent: Ended | None, *, refused: bool = False
) -> Ended:
    """Return what is to be said of an end that nobody saw.

    A launcher that left with 0 says that its ranks did; how else they ended it keeps to itself. A
    shell says nothing of what it started: behind `&` and `|` it leaves with 0 all the same. What
    torchrun started behind a wrapper that told nothing was killed, unless torchrun left with 0, or
    the disk refused what was told.
    """
    clean = agent is not None and agent.code == 0 and not record.by_shell
    if not record.launched and not clean:
        number = None if refused else int(signal.SIGKILL)
        return wrapper or Ended(code=None, signal=number, at=time.time())
    return Ended(code=0 if clean else None, signal=None, at=agent.at if agent else time.time())
