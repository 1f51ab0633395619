"""Memory: D15 memory_leak projects its growth, D16 memory_limit compares it with limits.

Limits of host memory: the plan's `limit_mb` (for one rank), and what the control group or host has
left for all ranks. Limits of device memory: `memory_limit.reserved_mb`, and the device's memory.

Does a number keep rising? Every sample, every 8th, 64th and 512th is kept, the last of each, so
that a slow rise over a long run is seen as well as a fast one of the last minutes. A scale rises
when two conditions hold. The medians of its first and last eighth differ by more than `rise_ratio`.
The Theil-Sen slopes of all samples and of the later half both have a lower 95 % bound (Sen 1968,
one-sided) above zero. The smaller slope counts.

Not covered: a number that rises and falls over more steps than a scale keeps rises here.
"""

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from gonogo.contract.canonical import added
from gonogo.contract.finding import Act, Finding, Near, Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.observation import HostMemory, Kind, devices_in, hosts_memory_in
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import Tick, parse_rank
from gonogo.timeline.step import Step
from gonogo.watch.detector import Detector, Seen, replace
from gonogo.watch.view import Beat, Run, View

HOST, DEVICE = "host", "device"
LABELS = {HOST: "host memory", DEVICE: "reserved device memory"}
ALIKE_SHARE = 0.75
"""A rank is named if no other has this share of its memory, or of its growth."""
OWN_SHARE = 0.5
"""Share of the memory in use that the ranks hold, from which it is theirs."""
SCALES = (1, 8, 64, 512)
LEAST_SAMPLES = 16
"""Samples among `min_samples` steps: a slope needs no more points."""
Z_95 = 1.645
Point = tuple[int, float]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One number of one process of one rank."""

    boot: str = ""
    began_step: int = 0
    """The first step at which the process reported it."""
    number: int = 0
    last_mb: float = 0.0
    scales: tuple[tuple[Point, ...], ...] = ((),) * len(SCALES)
    """Step and value, oldest first."""
    slopes: tuple[float, ...] = (0.0,) * len(SCALES)
    """Rise per step on each scale; 0 where it does not rise."""
    slope: float = 0.0
    """Rise per step of the scale that rises fastest."""

    def take(self, step: int, mb: float, *, least: int, most: int, rise_ratio: float) -> "Series":
        """Return the series after one more sample."""
        number, scales, slopes = self.number + 1, list(self.scales), list(self.slopes)
        for at, stride in enumerate(SCALES):
            if number % stride:
                break
            scales[at] = points = (*scales[at], (step, mb))[-most:]
            if len(points) >= least:
                slopes[at] = slope_of(points, rise_ratio)
        return replace(
            self, number=number, last_mb=mb, scales=tuple(scales), slopes=tuple(slopes),
            slope=max(slopes),
        )  # fmt: skip


def slope_of(samples: Sequence[Point], rise_ratio: float) -> float:
    """Return how fast at least eight samples rise per step; 0 when they do not, or no longer do."""
    part, half = len(samples) // 8, len(samples) // 2
    first = statistics.median(value for _, value in samples[:part])
    last = statistics.median(value for _, value in samples[-part:])
    if last - first <= rise_ratio * abs(first):
        return 0.0
    return min(slope_above_zero(samples), slope_above_zero(samples[half:]))


def slope_above_zero(samples: Sequence[Point]) -> float:
    """Return the Theil-Sen slope; 0 where its lower bound is not above zero."""
    count = len(samples)
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(samples, 2))
    spread = Z_95 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    place = math.floor((len(slopes) - spread) / 2)
    return statistics.median(slopes) if place >= 0 and slopes[place] > 0.0 else 0.0


def stands_out(by_rank: Mapping[int, float]) -> int | None:
    """Return the rank whose number is far above that of every other, if there is one."""
    least = ALIKE_SHARE * max(by_rank.values(), default=0.0)
    high = [rank for rank, number in by_rank.items() if number >= least]
    return high[0] if len(high) == 1 else None


def hosts_in(tick: Tick, order: Order) -> Iterator[tuple[int, HostMemory, dict[int, float]]]:
    """Yield node, memory and the memory of each rank, of each host that a tick reports."""
    for host in hosts_memory_in(tick):
        named = ((parse_rank(name), mb) for name, mb in host.ranks.items())
        ranks = {rank: mb for rank, mb in named if rank is not None}
        if order.nodes == 1:
            yield 0, host, ranks
        elif ranks:
            yield order.node_of(min(ranks)), host, ranks


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Memory by kind and rank, and its limits."""

    series: Mapping[str, Mapping[int, Series]] = field(default_factory=dict)
    """`host` or `device` → rank → its samples."""
    sampled_step: int = 0
    host_mb: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Node → memory that is used, and its limit."""
    device_mb: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A projection of growth; `rank` is None where several ranks grow alike."""

    kind: str
    rank: int | None
    series: Series
    steps_left: float

    @property
    def limit_mb(self) -> float:
        """Memory of the rank when the limit is reached."""
        return self.series.last_mb + self.steps_left * self.series.slope


