"""Memory: D15 memory_leak projects its growth, D16 memory_limit compares it with limits.

Limits of host memory: the plan's `limit_mb` (for one rank), and what the control group or host has
left for all ranks. Limits of device memory: `memory_limit.reserved_mb`, and the device's memory.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from gonogo.contract.canonical import added
from gonogo.contract.device import devices_in
from gonogo.contract.finding import Act, Finding, Severity, Source
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.near import Near
from gonogo.contract.observation import HostMemory, Kind, host_memory_in, hosts_memory_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick, parse_rank
from gonogo.timeline.step import Step
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.detectors.series import Look, Series
from gonogo.watch.state import replace
from gonogo.watch.view import Beat, Run, View

HOST, DEVICE = "host", "device"
LABELS = {HOST: "host memory", DEVICE: "reserved device memory"}
ALIKE_SHARE = 0.5
"""A rank whose slope is this share of the worst one grows alike; then no rank is named."""
USED_REPORTS = 3
"""After so many reports the host's used memory has a course; one figure has none."""
OWN_SHARE = 0.5
"""Share of the memory in use that the ranks hold, from which it is theirs."""
APART = 1.33
"""A rank that holds so much more than the next one is named."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Memory of one host, as it was reported last."""

    used_mb: float
    limit_mb: float | None
    used: Series
    """Its used memory, step by step."""
    reports: int = 1


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Memory by kind and rank, and its limits."""

    series: Mapping[str, Series] = field(default_factory=dict)
    """`host/0`, `device/1`, …"""
    hosts: Mapping[str, Host] = field(default_factory=dict)
    """Node → its host."""
    device_mb: Mapping[str, float] = field(default_factory=dict)
    """Rank → memory of its device."""


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A projection of growth; `rank` is None where several ranks grow alike."""

    kind: str
    rank: int | None
    series: Series
    limit_mb: float
    steps_left: float
    """Until the limit is reached."""

    @property
    def near(self) -> bool:
        """Whether it hits its limit after no more steps than it has risen for."""
        return self.steps_left * self.series.slope <= self.series.risen


