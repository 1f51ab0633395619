"""D15: does memory grow so that it hits its limit before the last step?

Two numbers of each rank's progress lines: memory that the device's allocator holds, and resident
memory of the process, without the steps that speed leaves out as warm-up (`slow.warmup_steps`).
What counts as a rise is told in `series`: significant, more than `rise_ratio`, and going on, so
that caches which fill up after the start are none.

Limits: the plan's `limit_mb` (for one rank), else what the control group or host has left for all
of them; on the device `memory_limit.reserved_mb`, else the device's memory. Without one nothing is
projected and nothing found. A halt waits for a checkpoint, at most as long as its `value` says.

A device's allocator keeps what the largest step so far took, and gives it back when it needs it. So
steps that carry more tokens than any before (longer sequences, a batch that grows) begin its course
anew, and where what is allocated at the end of a step is told and does not rise, a rise that most
steps have no part in warns only: longer batches that come by chance, or memory in pieces, and
nothing that is kept. What rises step by step is kept by somebody, whoever counts it.

Caches fill up as a leak does: a loader's processes touch their copy of an index all through the
first epoch, or keep the data. So a halt waits until the projection reaches no further than the rise
has come, however soon that is: as much time is left then as has passed, and most of what fills up
has stopped by then.

Each host has its own figures, and its ranks no other's. What a host has left shrinks only where its
used memory rises too: a rank whose resident memory rises while the host's does not has mapped
files, whose pages the kernel takes back.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.canonical import added
from gonogo.contract.finding import Act, Finding, Severity, Source
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.observation import HostMemory, Kind, hosts_memory_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick, parse_rank
from gonogo.timeline.step import Step
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.series import Look, Series
from gonogo.watch.state import replace
from gonogo.watch.tokens import TokenGrowth
from gonogo.watch.view import Run, View, found

HOST, DEVICE, ALLOCATED = "host", "device", "allocated"
WHAT = {HOST: "host memory", DEVICE: "reserved device memory"}
ALIKE_SHARE = 0.5
MOVES_SHARE = 0.9
"""Of the latest samples: reserved memory that is another in so many of them is not taken in pieces
now and then."""
USED_TELLINGS = 3
"""After so many the host's used memory has a course; one figure has none."""

