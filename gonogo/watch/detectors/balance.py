"""One rank or device differs from the others: D7 straggler, D14 imbalance. Both only warn.

Not covered: a rank that is slow within its first window has no better window of its own, and is
compared with the others alone. A device that reports no utilisation is left out.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from gonogo.contract.device import DeviceSample, devices_in
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.contract.near import Near
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.timeline.step import RankStep, Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import View

HOLDS_S = 15.0
"""A sample of utilisation says nothing about the time after this."""
COVERED = 0.8
"""Share of the time for which a device must have reported its utilisation."""


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A rank that has been slower than the best for some windows running."""

    windows: int
    since_step: int
    since_ts: float


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What the ranks computed in the present window, and how the windows before it ended."""

    last_step: int = 0
    boots: dict[int, str] = field(default_factory=dict)
    rows: tuple[dict[int, float], ...] = ()
    """Rank → own compute seconds, of each step of the window."""
    began_step: int = 0
    began_ts: float = 0.0
    waited: bool = False
    """Whether any rank has reported that it waited."""
    best: dict[int, float] = field(default_factory=dict)
    """Rank → its best window among those in which it kept up with the fastest rank."""
    behind: dict[int, Behind] = field(default_factory=dict)


class Straggler(Detector[Shares]):
    """D7: one rank computes slower than the others.

    A rank's own compute time is its step less what it waited in collectives. In lockstep all steps
    take as long as the slowest rank's, so only this difference names the rank.
    """

    name = Name.STRAGGLER
    sentence = (
        "A rank's own compute time (its step less what it waited in collectives; median of"
        " `window_steps`) is more than `ratio` times the fastest rank's and more than `ratio` times"
        " its own best window, in `windows` windows running: warn, naming the rank. Where more than"
        " half of the ranks are behind, nobody straggles."
    )
    State = Shares
    steps = True

    def observe_step(self, own: Shares, step: Step, view: View) -> Seen[Shares]:
        """Observe the compute time of every rank in a step."""
        boots = {rank: row.boot for rank, row in sorted(step.ranks.items())}
        if step.lacks(own.boots, own.last_step):
            return own, []
        if step.step <= own.last_step or boots != own.boots:
            own = Shares(boots=boots)
        own = replace(own, last_step=step.step)
        times = {rank: own_time_s(row) for rank, row in sorted(step.ranks.items())}
        row = {rank: time_s for rank, time_s in times.items() if time_s is not None}
        if len(row) < 2 or len(row) < len(times):
            return own, []
        if not own.rows:
            own = replace(own, began_step=step.step, began_ts=step.tick.ts)
        waits = any(said.sections and said.sections.wait > 0.0 for said in step.ranks.values())
        own = replace(own, rows=(*own.rows, row), waited=own.waited or waits)
        if len(own.rows) < self.settings.window_steps:
            return own, []
        own, findings = self._compared(own, step, view)
        return replace(own, rows=()), findings

    def _compared(self, own: Shares, step: Step, view: View) -> Seen[Shares]:
        """Compare the ranks' medians at the end of a window."""
        ratio, medians = self.settings.ratio, _medians(own)
        best_s = min(medians.values())
        slow = [rank for rank, median in medians.items() if median > ratio * best_s]
        kept_up = {r: min(s, own.best.get(r, s)) for r, s in medians.items() if r not in slow}
        best = {**own.best, **kept_up}
        if 2 * len(slow) > len(medians):
            slow = []
        behind, findings = {}, []
        for rank in slow:
            if rank in best and medians[rank] <= ratio * best[rank]:
                continue
            before = own.behind.get(rank)
            if before is None:
                before = Behind(windows=0, since_step=own.began_step, since_ts=own.began_ts)
            behind[rank] = now = replace(before, windows=before.windows + 1)
            if now.windows == self.settings.windows:
                findings.append(self._found(now, rank, medians[rank], best_s, step, view))
        return replace(own, best=best, behind=behind), findings

    def _found(
        self, behind: Behind, rank: int, median_s: float, best_s: float, step: Step, view: View
    ) -> Finding:
        ratio, times = self.settings.ratio, median_s / best_s
        text = f"rank {rank} computes {median_s:.4g} s a step, {times:.2f} times as long as the"
        text = f"{text} fastest rank, since step {behind.since_step} (limit {ratio:g})"
        episode = f"rank{rank}/step{behind.since_step}"
        return self.finding(
            step,
            view,
            Severity.WARN,
            episode,
            text,
            setting="ratio",
            rank=rank,
            value=times,
            threshold=ratio,
            since=behind.since_ts,
        )

    def armed(self, own: Shares, view: View) -> bool:
        """Whether several ranks report how long they waited."""
        return own.waited

    def measure(self, own: Shares, view: View, mono: float) -> Near:
        """Return how much longer than the fastest rank the slowest one computes."""
        if not own.rows:
            return Near(blind=NOTHING_YET)
        medians = _medians(own).values()
        return Near(value=max(medians) / min(medians), limit=self.settings.ratio)

    def missing(self, own: Shares, view: View) -> str | None:
        """Return a sentence where several ranks ended steps and none reported a wait."""
        if len(own.boots) > 1 and not own.waited:
            return "No rank told how long it waited in collectives: stragglers were not observed."
        return None


