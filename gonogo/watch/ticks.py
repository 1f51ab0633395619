"""What do the recorded ticks say by themselves? Checked link by link, without a line of any rank.

Ticks form one chain, no tick is missing for longer than `HOLE_S` (`AWAY_S` where the watcher says
that it was away), what was sealed stays as it was, and what follows the ticks that exit.json seals
may show the end, and may not take back what was recorded before.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.device import devices_in
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.facts import ProcessExit
from gonogo.contract.tick import (
    FileSeal,
    NodeProbe,
    NodeState,
    ProcessState,
    RankProbe,
    Tick,
    WatchStart,
)
from gonogo.watch.device_rows import DeviceRows

HOLE_S = 15.0
AWAY_S = 300.0
"""How long a watcher may say of itself that it was away (its host slept, it was restarted)."""
MOST_PROBLEMS = 20
TOLD_BYTES = 16
"""Of each device sample's digest that are kept."""
_WRITTEN_AGAIN = re.compile(r"exit_rank\d+\.json")
"""What a rank that starts anew in place writes again, up to the end of the run."""


def tick_digest(tick: Tick) -> str:
    """Return the digest of a recorded tick, which the next one names.

    SHA-256 of the tick as compact JSON with sorted keys, defaults left out and floats as Python
    writes them (the shortest text that gives the same double): a tenth of RFC 8785's time, and
    ticks are many.
    """
    document = tick.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(slots=True, kw_only=True)
