"""The meeting of a run's nodes before anything is started. Standard library only.

Each node's keeper writes a nonce into the shared run directory, and begins when node 0 has repeated
it. If a node never comes, or the directory is not shared, the attempt ends here. A keeper that is
started a second time, or belongs to an older attempt, starts nothing.
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
"""How long the first node waits for the last: caches may be cold."""

_FAR = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses of nobody: the kernel names the interface that leads there."""


class NotMet(Exception):
    """The nodes did not come together; the sentence says who is missing."""


class Superseded(Exception):
    """This attempt, or this start of it, is not the one that counts."""


class Meeting:
    """The meeting, as one node sees it.

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
        self._came = False
        self._began: float | None = None

    def advance(self, now: float) -> str | None:
        """Do what is due; return the launchers' address once all nodes have come.

        Args:
            now: monotonic seconds.

        Raises:
            NotMet: a node has not come in time, or has ended.
            Superseded: a newer attempt is here, or this node has begun this one already.
            OSError: the directory cannot be read or written just now.
        """
        self._began = now if self._began is None else self._began
        if not self._came:
            self._come()
        met = self._lead() if self._place.leads else self._follow()
        if met is None and now - self._began >= self._limit_s:
            raise NotMet(self._missing())
        return met

    def _come(self) -> None:
        """Write that this node is here, once for the attempt."""
        path, document = meet_path(self._dir, self.own.node), self.own.document(time.time())
        if not create_json(path, document):
            before = load_keeping(self._dir, self.own.node)
            others = before is not None and before.nonce != self.own.nonce
            if before is not None and others and before.token >= self.own.token:
                raise Superseded(
                    f"node {self.own.node} began attempt token {before.token} on {before.host};"
                    f" this start has token {self.own.token}"
                )
            save_json(path, document)
        self._came = True

    def _lead(self) -> str | None:
        """Return the address when every node has come, after writing it for them."""
        others = self._others()
        for node in range(1, self._place.nodes):
            self._check_ended(node)
        if None in others.values():
            return None
        nonces = {str(node): row.nonce for node, row in others.items() if row is not None}
        met = {"token": self.own.token, "rendezvous": self.own.address, "nonces": nonces}
        save_json(self._dir / MET_NAME, {"v": 1, **met, "at": time.time()})
        return self.own.address

    def _others(self) -> dict[int, Keeping | None]:
        """Return node → its keeper in this attempt; None if it has not come."""
        found: dict[int, Keeping | None] = {}
        for node in range(1, self._place.nodes):
            row = load_keeping(self._dir, node)
            if row is not None and row.token > self.own.token:
                raise Superseded(f"node {node} has come for a newer attempt, token {row.token}")
            found[node] = row if row is not None and row.token == self.own.token else None
        return found

    def _follow(self) -> str | None:
        """Return the address when node 0 has written it and has seen this node."""
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

    def _check_ended(self, node: int) -> None:
        ended = load_end(self._dir, node, self.own.token)
        if ended is not None:
            said = (ended.get("refused") or {}).get("text") or "it ended"
            raise NotMet(f"node {node} on {ended.get('host')} starts nothing: {said}")

    def _missing(self) -> str:
        """Return a sentence about who has not come."""
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


def find_port(ports: Sequence[int]) -> int:
    """Return the first port that is free on this host, or the first of all."""
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
    """Return the address at which other nodes reach this host."""
    try:
        found = socket.gethostbyname(os.uname().nodename)
    except OSError:
        found = "127.0.0.1"
    return _way_out() if found.startswith("127.") else found


def _way_out() -> str:
    """Return the address of the interface that leads away from this host."""
    for family, far in _FAR:
        with suppress(OSError), closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            probe.connect((far, 9))
            found = str(probe.getsockname()[0])
            return found if family == socket.AF_INET else f"[{found}]"
    return "127.0.0.1"
