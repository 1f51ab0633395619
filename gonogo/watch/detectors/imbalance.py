"""D14: are the devices of the run used unequally, or too little?

Utilisation averaged over `over_s` seconds of training, each sample standing until the next of its
device, by the clock of its own host. Time in checkpoint and evaluation, before the first step has
ended, and between samples that are far apart does not count. A warning only: utilisation is no sign
of progress, since a rank that waits for its peers shows 100 %. A device that does not say how busy
it is is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gonogo.contract.device import DeviceSample, devices_in
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.view import View, found

HOLDS_S = 15.0
"""A sample says nothing about the time after this."""
COVERED = 0.8
"""Share of the time for which a device must have said how busy it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How busy one device has been since the averaging began."""

    rank: int
    mono: float
    """When its last sample was received, or taken where that was here."""
    taken_mono: float
    """When it was taken, by the clock of its host."""
    util: float | None = None
    busy: float = 0.0
    """Percent × seconds."""
    known_s: float = 0.0
    passed_s: float = 0.0
    """Seconds of training, known or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usages:
    """All devices of the run."""

    devices: dict[str, Usage] = field(default_factory=dict)
    """UUID → how busy it is."""
    training: bool = False
    """Whether the run trained at the samples before."""
    told: str | None = None
    """Rule that the last average broke, or None when it was well."""
    episodes: int = 0


class Imbalance(Detector[Usages]):
    """D14: are the devices of the run used unequally, or too little?"""

    name = Name.IMBALANCE
    """2: samples of another node count that come in bursts."""
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
        training = _trains(view)
        devices = dict(own.devices)
        for sample in samples:
            usage = _counted(devices.get(sample.uuid), sample, both=training and own.training)
            if usage is not None:
                devices[sample.uuid] = usage
        own = replace(own, devices=devices, training=training)
        return self._judge(own, tick, view) if self._is_over(own) else (own, [])

    def _is_over(self, own: Usages) -> bool:
        """Whether every device has been seen for long enough, or one of them twice as long."""
        over_s: float = self.settings.over_s
        passed_s = [row.passed_s for row in own.devices.values()] or [0.0]
        return min(passed_s) >= over_s or max(passed_s) >= 2 * over_s

    def _judge(self, own: Usages, tick: Tick, view: View) -> Seen[Usages]:
        """Look at the averages and begin anew."""
        means = {
            uuid: row.busy / row.known_s
            for uuid, row in own.devices.items()
            if row.known_s >= COVERED * self.settings.over_s
        }
        fresh = {
            uuid: replace(row, busy=0.0, known_s=0.0, passed_s=0.0)
            for uuid, row in own.devices.items()
        }
        broken = self._broken(means)
        if broken is None and len(means) < len(own.devices):
            return replace(own, devices=fresh), []  # who does not say has not recovered
        if broken is None or broken == own.told:
            return replace(own, devices=fresh, told=broken), []
        told = replace(own, devices=fresh, told=broken, episodes=own.episodes + 1)
        return told, [self._finding(broken, told, means, tick, view)]

    def _broken(self, means: Mapping[str, float]) -> str | None:
        """Return the rule that the averages break: `ratio`, `least_util` or none."""
        low, high = min(means.values(), default=100.0), max(means.values(), default=100.0)
        if low < self.settings.ratio * high:
            return "ratio"
        return "least_util" if low < self.settings.least_util else None

    def _finding(
        self, broken: str, own: Usages, means: Mapping[str, float], tick: Tick, view: View
    ) -> Finding:
        """Name the device that is used least, unless nothing tells it from the others."""
        uuid = min(means, key=lambda name: (means[name], own.devices[name].rank))
        low, high = means[uuid], max(means.values())
        rank: int | None = own.devices[uuid].rank
        over = f"averaged over {self.settings.over_s:g} s"
        if broken == "ratio":
            value, limit = low / high, self.settings.ratio
            text = f"rank {rank}, device {uuid}: used {low:.0f} %, the busiest {high:.0f} %, {over}"
        elif len(means) == 1 or high >= self.settings.least_util:
            value, limit = low, self.settings.least_util
            text = f"rank {rank}, device {uuid}: used only {low:.0f} %, {over}"
        else:
            value, limit, rank = low, self.settings.least_util, None
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

    def missing(self, own: Usages, view: View) -> str | None:
        """Say when a run on devices never learnt how busy they were."""
        profile = hardware_profiles().get(view.run.order.profile)
        if profile is None or not profile.has_devices or self.armed(own, view):
            return None
        return "no device said how busy it was"


def _counted(before: Usage | None, sample: DeviceSample, *, both: bool) -> Usage | None:
    """Return a device's usage after one sample; None for a device that is no rank's.

    Args:
        before: as of the sample before.
        sample: of the same device.
        both: whether the run trained at this sample and at the one before.
    """
    if sample.rank is None or (before is not None and sample.mono <= before.mono):
        return before
    if before is None:
        return Usage(
            rank=sample.rank, mono=sample.mono, taken_mono=sample.taken_mono, util=sample.util
        )
    held_s = sample.taken_mono - before.taken_mono  # below 0: its host has booted anew
    after = replace(before, mono=sample.mono, taken_mono=sample.taken_mono, util=sample.util)
    if not both or not 0.0 < held_s <= HOLDS_S:
        return after
    after = replace(after, passed_s=before.passed_s + held_s)
    if before.util is None:
        return after
    return replace(after, busy=before.busy + before.util * held_s, known_s=before.known_s + held_s)


def _trains(view: View) -> bool:
    """Whether every rank has ended a step and is neither done nor in checkpoint or evaluation."""
    ranks = range(view.run.order.world_size)
    streams = [view.streams.get(rank) for rank in ranks]
    return all(
        stream is not None
        and stream.completed_steps > 0
        and not stream.done
        and stream.section not in NON_TRAINING_SECTIONS
        for stream in streams
    )
