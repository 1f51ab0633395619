"""The keepers of a run on several nodes: how they meet, and how the run ends. Stdlib only.

At the start each node's keeper writes its name into the shared run directory. Node 0's keeper waits
for all of them and publishes where the launchers meet. Nobody starts anything before that.

At the end each keeper writes `exit_node{K}.json` about its own part. Node 0's keeper waits for all
parts and writes `exit.json`. A node whose follower gives no sign for LOST_S is lost.

`python -m gonogo.supervise.keeper.nodes RUNDIR --node K --token T` reports that this node's keeper
died without `exit_node{K}.json`. Slurm's task epilog runs it.
"""

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import create_json, load_json, save_json
from gonogo.supervise.end_request import HALT_NAME, KILL_NAME, EndRequest, ask_kill, is_asked
from gonogo.supervise.exit_record import AGAIN_S, build_exit, build_refusal, seal_file, seal_lines
from gonogo.supervise.last_lines import Ended, ended_of
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.process_records import (
    EXIT_NAME,
    GONE_NAME,
    MEET_NAME,
    MET_NAME,
    SILENT_S,
    WATCH_NAME,
    load_end,
    load_keeping,
    load_sign,
    own_keeping,
    proof_of_loss,
)
from gonogo.supervise.processes import boot_id

MEET_LIMIT_S = 600.0  # How long the first node waits for the last: caches may be cold.
SETTLE_S = 20.0  # The time of the watcher for its own finding after a part of the run has failed.
LOST_S = 120.0  # A network file system may show the signs of a node a minute late.
AWAY_S = 5.0
"""A keeper that has not looked for so long was suspended; every node gets its time again."""
_FAR = "192.0.2.1"  # Address of nobody: the kernel names the interface that leads there.


class NotMet(Exception):
    """The nodes did not come together; the sentence says who is missing."""


class Superseded(Exception):
    """Another start of this attempt, or a newer attempt, is the one that counts."""


class Meeting:
    """The meeting, as one node sees it."""

    def __init__(
        self,
        run_dir: Path,
        order: Mapping[str, Any],
        place: Place,
        *,
        limit_s: float = MEET_LIMIT_S,
    ) -> None:
        self._dir, self._place, self._limit_s = run_dir, place, limit_s
        address = place.rendezvous or f"{own_address()}:{find_port()}"
        self.own = own_keeping(node=place.node, token=int(order["token"]), address=address)
        self._came = False
        self._began: float | None = None

    def advance(self, now: float) -> str | None:
        """Do what is due; return the launchers' address once all nodes have come.

        Raises:
            NotMet: a node has not come in time, or has ended.
            Superseded: a newer attempt is here, or this node has begun this one already.
        """
        self._began = now if self._began is None else self._began
        if not self._came:
            self._come()
        met = self._lead() if self._place.leads else self._follow()
        if met is None and now - self._began >= self._limit_s:
            raise NotMet(self._missing())
        return met

    def _come(self) -> None:
        path, document = self._dir / MEET_NAME.format(self.own.node), self.own.document(time.time())
        if not create_json(path, document):
            before = load_keeping(self._dir, self.own.node)
            if before is not None and before != self.own and before.token >= self.own.token:
                raise Superseded(
                    f"node {self.own.node} began attempt token {before.token} on {before.host};"
                    f" this start has token {self.own.token}"
                )
            save_json(path, document)
        self._came = True

    def _lead(self) -> str | None:
        for node in range(1, self._place.nodes):
            self._check_ended(node)
        if self._absent():
            return None
        met = {"token": self.own.token, "rendezvous": self.own.address, "at": time.time()}
        save_json(self._dir / MET_NAME, {"v": 1, **met})
        return self.own.address

    def _absent(self) -> list[int]:
        rows = {node: load_keeping(self._dir, node) for node in range(1, self._place.nodes)}
        return [n for n, row in rows.items() if row is None or row.token != self.own.token]

    def _follow(self) -> str | None:
        if (self._dir / "exit.json").exists():
            raise NotMet("the run ended before it began")
        self._check_ended(0)
        met = load_json(self._dir / MET_NAME) or {}
        return str(met["rendezvous"]) if met.get("token") == self.own.token else None

    def _check_ended(self, node: int) -> None:
        ended = load_end(self._dir, node, self.own.token)
        if ended is not None:
            said = (ended.get("refused") or {}).get("text") or "it ended"
            raise NotMet(f"node {node} on {ended.get('host')} starts nothing: {said}")

    def _missing(self) -> str:
        own = f"node {self.own.node} on {self.own.host}"
        if not self._place.leads:
            return (
                f"{own} was not answered in {self._dir} within {self._limit_s:g} s:"
                " does node 0 see the same directory?"
            )
        return (
            f"of node {', '.join(map(str, self._absent()))} nothing was read in {self._dir} within"
            f" {self._limit_s:g} s: was it started, and does it see the same directory as {own}?"
        )


