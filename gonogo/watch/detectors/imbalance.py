"""D14 imbalance: the devices of the run are used unequally, or too little.

Utilisation is averaged over `over_s` seconds of training; each sample stands until the next one of
its device. Time in checkpoint and evaluation does not count. It is no sign of progress, since a
rank that waits for its peers shows 100 %.

Not covered: a device that reports no utilisation is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gonogo.contract.device import DeviceSample, devices_in
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.contract.near import Near
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.view import View, found

HOLDS_S = 15.0
"""A sample says nothing about the time after this."""
COVERED = 0.8
"""Share of the time for which a device must have reported its utilisation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How busy one device has been since the averaging began."""

    rank: int
    taken_mono: float
    """When its last sample was taken, by the clock of its host."""
    util: float | None
    """Percent."""
    busy: float = 0.0
    """Percent × seconds."""
    known_s: float = 0.0

    def after(self, sample: DeviceSample, *, counts: bool) -> "Usage":
        """Return the usage after one more sample; the time before it counts only in training."""
        held_s = sample.taken_mono - self.taken_mono
        known_s = held_s if counts and self.util is not None and 0.0 < held_s <= HOLDS_S else 0.0
        return replace(
            self,
            taken_mono=sample.taken_mono,
            util=sample.util,
            busy=self.busy + (self.util or 0.0) * known_s,
            known_s=self.known_s + known_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usages:
    """All devices of the run."""

    devices: dict[str, Usage] = field(default_factory=dict)
    """UUID → how busy it is."""
    trained: bool = False
    """Whether the run trained at the samples before."""
    broken: str | None = None
    """Rule that the last average broke."""
    episodes: int = 0


class Imbalance(Detector[Usages]):
    """D14: are the devices of the run used unequally, or too little?"""

    name = Name.IMBALANCE
    sentence = (
        "Warns when the devices' utilisation, averaged over two minutes of training, is unequal "
        "(lowest to highest below 0.8) or low (below 80 %)."
    )
    State = Usages
    ticks = True
    observes = frozenset({"devices"})
    probes = True

    def observe_tick(self, own: Usages, tick: Tick, view: View) -> Seen[Usages]:
        """Observe the device samples that a tick brings."""
        samples = devices_in(tick)
        if not samples:
            return own, []
        trains = _trains(view)
        devices = dict(own.devices)
        for sample in samples:
            before = devices.get(sample.uuid)
            if before is not None:
                devices[sample.uuid] = before.after(sample, counts=trains and own.trained)
            elif sample.rank is not None:
                devices[sample.uuid] = Usage(
                    rank=sample.rank, taken_mono=sample.taken_mono, util=sample.util
                )
        own = replace(own, devices=devices, trained=trains)
        if max((row.known_s for row in devices.values()), default=0.0) < self.settings.over_s:
            return own, []
        return self._judged(own, tick, view)

    def _judged(self, own: Usages, tick: Tick, view: View) -> Seen[Usages]:
        """Look at the averages and begin anew."""
        least_s = COVERED * self.settings.over_s
        means = {
            u: row.busy / row.known_s for u, row in own.devices.items() if row.known_s > least_s
        }
        fresh = {uuid: replace(row, busy=0.0, known_s=0.0) for uuid, row in own.devices.items()}
        low, high = min(means.values()), max(means.values())
        broken = None
        if low < self.settings.ratio * high:
            broken = "ratio"
        elif low < self.settings.least_util:
            broken = "least_util"
        before, own = own.broken, replace(own, devices=fresh, broken=broken)
        if broken is None or broken == before:
            return own, []
        own = replace(own, episodes=own.episodes + 1)
        return own, [self._finding(broken, own, means, tick, view)]

    def _finding(
        self, broken: str, own: Usages, means: Mapping[str, float], tick: Tick, view: View
    ) -> Finding:
        """Name the device that is used least, unless all are used little."""
        uuid = min(means, key=lambda name: (means[name], own.devices[name].rank))
        low, high = means[uuid], max(means.values())
        rank: int | None = own.devices[uuid].rank
        over = f"averaged over {self.settings.over_s:g} s"
        value, limit = low, self.settings.least_util
        if broken == "ratio":
            value, limit = low / high, self.settings.ratio
            text = f"rank {rank}, device {uuid}: used {low:.0f} %, the busiest {high:.0f} %, {over}"
        elif len(means) == 1 or high >= limit:
            text = f"rank {rank}, device {uuid}: used only {low:.0f} %, {over}"
        else:
            rank = None
            text = f"the devices are used only {low:.0f} to {high:.0f} %, {over}"
        return found(
            view,
            Name.IMBALANCE,
            Severity.WARN,
            episode=f"{own.episodes}",
            at=tick.ts,
            rank=rank,
            step=max((stream.step for stream in view.streams.values()), default=None),
            value=value,
            threshold=limit,
            source=view.run.source(f"imbalance.{broken}"),
            text=text,
        )

    def armed(self, own: Usages, view: View) -> bool:
        """Whether any device says how busy it is."""
        return any(row.util is not None for row in own.devices.values())

    def near(self, own: Usages, view: View, mono: float) -> Near:
        """Return the utilisation of the least used device."""
        means = [row.busy / row.known_s for row in own.devices.values() if row.known_s > 0.0]
        if not means:
            return Near(blind=NOTHING_YET)
        return Near(value=min(means), limit=self.settings.least_util, unit="%", below=True)

    def missing(self, own: Usages, view: View) -> str | None:
        """Say when a run on devices never learnt how busy they were."""
        profile = hardware_profiles().get(view.run.order.profile)
        if profile is None or not profile.has_devices or self.armed(own, view):
            return None
        return "no device said how busy it was"


def _trains(view: View) -> bool:
    """Whether every rank has ended a step and is neither done nor in checkpoint or evaluation."""
    streams = [view.streams.get(rank) for rank in range(view.run.order.world_size)]
    return all(
        stream is not None
        and stream.completed_steps > 0
        and not stream.done
        and stream.section not in NON_TRAINING_SECTIONS
        for stream in streams
    )
