"""The other nodes of a run, as node 0's keeper sees them at the end. Standard library only.

Each node's keeper ends its own processes and writes `exit_node{K}.json`. Node 0 waits for all of
them and then writes `exit.json`.

- A part failed and nobody asked the run to end: after SETTLE_S, node 0 ends the rest.
- All ranks have exit stamps and a node is silent: its keeper was lost.
- A node does not report in time after a request to end: `exit.json` names it in `unheard`.
- This keeper was told to stop: it waits for no silent node, since a scheduler kills it soon.
"""

import math
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import load_json
from gonogo.supervise.end_request import (
    HALT_LIMIT_S,
    HALT_NAME,
    KILL_NAME,
    EndRequest,
    ask_kill,
    is_asked,
)
from gonogo.supervise.exit_record import Ended, ended_of, seal_file, seal_lines
from gonogo.supervise.exit_record.seals import AGAIN_S
from gonogo.supervise.keeper.kill import UNKILLABLE_S
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.node_record import (
    SILENT_S,
    exit_path,
    load_end,
    load_sign,
    proof_of_loss,
    watch_path,
)

SETTLE_S = 20.0
"""The time of the watcher for its own finding after a part of the run has failed."""
LOOK_S = 1.0
"""A longer time between two looks means that this keeper was suspended."""
ANSWER_S = 30.0
"""How much longer than its own limits a node may take to report its end."""