def find_port() -> int:
    """Return a port that is free on this host."""
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def own_address() -> str:
    """Return the IPv4 address at which other nodes reach this host."""
    try:
        found = socket.gethostbyname(os.uname().nodename)
    except OSError:
        found = "127.0.0.1"
    if not found.startswith("127."):
        return found
    try:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
            probe.connect((_FAR, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return found


class OtherNodes:
    """All nodes of one run, as node 0's keeper sees them at the end."""

    def __init__(self, run_dir: Path, order: Mapping[str, Any], grace_s: float) -> None:
        self._dir, self._order, self._grace_s = run_dir, order, grace_s
        self._nodes = range(int(order["nodes"]))
        self._failed_at: float | None = None
        self._looked = float("-inf")
        self._signs: dict[int, tuple[str, float]] = {}
        """Node → the newest sign of its follower, and its time (monotonic seconds)."""
        self.ends: dict[int, dict[str, Any]] = {}  # Node → its `exit_node{K}.json`.
        self.lost: dict[int, str] = {}  # Node → why it is lost.

    @property
    def unheard(self) -> list[int]:
        """Nodes that have not reported how they ended."""
        return [node for node in self._nodes if node not in self.ends]

    def are_over(self, now: float, *, stopped: bool) -> bool:
        """Return whether every node has ended or is lost; end the rest after a failure.

        When `stopped`, a scheduler kills this keeper soon.
        """
        away, self._looked = now - self._looked >= AWAY_S, now
        for node in self.unheard:
            found = load_end(self._dir, node, int(self._order["token"]))
            quiet_s = self._quiet_s(node, now, away=away)
            if found is not None:
                self.ends[node] = found
            elif node not in self.lost and (proof := proof_of_loss(self._dir, node)):
                self.lost[node] = proof
            elif quiet_s >= (SILENT_S if stopped else LOST_S):
                self.lost.setdefault(node, f"it gave no sign for {quiet_s:.0f} s")
        if all(node in self.lost for node in self.unheard):
            if self.lost and self._is_cut_short():
                self._end_rest()  # names the cause
            return True
        agents = [row.get("agent") or {} for row in self.ends.values()]
        if self.lost or any(agent.get("code") != 0 for agent in agents):
            self._failed_at = now if self._failed_at is None else self._failed_at
            if now - self._failed_at >= SETTLE_S:
                self._end_rest()
        return False

    def _quiet_s(self, node: int, now: float, *, away: bool) -> float:
        sign, heard = load_sign(self._dir, node), self._signs.get(node)
        if heard is None or heard[0] != sign or away:
            heard = self._signs[node] = (sign, now)
        return now - heard[1]

    def save_exit(self, request: EndRequest | None, own: Ended | None) -> None:
        """Write exit.json; `own` is how node 0's launcher ended."""
        give_up = time.monotonic() + AGAIN_S
        seals = {
            str(node): {
                "exit": seal_file(self._dir / EXIT_NAME.format(node)),
                "watch": seal_lines(self._dir / WATCH_NAME.format(node), give_up=give_up),
            }
            for node in sorted(self.ends)
        }
        told = [row.get("agent") for row in self.ends.values()]
        agents = [ended_of(row) for row in told if isinstance(row, dict)]
        failed = [row for row in agents if row.code != 0]
        record = build_exit(
            run_dir=self._dir,
            order=self._order,
            request=request,
            agent=min(failed, key=lambda row: row.at) if failed else own,
            ranks=self._stamps(),
            left=[row for end in self.ends.values() for row in end.get("left") or ()],
            oom_at={
                rank: end["oom_at"]
                for node, end in self.ends.items()
                if end.get("oom_at") is not None
                for rank in Place.of(self._order, node).ranks
            },
            now=time.time(),
        )
        save_json(self._dir / "exit.json", {**record, "unheard": self.unheard, "nodes": seals})

    def _stamps(self) -> dict[int, Ended]:
        paths = {r: f"exit_rank{r}.json" for r in range(int(self._order["world_size"]))}
        found = {rank: load_json(self._dir / name) for rank, name in paths.items()}
        return {rank: ended_of(row) for rank, row in found.items() if row is not None}

    def _is_cut_short(self) -> bool:
        """Return whether the run ended for want of the lost nodes' ranks.

        It did not if all ranks left with 0, or one elsewhere failed by itself.
        """
        ends = self._stamps()
        if sum(ended.code == 0 for ended in ends.values()) == int(self._order["world_size"]):
            return False
        lost = {rank for node in self.lost for rank in Place.of(self._order, node).ranks}
        return not any(
            (ended.code or ended.signal not in (None, signal.SIGTERM)) and not ended.lost_peer
            for rank, ended in ends.items()
            if rank not in lost
        )

    def _end_rest(self) -> None:
        if any(is_asked(self._dir / name) for name in (HALT_NAME, KILL_NAME)):
            return
        node, why = next(iter(self.lost.items()), (None, ""))
        request = EndRequest(
            reason="nonzero_exit" if node is None else "node_lost",
            ended_by="trainer" if node is None else "infra",
            at=time.time(),
            text="" if node is None else f"node {node} is lost: {why}",
            grace_s=self._grace_s,
        )
        ask_kill(self._dir, request)


def save_node_end(
    run_dir: Path,
    order: Mapping[str, Any],
    place: Place,
    *,
    agent: Ended | None = None,
    ranks: Mapping[int, Ended] | None = None,
    left: Sequence[Mapping[str, Any]] = (),
    oom_at: float | None = None,
    refused: Mapping[str, str] | None = None,
) -> None:
    """Write how a node's part ended; node 0's keeper finds the cause."""
    record = {
        "v": 1,
        "node": place.node,
        "host": os.uname().nodename,
        "boot_id": boot_id(),
        "run": order.get("run"),
        "token": order.get("token"),
        "ended_at": time.time(),
        "agent": agent.document() if agent is not None else None,
        "ranks": {str(rank): ended.document() for rank, ended in sorted((ranks or {}).items())},
        "left": list(left),
        "oom_at": oom_at,
        "refused": dict(refused) if refused is not None else None,
    }
    save_json(run_dir / EXIT_NAME.format(place.node), record)


def save_refusal(
    run_dir: Path, order: Mapping[str, Any], place: Place, reason: str, ended_by: str, text: str
) -> None:
    """Write the end of what was not started: of a node's part, and on node 0 of the run.

    The keeper of an older attempt writes nothing over a newer one.
    """
    newest = (load_json(run_dir / "order.json") or {}).get("token")
    if isinstance(newest, int) and newest > order["token"]:
        return
    if not place.is_whole:
        refused = {"reason": reason, "ended_by": ended_by, "text": text}
        save_node_end(run_dir, order, place, refused=refused)
    if place.leads:
        now = time.time()
        refusal = build_refusal(reason, ended_by, text, run_dir=run_dir, order=order, now=now)
        save_json(run_dir / "exit.json", refusal)


def report_lost_keeper(run_dir: Path, node: int, token: int, now: float) -> bool:
    """Write `.gone_node{K}.json` if the keeper of a node is proven dead without a report."""
    keeping = load_keeping(run_dir, node)
    proof = proof_of_loss(run_dir, node)
    if keeping is None or keeping.token != token or proof is None:
        return False
    word = {"v": 1, "by": os.uname().nodename, "text": proof, "at": now}
    return create_json(run_dir / GONE_NAME.format(node), word)


def main(argv: Sequence[str]) -> int:
    """Report a lost keeper; see the module's text."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.keeper.nodes")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node", type=int, required=True, metavar="K")
    parser.add_argument("--token", type=int, required=True, metavar="T")
    asked = parser.parse_args(argv)
    report_lost_keeper(asked.run_dir.absolute(), asked.node, asked.token, time.time())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