class MemoryLeak(Detector[Growth]):
    """D15: memory grows so that it hits its limit before the last step.

    Two numbers of each rank's progress lines count: host memory of the process, and memory that the
    device's allocator holds. Only host memory may halt, because an allocator gives memory back when
    the device needs it. Caches fill up as a leak does, so a halt waits until memory has risen by as
    much as is left. No rank is projected to fill its host faster than the host's used memory rises,
    because pages of mapped files are taken back.
    """

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
    blind = "too few samples, or no limit is known"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._look = Look(
            after=run.watch.slow.warmup_steps,
            least=min(self.settings.min_samples, self.settings.window_samples),
            most=self.settings.window_samples,
            rise_ratio=self.settings.rise_ratio,
        )

    def observe_tick(self, own: Growth, tick: Tick, view: View) -> Seen[Growth]:
        """Observe the limits that probes report."""
        hosts, device_mb = dict(own.hosts), dict(own.device_mb)
        for row in hosts_memory_in(tick):
            ranks = [rank for name in row.ranks if (rank := parse_rank(name)) is not None]
            if self.run.order.nodes > 1 and not ranks:
                continue
            node = str(self.run.order.node_of(min(ranks))) if self.run.order.nodes > 1 else "0"
            known = hosts.get(node) or Host(used_mb=0, limit_mb=0, used=Series(boot=""), reports=0)
            numbers = {"used_mb": row.used_mb, "limit_mb": row.limit_mb}
            hosts[node] = replace(known, **numbers, reports=min(USED_REPORTS, known.reports + 1))
        for sample in devices_in(tick):
            total_mb = sample.mem_total_mb or 0.0
            if sample.rank is not None and 0 < total_mb <= sys.float_info.max:
                device_mb[str(sample.rank)] = total_mb
        return replace(own, hosts=hosts, device_mb=device_mb), []

    def observe_step(self, own: Growth, step: Step, view: View) -> Seen[Growth]:
        """Observe one step's memory, and project where it leads."""
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
        any_rise, boot = replace(self._look, rise_ratio=0.0), step.ranks[min(step.ranks)].boot
        hosts = {}
        for node, host in own.hosts.items():
            used = host.used if host.used.boot == boot else Series(boot=boot)
            used = used.with_sample(step.step, host.used_mb, any_rise)
            hosts[node] = replace(host, used=used)
        own = replace(own, series=series, hosts=hosts)
        return own, self._judged(own, step, view) if looked else []

    def _judged(self, own: Growth, step: Step, view: View) -> list[Finding]:
        """Return the findings of a step after which a series was looked at."""
        findings: list[Finding] = []
        step_s = view.median_step_s()
        for kind in LABELS:
            leak = self._worst(own, kind)
            if leak is None or leak.steps_left >= self.run.order.last_step - step.step:
                continue
            eta_s = None if step_s is None else leak.steps_left * step_s
            findings.append(self._found(view, step, leak, Severity.WARN, eta_s))
            soon = eta_s is not None and eta_s < self.settings.halt_eta_s
            if kind == HOST and soon and leak.near and leak.series.steady:
                findings.append(self._found(view, step, leak, Severity.HALT, eta_s))
        return findings

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
            steps, limit_mb = max(0.0, left_mb) / slope, series.last + left_mb
            leaks.append(
                Leak(kind=kind, rank=rank, series=series, limit_mb=limit_mb, steps_left=steps)
            )
        worst = min(leaks, key=lambda leak: (leak.steps_left, -leak.series.slope), default=None)
        if worst is None:
            return None
        alike = sum(leak.series.slope >= ALIKE_SHARE * worst.series.slope for leak in leaks)
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
        """Return how much more a rank may take (None: unknown), and whether all ranks share it."""
        if kind == DEVICE:
            limits = (self.run.watch.memory_limit.reserved_mb, own.device_mb.get(str(rank)))
            known = [limit_mb for limit_mb in limits if limit_mb is not None]
            return (min(known) - now_mb if known else None), False
        host, host_mb, planned_mb = own.hosts.get(str(self.run.order.node_of(rank))), None, None
        if host is not None and host.limit_mb is not None:
            host_mb = host.limit_mb - host.used_mb
        if self.settings.limit_mb is not None:
            planned_mb = self.settings.limit_mb - now_mb
        if host_mb is None or (planned_mb is not None and planned_mb < host_mb):
            return planned_mb, False
        return host_mb, True

    def _found(
        self, view: View, step: Step, leak: Leak, severity: Severity, eta_s: float | None
    ) -> Finding:
        halts, series = severity is Severity.HALT, leak.series
        whose = "" if leak.rank is None else f" of rank {leak.rank}"
        when = "" if eta_s is None else f" in about {_duration(eta_s)}"
        path = "memory_leak.limit_mb" if leak.kind == HOST else "memory_limit.reserved_mb"
        source = self.run.source(path)
        if source is Source.DEFAULT:
            source = self.run.source("memory_leak.halt_eta_s")
        return self.finding(
            step,
            view,
            severity,
            f"{leak.kind}/{'all' if leak.rank is None else leak.rank}",
            f"{LABELS[leak.kind]}{whose} grows by {series.slope:.3g} MB a step, to"
            f" {series.last:.0f} MB at step {step.step}: it hits {leak.limit_mb:.0f} MB{when},"
            f" before the last of {self.run.order.last_step} steps",
            rank=leak.rank,
            value=eta_s,
            threshold=self.settings.halt_eta_s if halts else None,
            source=source,
            act=Act.AT_CHECKPOINT if halts else None,
        )

    def armed(self, own: Growth, view: View) -> bool:
        """Return whether a rank has reported enough of its memory, and a limit of it is known."""
        for name, series in own.series.items():
            kind, _, rank = name.partition("/")
            if series.looks and self._left_mb(own, kind, int(rank), series.last)[0] is not None:
                return True
        return False

    def measure(self, own: Growth, view: View, mono: float) -> Near:
        """Return how near the memory that grows fastest towards its limit is to that limit."""
        leaks = [leak for leak in (self._worst(own, kind) for kind in LABELS) if leak is not None]
        worst = min(leaks, key=lambda leak: leak.steps_left, default=None)
        if worst is None:
            return Near(unit="MB")
        step_s = view.median_step_s()
        left_s = None if step_s is None else worst.steps_left * step_s
        return Near(value=worst.series.last, limit=worst.limit_mb, unit="MB", time_left_s=left_s)

    def missing(self, own: Growth, view: View) -> str | None:
        """Return a sentence when host memory was reported and no limit of it."""
        known = any(host.limit_mb is not None for host in own.hosts.values())
        if known or self.settings.limit_mb is not None:
            return None
        reported = any(name.startswith(HOST) for name in own.series)
        return "nothing says how much host memory there is" if reported else None


def _host_mb(line: Heartbeat) -> float | None:
    return line.host_rss_mb


def _reserved_mb(line: Heartbeat) -> float | None:
    return line.gpu_mem_reserved


def _duration(seconds: float) -> str:
    """Return a duration for a person."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True, kw_only=True)
class Over:
    """How often running each limit has been exceeded."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """`rank0` by its lines, `device0` by its device, `host` with its ranks → samples above."""
    host_share: float | None = None
    """Share of the host's memory that was used at the last look."""

    def after(self, name: str, *, above: bool) -> "Over":
        """Return the counts after one more sample."""
        count = self.counts.get(name, 0) + 1 if above else 0
        return replace(self, counts={**self.counts, name: count})


