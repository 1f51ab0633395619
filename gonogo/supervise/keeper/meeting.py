"""Have all nodes of a run come, and do they share its directory? Before anything is started.

Every node's keeper writes here and is read there: it says that it came, with a nonce, and begins
when node 0 has repeated that nonce. A directory that is not shared, or a node that never came,
ends the attempt before a rank was started. A node comes once for each attempt: a keeper that an
engine starts a second time, or one of an older attempt that wakes, finds that out here and starts
nothing. Standard library only.
"""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import create_json, load_json, save_json
from gonogo.supervise.launch.nodes import Place, rendezvous_ports
from gonogo.supervise.node_record import (
    MET_NAME,
    Keeping,
    load_end,
    load_keeping,
    meet_path,
    own_keeping,
)

MEET_LIMIT_S = 600.0
"""How long the first waits for the last: schedulers start them together, cold caches do not."""

CLOCKS_APART_S = 30.0
"""Torch's launchers call one dead whose last word is 15 s old, by the clock of who reads it."""
SURE_S = 30.0
"""How long clocks are seen apart before that is believed: whose word came late says it anew."""
LATE_S = 1.0
"""A word that a file system took so long for does not tell its writer's clock."""

_FAR = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that nobody has, by which the kernel says which way leads out; not every host has both
families."""


class NotMet(Exception):
    """The nodes did not come together; the sentence says who is missing."""


class Superseded(Exception):
    """This attempt, or this start of it, is not the one that counts."""


class Meeting:
    """One node's coming together with the others.

    Args:
        run_dir: the shared run directory.
        order: the order as data.
        place: this node's; its rendezvous, where given, is node 0's address.
        limit_s: how long to wait.
    """

    def __init__(
        self,
        run_dir: Path,
        order: Mapping[str, Any],
        place: Place,
        *,
        limit_s: float = MEET_LIMIT_S,
    ) -> None:
        self._dir, self._place, self._limit_s = run_dir, place, limit_s
        address = place.rendezvous or f"{own_address()}:{find_port(rendezvous_ports(order))}"
        self.own = own_keeping(node=place.node, token=int(order["token"]), address=address)
        self._came = self._late = False
        self._began: float | None = None
        self._apart: tuple[float, str] | None = None
        """Since when (monotonic seconds) clocks are seen apart, and the sentence about it."""

    def advance(self, now: float) -> str | None:
        """Do what is due; returns where the launchers meet once all nodes have come.

        Args:
            now: monotonic seconds.

        Raises:
            NotMet: somebody has not come in time, has ended, or has another time.
            Superseded: a newer attempt is here, or this node has begun this one already.
            OSError: the directory cannot be read or written just now.
        """
        self._began = now if self._began is None else self._began
        if not self._came or self._late:
            self._come()
        met = self._lead(now) if self._place.leads else self._follow()
        if met is None and now - self._began >= self._limit_s:
            raise NotMet(self._missing() if self._apart is None else self._apart[1])
        return met

    def _come(self) -> None:
        """Say that this node is here, once for the attempt, and anew where that took long."""
        path, document = meet_path(self._dir, self.own.node), self.own.document(time.time())
        began = time.monotonic()
        if not create_json(path, document):
            before = load_keeping(self._dir, self.own.node)
            others = before is not None and before.nonce != self.own.nonce
            if before is not None and others and before.token >= self.own.token:
                raise Superseded(
                    f"node {self.own.node} began attempt token {before.token} on {before.host};"
                    f" this start has token {self.own.token}"
                )
            save_json(path, document)
        self._came, self._late = True, time.monotonic() - began >= LATE_S

    def _lead(self, now: float) -> str | None:
        """Return where to meet when every node has come, after telling them."""
        others = self._others()
        for node in range(1, self._place.nodes):
            self._check_ended(node)
        if None in others.values():
            return None
        if not self._have_one_time(others, now):
            return None
        nonces = {str(node): row.nonce for node, row in others.items() if row is not None}
        save_json(
            self._dir / MET_NAME,
            {
                "v": 1,
                "token": self.own.token,
                "rendezvous": self.own.address,
                "nonces": nonces,
                "at": time.time(),
            },
        )
        return self.own.address

    def _others(self) -> dict[int, Keeping | None]:
        """Return who keeps each other node in this attempt; None where nobody has come."""
        found: dict[int, Keeping | None] = {}
        for node in range(1, self._place.nodes):
            row = load_keeping(self._dir, node)
            if row is not None and row.token > self.own.token:
                raise Superseded(f"node {node} has come for a newer attempt, token {row.token}")
            found[node] = row if row is not None and row.token == self.own.token else None
        return found

    def _follow(self) -> str | None:
        """Return where to meet when node 0 has told it and has seen this node."""
        if (self._dir / "exit.json").exists():
            raise NotMet("the run ended before it began")
        self._check_ended(0)
        met = load_json(self._dir / MET_NAME) or {}
        token = met.get("token")
        if isinstance(token, int) and token > self.own.token:
            raise Superseded(f"a newer attempt has begun, token {token}")
        nonces = met.get("nonces")
        seen = isinstance(nonces, dict) and nonces.get(str(self.own.node)) == self.own.nonce
        return str(met["rendezvous"]) if seen and token == self.own.token else None

    def _have_one_time(self, others: Mapping[int, Keeping | None], now: float) -> bool:
        """Say whether all clocks agree.

        Raises:
            NotMet: they have not for SURE_S.
        """
        found = next(filter(None, (self._tell_apart(*item) for item in others.items())), None)
        if found is None:
            self._apart = None
            return True
        self._apart = (now if self._apart is None else self._apart[0], found)
        if now - self._apart[0] >= SURE_S:
            raise NotMet(found)
        return False

    def _tell_apart(self, node: int, row: Keeping | None) -> str | None:
        """Return the sentence about a node by whose clock its launcher would be dead, or this one.

        What each wrote when it came is compared with when the file system took it, which has one
        clock for both; where it takes the writer's, nothing is found.
        """
        apart_s = _ahead_s(self._dir, node) - _ahead_s(self._dir, 0)
        if row is None or abs(apart_s) < CLOCKS_APART_S:
            return None
        side = "ahead of" if apart_s > 0 else "behind"
        return (
            f"the clock of node {node} on {row.host} is {abs(apart_s):.0f} s {side} that of"
            f" node 0 on {self.own.host}: their launchers would call each other dead"
        )

    def _check_ended(self, node: int) -> None:
        ended = load_end(self._dir, node, self.own.token)
        if ended is not None:
            said = (ended.get("refused") or {}).get("text") or "it ended"
            raise NotMet(f"node {node} on {ended.get('host')} starts nothing: {said}")

    def _missing(self) -> str:
        """Return the sentence about who has not come."""
        own = f"node {self.own.node} on {self.own.host}"
        if not self._place.leads:
            return (
                f"{own} was not answered in {self._dir} within {self._limit_s:g} s:"
                " does node 0 see the same directory?"
            )
        missing = [str(node) for node, row in self._others().items() if row is None]
        return (
            f"of node {', '.join(missing)} nothing was read in {self._dir} within"
            f" {self._limit_s:g} s: was it started, and does it see the same directory as {own}?"
        )


def _ahead_s(run_dir: Path, node: int) -> float:
    """Return how far the clock of a node that came is ahead of the file system's."""
    path = meet_path(run_dir, node)
    told, taken = (load_json(path) or {}).get("at"), path.stat().st_mtime
    return told - taken if isinstance(told, float) else 0.0


def find_port(ports: Sequence[int]) -> int:
    """Return the first port that nobody listens at on this host; the first of all without one.

    A launcher that finds its port taken fails, which would be told as the program's end.
    """
    return next((port for port in ports if _is_free(port)), ports[0])


def _is_free(port: int) -> bool:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OSError:
        return False
    return True


def own_address() -> str:
    """Return how other nodes reach this host: what its name leads to, loopback if nothing else."""
    try:
        found = socket.gethostbyname(os.uname().nodename)
    except OSError:
        found = "127.0.0.1"
    return _way_out() if found.startswith("127.") else found


def _way_out() -> str:
    """Return the address of the interface that leads away from this host; nothing is sent."""
    for family, far in _FAR:
        with suppress(OSError), closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            probe.connect((far, 9))
            found = str(probe.getsockname()[0])
            return found if family == socket.AF_INET else f"[{found}]"
    return "127.0.0.1"  # no route leads away