SHORT_RUN_STEPS = 20_000
LONG_RUN_STRIDE = 4
"""In a run of more steps than that, what is told within so many steps of a sample is passed over:
some tell of every tenth step, be it 1, 11, 21."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """What one host told of its memory."""

    used_mb: float
    limit_mb: float | None
    used: Series
    """Its used memory, step by step."""
    tellings: int = 0
    """Counted up to `USED_TELLINGS`."""

    def told(self, said: HostMemory) -> "Host":
        """Return the same after another telling."""
        tellings = min(USED_TELLINGS, self.tellings + 1)
        return replace(self, used_mb=said.used_mb, limit_mb=said.limit_mb, tellings=tellings)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What is known of memory: its course by kind and rank, and its limits."""

    series: Mapping[str, Series] = field(default_factory=dict)
    """`host/0`, `device/1`, … and what a device has allocated, `allocated/1`."""
    tokens: TokenGrowth = field(default_factory=TokenGrowth)
    more: float = 0.0
    """How much more tokens than those of the first the largest step so far had, as a share."""
    hosts: Mapping[str, Host] = field(default_factory=dict)
    """Node → its host."""
    device_mb: Mapping[str, float] = field(default_factory=dict)
    """Rank → memory of its device."""
    last_step: int = 0
    sampled: int = 0
    """The last step that a sample was taken of."""
    warned: tuple[str, ...] = ()
    halted: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A projection of growth; `rank` is None where several ranks grow alike."""

    kind: str
    rank: int | None
    slope: float
    now_mb: float
    limit_mb: float
    steps_left: float
    """Until the limit is reached."""
    seen_steps: float
    """For how long it has risen so, by how far it has come."""
    steady: bool
    eta_s: float | None = None

    @property
    def near(self) -> bool:
        """Whether it hits its limit after no more steps than it has risen for."""
        return self.steps_left <= self.seen_steps

    @property
    def name(self) -> str:
        """Its episode: one warning and one halt each."""
        return f"{self.kind}/{'all' if self.rank is None else self.rank}"


class MemoryLeak(Detector[Growth]):
    """D15: does memory grow so that it hits its limit before the last step?"""

    name = Name.MEMORY_LEAK
    sentence = (
        "Warns when a rank's host memory or reserved device memory rises steadily and will hit its"
        " limit before the last step, with the time that is left; halts at the next checkpoint when"
        " that is under an hour, but not for device memory that is reserved in pieces, now and"
        " then, and not allocated at the ends of steps, where both are told, nor before memory has"
        " risen by as much as is left: caches fill up as well. Steps of more tokens than any before"
        " begin device memory's course anew. Where the limit is the host's and its used memory is"
        " told as well, no rank's memory is projected to rise faster than that does."
    )
    State = Growth
    """2: a halt waits until memory has risen by as much as is left; the host's course begins anew,
    too, where a run goes back to an earlier step."""
    steps = True
    ticks = True
    observes = frozenset({"devices", Kind.HOST_MEMORY, Kind.HOSTS_MEMORY})

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._look = Look(
            after=run.watch.slow.warmup_steps,
            least=min(self.settings.min_samples, self.settings.window_samples),
            most=self.settings.window_samples,
            rise_ratio=self.settings.rise_ratio,
        )
        self._used_look = replace(self._look, rise_ratio=0.0)
        self._stride = 1 if run.order.last_step <= SHORT_RUN_STEPS else LONG_RUN_STRIDE

    def observe_tick(self, own: Growth, tick: Tick, view: View) -> Seen[Growth]:
        """Observe the limits that probes tell."""
        for said in hosts_memory_in(tick):
            node = self._node_of(said)
            if node is not None:
                known = own.hosts.get(node)
                if known is None:
                    known = Host(used_mb=said.used_mb, limit_mb=said.limit_mb, used=Series(boot=""))
                own = replace(own, hosts={**own.hosts, node: known.told(said)})
        devices = _device_mb(tick.observations.get("devices"))
        if devices:
            own = replace(own, device_mb={**own.device_mb, **devices})
        return own, []

    def _node_of(self, said: HostMemory) -> str | None:
        """Return the node that a host is: of several the one that its ranks are on."""
        if self.run.order.nodes < 2:
            return "0"
        ranks = (parse_rank(name) for name in said.ranks)
        known = [rank for rank in ranks if rank is not None and rank < self.run.order.world_size]
        return str(self.run.order.node_of(min(known))) if known else None

    def observe_step(self, own: Growth, step: Step, view: View) -> Seen[Growth]:
        """Observe one step's memory, and project where it leads."""
        again = step.step <= own.last_step
        own = _grown(own, step, self.settings.rise_ratio, view)
        own = replace(own, last_step=step.step)
        if 0 < step.step - own.sampled < self._stride:
            return own, []
        series, looked, told = dict(own.series), False, False
        for kind, read in ((HOST, _host_mb), (ALLOCATED, _allocated_mb), (DEVICE, _reserved_mb)):
            for rank, mb in step.values(read).items():
                if 0.0 < mb < math.inf:
                    name, boot = f"{kind}/{rank}", step.ranks[rank].boot
                    before = series.get(name)
                    if before is None or before.boot != boot:
                        before = Series(boot=boot)
                    after = series[name] = before.with_sample(step.step, mb, self._look)
                    told = True
                    looked = looked or after.looks > before.looks
        hosts = {}
        for node, host in own.hosts.items():
            used = Series(boot="") if again else host.used
            used = used.with_sample(step.step, host.used_mb, self._used_look)
            hosts[node] = replace(host, used=used)
        sampled = step.step if told else own.sampled
        own = replace(own, series=series, hosts=hosts, sampled=sampled)
        return self._judged(own, step, view) if looked else (own, [])

    def _judged(self, own: Growth, step: Step, view: View) -> Seen[Growth]:
        """Return the findings of a step after which a series was looked at."""
        findings: list[Finding] = []
        step_s = view.median_step_s()
        for kind in (HOST, DEVICE):
            leak = self._worst(own, kind)
            if leak is None or leak.steps_left >= self.run.order.last_step - step.step:
                continue
            if step_s is not None:
                leak = replace(leak, eta_s=leak.steps_left * step_s)
            if leak.name not in own.warned:
                own = replace(own, warned=(*own.warned, leak.name))
                findings.append(self._finding(view, step, leak, Severity.WARN))
            soon = leak.eta_s is not None and leak.eta_s < self.settings.halt_eta_s
            if soon and leak.near and leak.steady and leak.name not in own.halted:
                own = replace(own, halted=(*own.halted, leak.name))
                findings.append(self._finding(view, step, leak, Severity.HALT))
        return own, findings

    def _worst(self, own: Growth, kind: str) -> Leak | None:
        """Return the projection of the rank that hits its limit first, if any grows."""
        rising = {
            int(name.partition("/")[2]): series
            for name, series in own.series.items()
            if series.slope > 0 and name.startswith(f"{kind}/")
        }
        leaks = []
        for rank, series in sorted(rising.items()):
            left_mb, shared = self._left_mb(own, kind, rank, series.last)
            slope = self._slope_of_host(own, rank, rising) if shared else series.slope
            if left_mb is None or not slope:
                continue
            leaks.append(
                Leak(
                    kind=kind,
                    rank=rank,
                    slope=series.slope,
                    now_mb=series.last,
                    limit_mb=series.last + left_mb,
                    steps_left=max(0.0, left_mb) / slope,
                    seen_steps=series.risen / series.slope,
                    steady=series.steady and (kind == HOST or _is_kept(own, rank)),
                )
            )
        worst = min(leaks, key=lambda leak: (leak.steps_left, -leak.slope), default=None)
        if worst is None:
            return None
        alike = sum(leak.slope >= ALIKE_SHARE * worst.slope for leak in leaks)
        return worst if alike == 1 else replace(worst, rank=None)

    def _slope_of_host(self, own: Growth, rank: int, rising: Mapping[int, Series]) -> float:
        """Return how fast a rank's host fills: as its ranks do, and no faster than it tells."""
        node = self.run.order.node_of(rank)
        together = added(
            series.slope for row, series in rising.items() if self.run.order.node_of(row) == node
        )
        host = own.hosts.get(str(node))
        if host is None or host.tellings < USED_TELLINGS:
            return together
        return min(together, host.used.slope)

    def _left_mb(
        self, own: Growth, kind: str, rank: int, now_mb: float
    ) -> tuple[float | None, bool]:
        """Return how much more a rank may take (None: nothing says), and whether all share it.

        A limit of the plan adds to what device and host have; it lifts neither.
        """
        if kind == DEVICE:
            limits = (self.run.watch.memory_limit.reserved_mb, own.device_mb.get(str(rank)))
            said = [limit_mb for limit_mb in limits if limit_mb is not None]
            return (min(said) - now_mb if said else None), False
        limit_mb = self.settings.limit_mb
        planned_mb = math.inf if limit_mb is None else limit_mb - now_mb
        host, host_mb = own.hosts.get(str(self.run.order.node_of(rank))), math.inf
        if host is not None and host.limit_mb is not None:
            host_mb = host.limit_mb - host.used_mb
        left_mb = min(planned_mb, host_mb)
        return (None if left_mb == math.inf else left_mb), host_mb <= planned_mb

    def _finding(self, view: View, step: Step, leak: Leak, severity: Severity) -> Finding:
        halts = severity is Severity.HALT
        whose = "" if leak.rank is None else f" of rank {leak.rank}"
        when = "" if leak.eta_s is None else f" in about {_told(leak.eta_s)}"
        return found(
            view,
            self.name,
            severity,
            episode=leak.name,
            at=step.tick.ts,
            rank=leak.rank,
            step=step.step,
            value=leak.eta_s,
            threshold=self.settings.halt_eta_s if halts else None,
            source=self._source(leak.kind),
            act=Act.AT_CHECKPOINT if halts else None,
            text=f"{WHAT[leak.kind]}{whose} grows by {leak.slope:.3g} MB a step, to"
            f" {leak.now_mb:.0f} MB at step {step.step}: it hits {leak.limit_mb:.0f} MB{when},"
            f" before the last of {self.run.order.last_step} steps",
        )

    def _source(self, kind: str) -> Source:
        """Return where the limit came from, else the setting that it is compared with."""
        path = "memory_leak.limit_mb" if kind == HOST else "memory_limit.reserved_mb"
        source = self.run.source(path)
        return self.run.source("memory_leak.halt_eta_s") if source is Source.DEFAULT else source

    def armed(self, own: Growth, view: View) -> bool:
        """Whether a rank has told enough of its memory, and a limit of it is known."""
        for name, series in own.series.items():
            kind, _, rank = name.partition("/")
            if kind not in WHAT or not series.looks:
                continue
            if self._left_mb(own, kind, int(rank), series.last)[0] is not None:
                return True
        return False

    def missing(self, own: Growth, view: View) -> str | None:
        """Say when memory was told and no limit to project it to."""
        known = any(host.limit_mb is not None for host in own.hosts.values())
        if known or self.settings.limit_mb is not None:
            return None
        if not any(name.startswith(HOST) for name in own.series):
            return None
        return "nothing says how much host memory there is"


