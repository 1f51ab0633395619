"""D15: memory grows so that it hits its limit before the last step.

Two numbers of each rank's progress lines: memory that the device's allocator holds, and resident
memory of the process, without the warm-up steps of `slow.warmup_steps`. `series` says what counts
as a rise: it is significant, more than `rise_ratio`, and continues.

Limits: the plan's `limit_mb` (for one rank), and what the control group or host has left for all of
them; on the device `memory_limit.reserved_mb`, or the device's memory. Without a limit nothing is
projected and nothing found. A halt waits for a checkpoint, at most as long as its `value` says.

Only host memory may halt. A device's allocator keeps what the largest step took, and gives it back
when it needs it. Caches fill up as a leak does, so a halt waits until memory has risen by as much
as is left. No rank is projected to fill its host faster than the host's used memory rises, because
pages of mapped files are taken back.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.canonical import added
from gonogo.contract.finding import Act, Finding, Severity, Source
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.near import Near
from gonogo.contract.observation import HostMemory, Kind, hosts_memory_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick, parse_rank
from gonogo.timeline.step import Step
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.series import Look, Series
from gonogo.watch.state import replace
from gonogo.watch.view import Run, View, found

HOST, DEVICE = "host", "device"
LABELS = {HOST: "host memory", DEVICE: "reserved device memory"}
ALIKE_SHARE = 0.5
"""A rank whose slope is this share of the worst one grows alike; then no rank is named."""
USED_REPORTS = 3
"""After so many reports the host's used memory has a course; one figure has none."""
NO_LIMIT = "nothing says how much host memory there is"