class MemoryLimit(Detector[Over]):
    """D16: more memory is taken than there may be.

    A rank's lines report what it has reserved on its device. If they do not, what the device
    reports as used counts. Host memory halts when the ranks hold most of what is used; otherwise
    another process took it, which is a warning.
    """

    name = Name.MEMORY_LIMIT
    sentence = (
        "Halts when a rank's device memory is above the plan's limit on 3 samples running, or when "
        "over 90 % of the memory that the control group (or host) has is in use on 3 looks running,"
        " cached files apart, and the ranks hold half of it or more; where others do, it warns."
    )
    State = Over
    lines = frozenset({Msg.PROGRESS})
    ticks = True
    observes = frozenset({"devices", Kind.HOST_MEMORY})
    blind = "nothing reports memory"

    def observe_line(self, own: Over, beat: Beat, view: View) -> Seen[Over]:
        """Observe what a rank has reserved."""
        reserved_mb, limit_mb, rank = beat.line.gpu_mem_reserved, self._limit_mb, beat.line.rank
        name = f"rank{rank}"
        if limit_mb is None or reserved_mb is None or not math.isfinite(reserved_mb):
            return own, []
        if reserved_mb == 0 and name not in own.counts:
            return own, []  # a rank without a device of torch's says nothing about memory
        own = own.after(name, above=reserved_mb > limit_mb)
        if own.counts[name] < self.settings.samples:
            return own, []
        text = f"rank {rank} has reserved {reserved_mb:.0f} MB on its device"
        return own, [self._found(beat, view, rank, beat.line.step, reserved_mb, text)]

    @property
    def _limit_mb(self) -> float | None:
        limit_mb: float | None = self.settings.reserved_mb
        return limit_mb

    def observe_tick(self, own: Over, tick: Tick, view: View) -> Seen[Over]:
        """Observe what devices and host say is in use."""
        step = max((stream.step for stream in view.streams.values()), default=None)
        own, findings = self._look_at_devices(own, tick, view, step)
        host = host_memory_in(tick)
        if host is None or not host.limit_mb:
            return own, findings
        share = host.used_mb / host.limit_mb
        name = ",".join((HOST, *sorted(host.ranks))) if view.run.order.nodes > 1 else HOST
        own = replace(own, host_share=share).after(name, above=share > self.settings.host_ratio)
        if own.counts[name] < self.settings.samples:
            return own, findings
        own_mb = added(host.ranks.values())
        mine = own_mb >= OWN_SHARE * host.used_mb
        finding = self.finding(
            tick,
            view,
            Severity.HALT if mine else Severity.WARN,
            "host",
            f"{host.used_mb:.0f} of {host.limit_mb:.0f} MB of host memory are in use, {own_mb:.0f}"
            " of them by the ranks",
            setting="host_ratio",
            rank=_largest(host) if mine else None,
            step=step,
            value=share,
            threshold=self.settings.host_ratio,
        )
        return own, [*findings, finding]

    def _look_at_devices(self, own: Over, tick: Tick, view: View, step: int | None) -> Seen[Over]:
        """Use the device's figure for ranks that do not report their own."""
        limit_mb, findings = self._limit_mb, list[Finding]()
        for sample in devices_in(tick) if limit_mb is not None else ():
            rank, used_mb, name = sample.rank, sample.mem_used_mb, f"device{sample.rank}"
            if used_mb is None or rank is None or f"rank{rank}" in own.counts:
                continue
            own = own.after(name, above=used_mb > (limit_mb or 0.0))
            if own.counts[name] >= self.settings.samples:
                text = f"rank {rank}, device {sample.uuid}: {used_mb:.0f} MB are in use"
                findings.append(self._found(tick, view, rank, step, used_mb, text))
        return own, findings

    def _found(
        self, event: Beat | Tick, view: View, rank: int, step: int | None, mb: float, text: str
    ) -> Finding:
        limit_mb, episode = self._limit_mb, f"device/rank{rank}"
        text = f"{text}; the limit is {limit_mb:.0f} MB"
        return self.finding(
            event,
            view,
            Severity.HALT,
            episode,
            text,
            setting="reserved_mb",
            rank=rank,
            step=step,
            value=mb,
            threshold=limit_mb,
        )

    def armed(self, own: Over, view: View) -> bool:
        """Return whether there is a limit, and memory that is reported."""
        return own.host_share is not None or (self._limit_mb is not None and bool(own.counts))

    def measure(self, own: Over, view: View, mono: float) -> Near:
        """Return how much of the host's memory is used."""
        return Near(value=own.host_share, limit=self.settings.host_ratio)


def _largest(host: HostMemory) -> int | None:
    """Return the rank that holds far more than every other; None where nothing tells it apart."""
    said = ((mb, parse_rank(name)) for name, mb in host.ranks.items())
    rows = sorted(((mb, rank) for mb, rank in said if rank is not None), reverse=True)
    apart = len(rows) == 1 or (len(rows) > 1 and rows[0][0] > APART * rows[1][0])
    return rows[0][1] if apart else None