class OtherNodes:
    """The other nodes of one run.

    Args:
        run_dir: the run's directory.
        order: the order as data.
        place: node 0's.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self, run_dir: Path, order: Mapping[str, Any], place: Place, grace_s: float
    ) -> None:
        self._dir, self._order, self._place, self._grace_s = run_dir, order, place, grace_s
        self._failed_at: float | None = None
        self._asked: dict[str, float] = {}
        self._signs: dict[int, tuple[str, float]] = {}
        """Node → the newest sign of its follower, and its time (monotonic seconds)."""
        self._quiet_s: dict[int, float] = {}
        """Node → for how long it gave no sign while this keeper was not suspended."""
        self._looked = -math.inf
        self.ends: dict[int, dict[str, Any]] = {}
        """Node → its `exit_node{K}.json`."""
        self.lost: dict[int, str] = {}
        """Node → why it is certain that it ended without one."""

    @property
    def unheard(self) -> list[int]:
        """Nodes that have not reported how they ended."""
        return [node for node in range(self._place.nodes) if node not in self.ends]

    def are_over(self, now: float, *, stopped: bool) -> bool:
        """Return whether every node has ended, is lost, or has had its time; end the rest.

        Args:
            now: monotonic seconds.
            stopped: whether this keeper was told to stop.

        Raises:
            OSError: the directory cannot be read or written just now.
        """
        for node in self.unheard:
            found = load_end(self._dir, node, int(self._order["token"]))
            if found is not None:
                self.ends[node] = found
            elif node not in self.lost and (proof := proof_of_loss(self._dir, node)):
                self.lost[node] = proof
        silent = self._silent(now)
        if all(node in self.lost or (stopped and node in silent) for node in self.unheard):
            if self.lost and self._is_cut_short():
                self._end_rest()  # names the cause
            return True
        if self._has_failed():
            self._failed_at = now if self._failed_at is None else self._failed_at
            if now - self._failed_at >= SETTLE_S:
                self._end_rest()
        elif (gone := self._unspoken()) is not None:
            self._end_unspoken(gone)
        return self._is_out_of_time(now)

    def stamps(self) -> dict[int, Ended]:
        """Return how every rank ended, as far as its stamp tells."""
        found = {}
        for rank in range(int(self._order["world_size"])):
            document = load_json(self._dir / f"exit_rank{rank}.json")
            if document is not None:
                found[rank] = ended_of(document)
        return found

    def agent(self, own: Ended | None) -> Ended | None:
        """Return how the launchers ended: the first that failed, else node 0's."""
        told = [row.get("agent") for row in self.ends.values()]
        ends = [ended_of(row) for row in told if isinstance(row, dict)]
        failed = [row for row in ends if row.code != 0]
        return min(failed, key=lambda row: row.at) if failed else own

    def seals(self) -> dict[str, dict[str, Any]]:
        """Return the seals of the files of every node that reported its end.

        Raises:
            OSError: it cannot be read just now.
        """
        give_up = time.monotonic() + AGAIN_S
        return {
            str(node): {
                "exit": seal_file(exit_path(self._dir, node)),
                "watch": seal_lines(watch_path(self._dir, node), give_up=give_up),
            }
            for node in sorted(self.ends)
        }

    def left(self) -> list[dict[str, Any]]:
        """Return the processes that outlive SIGKILL on any node."""
        return [row for end in self.ends.values() for row in end.get("left") or ()]

    def oom_at(self) -> dict[int, float]:
        """Return rank → when its node's kernel killed for want of memory."""
        return {
            rank: end["oom_at"]
            for node, end in self.ends.items()
            if end.get("oom_at") is not None
            for rank in Place.of(self._order, node).ranks
        }

    def unheld(self) -> frozenset[int]:
        """Return the ranks of any node whose wrapper was killed before its program."""
        return frozenset(rank for end in self.ends.values() for rank in end.get("unheld") or ())

    def _has_failed(self) -> bool:
        parts = [row.get("agent") or {} for row in self.ends.values()]
        return bool(self.lost) or any(part.get("code") != 0 for part in parts)

    def _is_cut_short(self) -> bool:
        """Return whether the run ended for want of the lost nodes' ranks.

        It did not if all ranks left with 0, or one elsewhere failed by itself.
        """
        ends = self.stamps()
        if sum(ended.code == 0 for ended in ends.values()) == int(self._order["world_size"]):
            return False
        lost = {rank for node in self.lost for rank in Place.of(self._order, node).ranks}
        failed = [
            ended
            for rank, ended in ends.items()
            if rank not in lost and (ended.code or ended.signal not in (None, signal.SIGTERM))
        ]
        return all(ended.lost_peer for ended in failed)

    def _silent(self, now: float) -> set[int]:
        """Return the nodes without a report whose followers give no sign."""
        for node in self.unheard:
            sign = load_sign(self._dir, node)
            if node not in self._signs or self._signs[node][0] != sign:
                self._signs[node], self._quiet_s[node] = (sign, now), 0.0
            else:
                self._quiet_s[node] += min(now - self._looked, LOOK_S)
        self._looked = now
        return {node for node in self.unheard if now - self._signs[node][1] >= SILENT_S}

    def _unspoken(self) -> int | None:
        """Return a silent node if all ranks have exit stamps: its keeper was lost after them."""
        silent = [n for n in self.unheard if self._quiet_s[n] >= SILENT_S + ANSWER_S]
        if not silent or len(self.stamps()) < int(self._order["world_size"]):
            return None
        return min(silent)

    def _end_unspoken(self, node: int) -> None:
        self._ask_once(
            EndRequest(
                reason="keeper_lost",
                ended_by="infra",
                at=time.time(),
                text=f"the ranks of node {node} have ended, and its keeper has not said how",
                grace_s=self._grace_s,
            )
        )

    def _ask_once(self, request: EndRequest) -> None:
        """Ask every node to end, unless somebody did."""
        if not any(is_asked(self._dir / name) for name in (HALT_NAME, KILL_NAME)):
            ask_kill(self._dir, request)

    def _end_rest(self) -> None:
        """Ask the others to end, since a part of the run is gone."""
        node, proof = next(iter(self.lost.items()), (None, ""))
        lost = node is not None
        request = EndRequest(
            reason="node_lost" if lost else "nonzero_exit",
            ended_by="infra" if lost else "trainer",
            at=time.time(),
            text=f"node {node} is lost: {proof}" if lost else "",
            grace_s=self._grace_s,
        )
        self._ask_once(request)

    def _is_out_of_time(self, now: float) -> bool:
        """Return whether the time after a request to end is over."""
        for name, limit_s in ((HALT_NAME, HALT_LIMIT_S), (KILL_NAME, 0.0)):
            if name in self._asked or is_asked(self._dir / name):
                asked_at = self._asked.setdefault(name, now)
                if now - asked_at >= limit_s + self._grace_s + UNKILLABLE_S + ANSWER_S:
                    return True
        return False
