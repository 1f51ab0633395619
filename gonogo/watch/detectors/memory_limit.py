"""D16: more memory is taken than there may be.

Of a device: what a rank reports as reserved, or what its device reports as used if the rank reports
nothing, is above the plan's `reserved_mb`. Of the host: the control group (or the host) is filled
beyond `host_ratio`. It halts when the ranks hold most of what is used; otherwise another process
took it, which is a warning.
"""

import math
from dataclasses import dataclass, field

from gonogo.contract.canonical import added
from gonogo.contract.device import devices_in
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.near import Near
from gonogo.contract.observation import HostMemory, Kind, host_memory_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick, parse_rank
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import Beat, View, found

OWN_SHARE = 0.5
"""Share of the memory in use that the ranks hold, from which it is theirs."""
APART = 1.33
"""A rank that holds so much more than the next one is named."""


@dataclass(frozen=True, kw_only=True)
class Over:
    """How often running each limit has been exceeded."""

    lines: dict[str, int] = field(default_factory=dict)
    """Rank whose lines say what is reserved → lines above the limit."""
    devices: dict[str, int] = field(default_factory=dict)
    """UUID → samples above the limit."""
    sampled: dict[str, float] = field(default_factory=dict)
    """UUID → clock of its last sample."""
    hosts: dict[str, int] = field(default_factory=dict)
    """Ranks of a host → looks at it running that found it too full. Of several hosts the fullest
    is told: what one tells says nothing about another."""
    host_share: float | None = None
    """Share of the host's memory that was used at the last look."""


class MemoryLimit(Detector[Over]):
    """D16 (module docstring)."""

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

    def observe_line(self, own: Over, beat: Beat, view: View) -> Seen[Over]:
        """Observe what a rank has reserved."""
        reserved_mb, limit_mb = beat.line.gpu_mem_reserved, self.settings.reserved_mb
        if limit_mb is None or reserved_mb is None or not math.isfinite(reserved_mb):
            return own, []
        rank = beat.line.rank
        if reserved_mb == 0 and str(rank) not in own.lines:
            return own, []  # a rank without a device of torch's says nothing about memory
        count = own.lines.get(str(rank), 0) + 1 if reserved_mb > limit_mb else 0
        own = replace(own, lines={**own.lines, str(rank): count})
        if count < self.settings.samples:
            return own, []
        text = f"rank {rank} has reserved {reserved_mb:.0f} MB on its device"
        return own, [self._device_finding(view, beat.tick, rank, beat.line.step, reserved_mb, text)]

    def observe_tick(self, own: Over, tick: Tick, view: View) -> Seen[Over]:
        """Observe what devices and host say is in use."""
        own, findings = self._look_at_devices(own, tick, view)
        host = host_memory_in(tick)
        if host is None or host.limit_mb is None or host.limit_mb <= 0:
            return own, findings
        share = host.used_mb / host.limit_mb
        name = ",".join(sorted(host.ranks)) if view.run.order.nodes > 1 else ""
        count = own.hosts.get(name, 0) + 1 if share > self.settings.host_ratio else 0
        own = replace(own, hosts={**own.hosts, name: count}, host_share=share)
        if count >= self.settings.samples:
            findings.append(self._host_finding(view, tick, host, host.limit_mb))
        return own, findings

    def _look_at_devices(self, own: Over, tick: Tick, view: View) -> Seen[Over]:
        """Take the device's word for ranks that do not say themselves."""
        limit_mb, findings = self.settings.reserved_mb, list[Finding]()
        for sample in devices_in(tick) if limit_mb is not None else ():
            used_mb, last = sample.mem_used_mb, own.sampled.get(sample.uuid, -math.inf)
            unsaid = sample.rank is not None and str(sample.rank) not in own.lines
            if used_mb is None or not unsaid or sample.mono <= last:
                continue
            count = own.devices.get(sample.uuid, 0) + 1 if used_mb > limit_mb else 0
            own = replace(
                own,
                devices={**own.devices, sample.uuid: count},
                sampled={**own.sampled, sample.uuid: sample.mono},
            )
            if count >= self.settings.samples:
                text = f"rank {sample.rank}, device {sample.uuid}: {used_mb:.0f} MB are in use"
                findings.append(self._device_finding(view, tick, sample.rank, None, used_mb, text))
        return own, findings

    def _device_finding(
        self, view: View, tick: Tick, rank: int | None, step: int | None, mb: float, text: str
    ) -> Finding:
        limit_mb = self.settings.reserved_mb
        return found(
            view,
            Name.MEMORY_LIMIT,
            Severity.HALT,
            episode=f"device/rank{rank}",
            at=tick.ts,
            rank=rank,
            step=step if step is not None else _step(view),
            value=mb,
            threshold=limit_mb,
            source=view.run.source("memory_limit.reserved_mb"),
            text=f"{text}; the limit is {limit_mb:.0f} MB",
        )

    def _host_finding(self, view: View, tick: Tick, host: HostMemory, limit_mb: float) -> Finding:
        """Halt when the memory is the ranks' own; where they do not say, it may be anybody's."""
        own_mb = added(host.ranks.values())
        mine = own_mb >= OWN_SHARE * host.used_mb
        text = (
            f"{host.used_mb:.0f} of {limit_mb:.0f} MB of host memory are in use,"
            f" {own_mb:.0f} of them by the ranks"
        )
        return found(
            view,
            Name.MEMORY_LIMIT,
            Severity.HALT if mine else Severity.WARN,
            episode="host",
            at=tick.ts,
            rank=_largest(host) if mine else None,
            step=_step(view),
            value=host.used_mb / limit_mb,
            threshold=self.settings.host_ratio,
            source=view.run.source("memory_limit.host_ratio"),
            text=text,
        )

    def near(self, own: Over, view: View, mono: float) -> Near:
        """Return how much of the host's memory is used."""
        if own.host_share is None:
            return Near(blind=None if self.armed(own, view) else "nothing reports memory")
        return Near(value=own.host_share, limit=self.settings.host_ratio)

    def armed(self, own: Over, view: View) -> bool:
        """Return whether there is a limit, and memory that is reported."""
        told = bool(own.lines or own.devices)
        return own.host_share is not None or (self.settings.reserved_mb is not None and told)


def _largest(host: HostMemory) -> int | None:
    """Return the rank that holds far more than every other; None where nothing tells it apart."""
    said = ((mb, parse_rank(name)) for name, mb in host.ranks.items())
    rows = sorted(((mb, rank) for mb, rank in said if rank is not None), reverse=True)
    apart = len(rows) == 1 or (len(rows) > 1 and rows[0][0] > APART * rows[1][0])
    return rows[0][1] if apart else None


def _step(view: View) -> int | None:
    return max((stream.step for stream in view.streams.values()), default=None)