class MemoryLeak(Detector[Growth]):
    """D15: memory grows so that it hits its limit before the last step.

    Two numbers of each rank's progress lines count: host memory of the process, and memory that the
    device's allocator holds. Only host memory may halt, because an allocator gives memory back when
    the device needs it. Caches fill up as a leak does, so a halt waits until memory has risen by as
    much as is left.
    """

    name = Name.MEMORY_LEAK
    sentence = (
        "Warns when a rank's host memory or reserved device memory rises steadily and will "
        "hit its limit before the last step. Host memory acts at the next checkpoint when "
        "less than `halt_eta_s` is left."
    )
    State = Growth
    steps = True
    ticks = True
    observes = frozenset({"devices", Kind.HOST_MEMORY, Kind.HOSTS_MEMORY})
    blind = "too few samples, or no limit is known"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        least, most = self.settings.min_samples, self.settings.window_samples
        self._every = max(1, min(least, most) // LEAST_SAMPLES)
        self._least, self._most = min(least, most) // self._every, most // self._every

    def observe_tick(self, own: Growth, tick: Tick, view: View) -> Seen[Growth]:
        host_mb, device_mb = dict(own.host_mb), dict(own.device_mb)
        for node, host, _ in hosts_in(tick, self.run.order):
            if host.limit_mb is not None:
                host_mb[node] = (host.used_mb, host.limit_mb)
        for sample in devices_in(tick):
            total_mb = sample.mem_total_mb or 0.0
            if sample.rank is not None and 0 < total_mb <= sys.float_info.max:
                device_mb[sample.rank] = total_mb
        return replace(own, host_mb=host_mb, device_mb=device_mb), []

    def observe_step(self, own: Growth, step: Step, view: View) -> Seen[Growth]:
        if 0 <= step.step - own.sampled_step < self._every:
            return own, []
        series = {kind: dict(own.series.get(kind, {})) for kind in LABELS}
        rises, sampled_step = False, own.sampled_step
        for rank, row in step.ranks.items():
            line = row.progress
            if line is None:
                continue
            for kind, mb in ((HOST, line.host_rss_mb), (DEVICE, line.gpu_mem_reserved)):
                if mb is None or not 0.0 < mb < math.inf:
                    continue
                one = series[kind].get(rank)
                if one is None or one.boot != row.boot:
                    one = Series(boot=row.boot, began_step=step.step, last_mb=mb)
                if step.step - one.began_step >= self.run.watch.slow.warmup_steps:
                    one = one.take(
                        step.step, mb, least=self._least, most=self._most,
                        rise_ratio=self.settings.rise_ratio,
                    )  # fmt: skip
                series[kind][rank], sampled_step = one, step.step
                rises = rises or one.slope > 0.0
        own = replace(own, series=series, sampled_step=sampled_step)
        return own, self._judged(own, step, view) if rises else []

    def _judged(self, own: Growth, step: Step, view: View) -> list[Finding]:
        """Return what the projections of a step show."""
        findings, step_s = list[Finding](), view.median_step_s()
        for leak in self._leaks(own):
            if leak.steps_left >= self.run.order.last_step - step.step:
                continue
            eta_s = None if step_s is None else leak.steps_left * step_s
            findings.append(self._found(view, step, leak, Severity.WARN, eta_s))
            soon = eta_s is not None and eta_s < self.settings.halt_eta_s
            lowest_mb = min(mb for points in leak.series.scales for _, mb in points)
            risen_mb = leak.series.last_mb - lowest_mb
            if leak.kind == HOST and soon and leak.limit_mb - leak.series.last_mb <= risen_mb:
                findings.append(self._found(view, step, leak, Severity.HALT, eta_s))
        return findings

    def _leaks(self, own: Growth) -> Iterator[Leak]:
        """Yield the projection of the rank that hits its limit first, of each kind that grows."""
        node_of = self.run.order.node_of
        for kind, rows in own.series.items():
            slopes = {rank: row.slope for rank, row in sorted(rows.items()) if row.slope > 0.0}
            left = dict[int, float]()
            for rank, slope in slopes.items():
                together = added(slopes[peer] for peer in slopes if node_of(peer) == node_of(rank))
                rooms = self._rooms(own, kind, rank)
                steps = [mb / (together if is_shared else slope) for mb, is_shared in rooms]
                if steps:
                    left[rank] = max(0.0, min(steps))
            if left:
                first = min(left, key=lambda rank: (left[rank], -slopes[rank]))
                named = stands_out(slopes)
                yield Leak(kind=kind, rank=named, series=rows[first], steps_left=left[first])

    def _rooms(self, own: Growth, kind: str, rank: int) -> list[tuple[float, bool]]:
        """Return what each limit leaves to a rank, and whether the ranks of a host share it."""
        now_mb, node = own.series[kind][rank].last_mb, self.run.order.node_of(rank)
        limits = [self.settings.limit_mb]
        if kind == DEVICE:
            limits = [self.run.watch.memory_limit.reserved_mb, own.device_mb.get(rank)]
        rooms = [(limit_mb - now_mb, False) for limit_mb in limits if limit_mb is not None]
        if kind == HOST and node in own.host_mb:
            used_mb, limit_mb = own.host_mb[node]
            rooms.append((limit_mb - used_mb, True))
        return rooms

    def _found(
        self, view: View, step: Step, leak: Leak, severity: Severity, eta_s: float | None
    ) -> Finding:
        halts, series = severity is Severity.HALT, leak.series
        whose = "" if leak.rank is None else f" of rank {leak.rank}"
        when, steps = "" if eta_s is None else f" in about {eta_s:.0f} s", self.run.order.steps
        when += "" if steps is None else f", before the last of {steps} steps"
        path = "memory_leak.limit_mb" if leak.kind == HOST else "memory_limit.reserved_mb"
        text = (
            f"{LABELS[leak.kind]}{whose} grows by {series.slope:.3g} MB a step, to"
            f" {series.last_mb:.0f} MB at step {step.step}: it hits {leak.limit_mb:.0f} MB{when}"
        )
        return self.finding(
            step, view, severity, f"{leak.kind}/{'all' if leak.rank is None else leak.rank}", text,
            rank=leak.rank, value=eta_s, source=self.run.source(path),
            threshold=self.settings.halt_eta_s if halts else None,
            act=Act.AT_CHECKPOINT if halts else None,
        )  # fmt: skip

    def armed(self, own: Growth, view: View) -> bool:
        return any(
            row.number >= self._least and self._rooms(own, kind, rank)
            for kind, rows in own.series.items()
            for rank, row in rows.items()
        )

    def measure(self, own: Growth, view: View, mono: float) -> Near:
        worst = min(self._leaks(own), key=lambda leak: leak.steps_left, default=None)
        if worst is None:
            return Near(unit="MB")
        step_s, value = view.median_step_s(), worst.series.last_mb
        left_s = None if step_s is None else worst.steps_left * step_s
        return Near(value=value, limit=worst.limit_mb, unit="MB", time_left_s=left_s)

    def missing(self, own: Growth, view: View) -> str | None:
        if own.host_mb or self.settings.limit_mb is not None:
            return None
        return "nothing says how much host memory there is" if own.series.get(HOST) else None


@dataclass(frozen=True, kw_only=True)
class Over:
    """How often running each limit has been exceeded."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """`rank0` by its lines, `device0` by its device, `host0` by its node → samples above."""
    host_share: float | None = None
    """Share of the fullest host's memory that was used at the last look."""


class MemoryLimit(Detector[Over]):
    """D16: more memory is taken than there may be.

    A rank's lines report what it has reserved on its device. If they do not, what the device
    reports as used counts. Host memory halts when the ranks hold most of what is used; otherwise
    another process took it, which is a warning.
    """

    name = Name.MEMORY_LIMIT
    sentence = (
        "Halts when a rank's device memory is above the plan's limit on 3 samples running. Halts "
        "when over 90 % of the host's or control group's memory is in use on 3 looks running, and "
        "the ranks hold half of it. Warns if others hold it."
    )
    State = Over
    lines = frozenset({Msg.PROGRESS})
    ticks = True
    observes = frozenset({"devices", Kind.HOST_MEMORY, Kind.HOSTS_MEMORY})
    blind = "nothing reports memory"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        if self.settings.reserved_mb is None:
            self.lines = frozenset()

    def observe_line(self, own: Over, beat: Beat, view: View) -> Seen[Over]:
        line, name = beat.line, f"rank{beat.line.rank}"
        mb = line.gpu_mem_reserved
        if mb is None or not math.isfinite(mb) or not (mb or name in own.counts):
            return own, []  # a rank without a device of torch's says nothing about memory
        text = f"rank {line.rank} has reserved {mb:.0f} MB on its device"
        return self._sampled(own, beat, view, name, mb, "reserved_mb", text, rank=line.rank)

    def observe_tick(self, own: Over, tick: Tick, view: View) -> Seen[Over]:
        step = max((stream.step for stream in view.streams.values()), default=None)
        findings, shares = list[Finding](), list[float]()
        for sample in devices_in(tick) if self.settings.reserved_mb is not None else ():
            rank, mb = sample.rank, sample.mem_used_mb
            if mb is None or rank is None or f"rank{rank}" in own.counts:
                continue
            text, name = f"rank {rank}, device {sample.uuid}: {mb:.0f} MB are in use", "reserved_mb"
            own, found = self._sampled(
                own, tick, view, f"device{rank}", mb, name, text, rank=rank, step=step
            )
            findings += found
        for node, host, ranks in hosts_in(tick, self.run.order):
            if not host.limit_mb:
                continue
            share, own_mb = host.used_mb / host.limit_mb, added(host.ranks.values())
            shares.append(share)
            mine = own_mb >= OWN_SHARE * host.used_mb
            text = f"{host.used_mb:.0f} of {host.limit_mb:.0f} MB of host memory are in use"
            own, found = self._sampled(
                own, tick, view, f"host{node}", share, "host_ratio",
                f"{text}, {own_mb:.0f} of them by the ranks", step=step,
                rank=stands_out(ranks) if mine else None,
                severity=Severity.HALT if mine else Severity.WARN,
            )  # fmt: skip
            findings += found
        return replace(own, host_share=max(shares, default=own.host_share)), findings

    def _sampled(
        self, own: Over, event: Beat | Tick, view: View, name: str, value: float, setting: str,
        text: str, *, severity: Severity = Severity.HALT, **fields: Any,
    ) -> Seen[Over]:  # fmt: skip
        """Count a sample, and return a finding after enough samples above the limit."""
        count = own.counts.get(name, 0) + 1 if value > getattr(self.settings, setting) else 0
        own = replace(own, counts={**own.counts, name: count})
        if count < self.settings.samples:
            return own, []
        return own, [
            self.finding(event, view, severity, name, text, setting=setting, value=value, **fields)
        ]

    def armed(self, own: Over, view: View) -> bool:
        device = any(not name.startswith(HOST) for name in own.counts)
        return own.host_share is not None or (self.settings.reserved_mb is not None and device)

    def measure(self, own: Over, view: View, mono: float) -> Near:
        return Near(value=own.host_share, limit=self.settings.host_ratio)