def own_time_s(row: RankStep) -> float | None:
    """Return a rank's own compute seconds in a step, or None where it did not report them."""
    if row.dt_s is None or row.sections is None or row.sections.wait >= row.dt_s:
        return None
    return row.dt_s - max(0.0, row.sections.wait)


def _medians(own: Shares) -> dict[int, float]:
    """Return rank → median of its compute seconds in the present window."""
    return {rank: statistics.median(row[rank] for row in own.rows) for rank in own.boots}


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Usages:
    """All devices of the run."""

    devices: Mapping[str, Usage] = field(default_factory=dict)
    """UUID → how busy it is."""
    trained: bool = False
    """Whether the run trained at the samples before."""
    broken: str | None = None
    """Rule that the last average broke."""
    episodes: int = 0


class Imbalance(Detector[Usages]):
    """D14: the devices of the run are used unequally, or too little.

    Utilisation is averaged over `over_s` seconds of training; each sample stands until the next one
    of its device. It is no sign of progress: a rank that waits for its peers shows 100 %.
    """

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
        samples, trains, devices = devices_in(tick), _trains(view), dict(own.devices)
        if not samples:
            return own, []
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
        means = {u: _mean(row) for u, row in own.devices.items() if row.known_s > least_s}
        fresh = {uuid: replace(row, busy=0.0, known_s=0.0) for uuid, row in own.devices.items()}
        low, high, broken = min(means.values()), max(means.values()), None
        if low < self.settings.ratio * high:
            broken = "ratio"
        elif low < self.settings.least_util:
            broken = "least_util"
        before, own = own.broken, replace(own, devices=fresh, broken=broken)
        if broken is None or broken == before:
            return own, []
        own = replace(own, episodes=own.episodes + 1)
        return own, [self._found(broken, own, means, tick, view)]

    def _found(
        self, broken: str, own: Usages, means: Mapping[str, float], tick: Tick, view: View
    ) -> Finding:
        """Name the device that is used least, unless all are used little."""
        uuid = min(means, key=lambda name: (means[name], own.devices[name].rank))
        low, high = means[uuid], max(means.values())
        rank: int | None = own.devices[uuid].rank
        text, value = f"rank {rank}, device {uuid}: used only {low:.0f} %", low
        if broken == "ratio":
            value, text = low / high, f"{text}, the busiest {high:.0f} %"
        elif len(means) > 1 and high < self.settings.least_util:
            rank, text = None, f"the devices are used only {low:.0f} to {high:.0f} %"
        return self.finding(
            tick,
            view,
            Severity.WARN,
            f"{own.episodes}",
            f"{text}, averaged over {self.settings.over_s:g} s",
            setting=broken,
            rank=rank,
            step=max((stream.step for stream in view.streams.values()), default=None),
            value=value,
            threshold=getattr(self.settings, broken),
        )

    def armed(self, own: Usages, view: View) -> bool:
        """Whether any device says how busy it is."""
        return any(row.util is not None for row in own.devices.values())

    def measure(self, own: Usages, view: View, mono: float) -> Near:
        """Return the utilisation of the least used device."""
        means = [_mean(row) for row in own.devices.values() if row.known_s > 0.0]
        if not means:
            return Near(blind=NOTHING_YET)
        return Near(value=min(means), limit=self.settings.least_util, unit="%", below=True)

    def missing(self, own: Usages, view: View) -> str | None:
        """Say when a run on devices never learnt how busy they were."""
        profile = hardware_profiles().get(view.run.order.profile)
        if profile is None or not profile.has_devices or self.armed(own, view):
            return None
        return "no device said how busy it was"


def _mean(row: Usage) -> float:
    return row.busy / row.known_s


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