class TickChain:
    """What the ticks amount to, one after the other."""

    ticks: int = 0
    unreadable: int = 0
    """Lines of watch.jsonl that are no tick."""
    starts: list[WatchStart] = field(default_factory=list)
    files: dict[str, FileSeal] = field(default_factory=dict)
    """Files as the watcher saw them complete."""
    probes: dict[str, Any] = field(default_factory=dict)
    """Rank → how a tick saw it end."""
    looked: set[int] = field(default_factory=set)
    """Ranks whose process a tick knew the state of."""
    agent: ProcessExit | None = None
    """How a tick saw torchrun end."""
    device_rows: DeviceRows = field(default_factory=DeviceRows)
    devices: bytearray = field(default_factory=bytearray)
    """Digests of the device samples that ticks carry, `TOLD_BYTES` of each."""
    device_errors: dict[tuple[int, str], int] = field(default_factory=dict)
    """Rank and its device → uncorrectable memory errors in the first sample that counts them."""
    last: Tick | None = None
    silent_s: dict[int, float] = field(default_factory=dict)
    """Node → for how long it was silent in all, up to when it was heard again."""
    silent_since: dict[int, float] = field(default_factory=dict)
    """Node → clock of the tick that called it silent, of those that are."""
    chained: bool = True
    longest_gap_s: float = 0.0
    problems: list[Doubt] = field(default_factory=list)
    _previous: str | None = None
    _away_s: float = 0.0
    _back_at: float = -math.inf
    _beyond: bool = False
    _lived: dict[int, bool] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of the last tick, and by the chain of all of them."""
        return self._previous or hashlib.sha256(b"").hexdigest()

    def say(self, problem: Doubt) -> None:
        """Take note of a shortcoming; of more than `MOST_PROBLEMS` the first ones."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)

    def _broken(self, what: str, number: int, rank: int | None = None) -> None:
        self.say(Doubt(kind=DoubtKind.WATCH_BROKEN, rank=rank, name=what, found=number))

    def miss(self, number: int) -> None:
        """Take note of a line that is no tick."""
        self.unreadable += 1
        self._broken("it is no tick", number)

    def take(self, tick: Tick, number: int, *, beyond: bool) -> None:
        """Check a tick against the one before it, and take note of what it records.

        Args:
            tick: the next one.
            number: its line.
            beyond: whether it follows those that exit.json seals.
        """
        last, self._beyond = self.last, beyond
        if tick.prev != self._previous:
            self.chained = False
            self._broken("it does not follow from the one before it", number)
        if last is not None:
            gap_s = tick.mono - last.mono - tick.late_s
            self.longest_gap_s = max(self.longest_gap_s, gap_s)
            away_s = self._away(last.mono, tick.mono)
            if away_s > AWAY_S or gap_s > HOLE_S:
                absent_s = away_s if away_s > AWAY_S else gap_s
                self.say(Doubt(kind=DoubtKind.WATCH_GAP, name=str(number), found=round(absent_s)))
            if tick.mono < last.mono:
                self.chained = False
                self._broken("its clock runs backwards", number)
        if tick.start is not None:
            self.starts.append(tick.start)
        self._take_seals(tick, number)
        self._take_devices(tick, number)
        for probe in tick.ranks:
            self._take_probe(probe, number)
        for node in tick.nodes:
            self._take_node(node, tick.mono)
        agent = tick.agent
        if agent is not None and (agent.code is not None or agent.signal is not None):
            self.agent = ProcessExit(code=agent.code, signal=agent.signal)
        self.ticks += 1
        self._previous, self.last = tick_digest(tick), tick

    def _away(self, left: float, back: float) -> float:
        """Return for how long nobody watched until `back`, absences that follow closely together.

        A deadline is armed anew after an absence: of several with moments between them each would
        be too short to be seen, and what stood all the while would not be found.
        """
        if back - left > HOLE_S:
            again = left - self._back_at < AWAY_S
            self._away_s = (self._away_s if again else 0.0) + back - left
            self._back_at = back
            return self._away_s
        return back - left

    def _take_seals(self, tick: Tick, number: int) -> None:
        """Keep the seals of a tick; another seal of what is written once is a problem."""
        ended = "exit.json" in self.files
        for name, seal in tick.files.items():
            again = (name == "model.json" and not self._beyond) or (
                _WRITTEN_AGAIN.fullmatch(name) is not None and not ended
            )
            if not again and self.files.setdefault(name, seal) != seal:
                self._broken(f"it seals {name} again, with other bytes", number)
            self.files[name] = seal

    def _take_devices(self, tick: Tick, number: int) -> None:
        """Keep what a tick tells of the devices; of times long before the last tick it may not."""
        samples, last = devices_in(tick), self.last
        if last is not None and any(row.mono < last.mono - HOLE_S for row in samples):
            self._broken("its device samples are older than the tick before it", number)
        self.device_rows.take(samples)
        for sample in samples:
            self.devices += sample.digest()[:TOLD_BYTES]
            if sample.rank is not None and sample.ecc_uncorrected is not None:
                self.device_errors.setdefault((sample.rank, sample.uuid), sample.ecc_uncorrected)

    def _take_node(self, probe: NodeProbe, mono: float) -> None:
        """Keep for how long nothing came from a node: what its processes did nobody saw."""
        if probe.state is NodeState.SILENT:
            self.silent_since.setdefault(probe.node, mono)
            return
        since = self.silent_since.pop(probe.node, mono)
        self.silent_s[probe.node] = self.silent_s.get(probe.node, 0.0) + mono - since

    def silences(self) -> dict[int, float]:
        """Return node → for how long it was silent in all, up to the last tick."""
        end = 0.0 if self.last is None else self.last.mono
        now = {node: end - since for node, since in self.silent_since.items()}
        nodes = self.silent_s.keys() | now.keys()
        return {node: self.silent_s.get(node, 0.0) + now.get(node, 0.0) for node in nodes}

    def _take_probe(self, probe: RankProbe, number: int) -> None:
        """Keep how a rank was seen to end; after the end of the run that changes no more."""
        if probe.state is not ProcessState.UNKNOWN:
            self.looked.add(probe.rank)
        if probe.code is not None or probe.signal is not None:
            end = {"code": probe.code, "signal": probe.signal}
            known = self.probes.setdefault(str(probe.rank), end)
            if known != end and self._beyond and not self._lived.get(probe.rank):
                self._broken("it gives the rank another exit", number, rank=probe.rank)
            self.probes[str(probe.rank)] = end
        if probe.state is ProcessState.DEAD or not self._beyond:
            self._lived[probe.rank] = probe.state is not ProcessState.DEAD