@dataclass(frozen=True, kw_only=True)
class Host:
    """Memory of one host, as it was reported last."""

    used_mb: float
    limit_mb: float | None
    used: Series
    """Its used memory, step by step."""
    reports: int = 1
    """Counted up to `USED_REPORTS`."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Memory by kind and rank, and its limits."""

    series: Mapping[str, Series] = field(default_factory=dict)
    """`host/0`, `device/1`, …"""
    hosts: Mapping[str, Host] = field(default_factory=dict)
    """Node → its host."""
    device_mb: Mapping[str, float] = field(default_factory=dict)
    """Rank → memory of its device."""
    last_step: int = 0
    warned: tuple[str, ...] = ()
    halted: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A projection of growth; `rank` is None where several ranks grow alike."""

    kind: str
    rank: int | None
    slope: float
    """MB a step."""
    now_mb: float
    limit_mb: float
    steps_left: float
    """Until the limit is reached."""
    seen_steps: float
    """For how many steps it has risen so."""
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
    """D15 (module docstring)."""

    name = Name.MEMORY_LEAK
    sentence = (
        "A rank's host memory or reserved device memory rises steadily and will hit its limit"
        " before the last step: a warning, with the time that is left. Host memory acts at the next"
        " checkpoint when less than `halt_eta_s` is left, and memory has risen by as much as is"
        " left."
    )
    State = Growth
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

    def observe_tick(self, own: Growth, tick: Tick, view: View) -> Seen[Growth]:
        """Observe the limits that probes report."""
        for row in hosts_memory_in(tick):
            node = self._node_of(row)
            if node is not None:
                known = own.hosts.get(node)
                host = Host(
                    used_mb=row.used_mb,
                    limit_mb=row.limit_mb,
                    used=Series(boot="") if known is None else known.used,
                    reports=1 if known is None else min(USED_REPORTS, known.reports + 1),
                )
                own = replace(own, hosts={**own.hosts, node: host})
        devices = _device_mb(tick.observations.get("devices"))
        if devices:
            own = replace(own, device_mb={**own.device_mb, **devices})
        return own, []

    def _node_of(self, host: HostMemory) -> str | None:
        """Return the node of a host: with several nodes, the one that its ranks are on."""
        if self.run.order.nodes < 2:
            return "0"
        ranks = (parse_rank(name) for name in host.ranks)
        known = [rank for rank in ranks if rank is not None and rank < self.run.order.world_size]
        return str(self.run.order.node_of(min(known))) if known else None

    def observe_step(self, own: Growth, step: Step, view: View) -> Seen[Growth]:
        """Observe one step's memory, and project where it leads."""
        again = step.step <= own.last_step
        series, looked = dict(own.series), False
        for kind, read in ((HOST, _host_mb), (DEVICE, _reserved_mb)):
            for rank, mb in step.values(read).items():
                if not 0.0 < mb < math.inf:
                    continue
                name, boot = f"{kind}/{rank}", step.ranks[rank].boot
                before = series.get(name)
                if before is None or before.boot != boot:
                    before = Series(boot=boot)
                series[name] = before.with_sample(step.step, mb, self._look)
                looked = looked or series[name].looks > before.looks
        hosts = {}
        for node, host in own.hosts.items():
            used = Series(boot="") if again else host.used
            used = used.with_sample(step.step, host.used_mb, self._used_look)
            hosts[node] = replace(host, used=used)
        own = replace(own, series=series, hosts=hosts, last_step=step.step)
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
            due = kind == HOST and soon and leak.near and leak.steady
            if due and leak.name not in own.halted:
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
                    steady=series.steady,
                )
            )
        worst = min(leaks, key=lambda leak: (leak.steps_left, -leak.slope), default=None)
        if worst is None:
            return None
        alike = sum(leak.slope >= ALIKE_SHARE * worst.slope for leak in leaks)
        return worst if alike == 1 else replace(worst, rank=None)

    def _slope_of_host(self, own: Growth, rank: int, rising: Mapping[int, Series]) -> float:
        """Return how fast a rank's host fills: as its ranks do, and no faster than it reports."""
        node = self.run.order.node_of(rank)
        together = added(
            series.slope for row, series in rising.items() if self.run.order.node_of(row) == node
        )
        host = own.hosts.get(str(node))
        if host is None or host.reports < USED_REPORTS:
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
        when = "" if leak.eta_s is None else f" in about {_duration(leak.eta_s)}"
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
            text=f"{LABELS[leak.kind]}{whose} grows by {leak.slope:.3g} MB a step, to"
            f" {leak.now_mb:.0f} MB at step {step.step}: it hits {leak.limit_mb:.0f} MB{when},"
            f" before the last of {self.run.order.last_step} steps",
        )

    def _source(self, kind: str) -> Source:
        """Return where the limit came from, else the setting that it is compared with."""
        path = "memory_leak.limit_mb" if kind == HOST else "memory_limit.reserved_mb"
        source = self.run.source(path)
        return self.run.source("memory_leak.halt_eta_s") if source is Source.DEFAULT else source

    def armed(self, own: Growth, view: View) -> bool:
        """Return whether a rank has reported enough of its memory, and a limit of it is known."""
        for name, series in own.series.items():
            kind, _, rank = name.partition("/")
            if series.looks and self._left_mb(own, kind, int(rank), series.last)[0] is not None:
                return True
        return False

    def near(self, own: Growth, view: View, mono: float) -> Near:
        """Return how near the memory that grows fastest towards its limit is to that limit."""
        if not self.armed(own, view):
            return Near(blind=self.missing(own, view) or "too few samples")
        leaks = [leak for leak in (self._worst(own, kind) for kind in LABELS) if leak is not None]
        worst = min(leaks, key=lambda leak: leak.steps_left, default=None)
        if worst is None:
            return Near(unit="MB")
        step_s = view.median_step_s()
        left_s = None if step_s is None else worst.steps_left * step_s
        return Near(value=worst.now_mb, limit=worst.limit_mb, unit="MB", time_left_s=left_s)

    def missing(self, own: Growth, view: View) -> str | None:
        """Return a sentence when memory was reported and no limit of it."""
        known = any(host.limit_mb is not None for host in own.hosts.values())
        if known or self.settings.limit_mb is not None:
            return None
        return NO_LIMIT if any(name.startswith(HOST) for name in own.series) else None


def _host_mb(line: Heartbeat) -> float | None:
    return line.host_rss_mb


def _reserved_mb(line: Heartbeat) -> float | None:
    return line.gpu_mem_reserved


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


def _duration(seconds: float) -> str:
    """Return a duration for a person."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