def _grown(own: Growth, step: Step, by_ratio: float, view: View) -> Growth:
    """Return the same, without the courses of devices where a step is larger than any before."""
    told = max((row.end.tokens or 0 for row in step.ranks.values()), default=0)
    carried, of_step = (told, step.step) if told else view.tokens_of(min(step.ranks))
    before = own.tokens.restarted() if step.step <= own.last_step else own.tokens
    tokens = before.after(carried, view.run.order.identity.tokens_per_step, step=of_step)
    if tokens is own.tokens:
        return own
    if tokens.sums and not own.tokens.sums:  # what was told so far was no growth
        return replace(own, tokens=tokens, more=tokens.ratio - 1.0)
    if tokens.ratio <= (1.0 + by_ratio) * (1.0 + own.more):
        return replace(own, tokens=tokens)
    kept = {name: row for name, row in own.series.items() if name.startswith(f"{HOST}/")}
    return replace(own, tokens=tokens, more=tokens.ratio - 1.0, series=kept)


def _is_kept(own: Growth, rank: int) -> bool:
    """Whether what a rank's device has allocated at the ends of steps rises, or nobody tells it.

    Or whether what is reserved changes from step to step: an allocator takes memory in pieces, and
    most steps find enough of it.
    """
    allocated = own.series.get(f"{ALLOCATED}/{rank}")
    if allocated is None or allocated.slope > 0:
        return True
    return own.series[f"{DEVICE}/{rank}"].moves_share >= MOVES_SHARE


def _host_mb(line: Heartbeat) -> float | None:
    return line.host_rss_mb


def _reserved_mb(line: Heartbeat) -> float | None:
    return line.gpu_mem_reserved


def _allocated_mb(line: Heartbeat) -> float | None:
    return line.gpu_mem_alloc


def _device_mb(payload: Any) -> dict[str, float]:
    """Return rank → memory of its device, from a payload of device samples."""
    found_mb: dict[str, float] = {}
    for row in payload if isinstance(payload, list) else []:
        if isinstance(row, Mapping):
            rank, total = row.get("rank"), row.get("mem_total_mb")
            if not (isinstance(rank, int) and isinstance(total, int | float)):
                continue
            if 0 < total <= sys.float_info.max:
                found_mb[str(rank)] = float(total)
    return found_mb


def _told(seconds: float) -> str:
    """Return a duration for a person."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
