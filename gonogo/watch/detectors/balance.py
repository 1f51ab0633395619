"""One rank or device differs from the others: D7 straggler, D14 imbalance. Both only warn.

Each warns once in a run of each rank or limit.

Not covered: a rank that computes longer only because its peers have become faster. It straggles. A
device that reports no utilisation is left out.
"""

import statistics
from dataclasses import dataclass, field

from gonogo.contract.device import devices_in
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.contract.near import Near
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.timeline.step import Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen, replace
from gonogo.watch.view import View

HOLDS_S = 15.0
"""Samples that are further apart say nothing about the time between them."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What the ranks computed in the present window, and who has been slow until then."""

    last_step: int = 0
    ranks: tuple[int, ...] = ()
    rows: tuple[tuple[float, ...], ...] = ()
    """Own compute seconds of each step of the window, in order of rank."""
    waited: bool = False
    """Whether any rank has reported that it waited."""
    behind: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Rank → for how many windows it has been slow, and since when."""
    began_ts: float = 0.0


class Straggler(Detector[Shares]):
    """D7: one rank computes slower than the others.

    A rank's own compute time is its step less what it waited in collectives. In lockstep all steps
    take as long as the slowest rank's, so only this difference names the rank.
    """

    name = Name.STRAGGLER
    sentence = (
        "A rank's own compute time (its step less what it waited in collectives; median of"
        " `window_steps`) is more than `ratio` times the fastest rank's, in `windows` windows"
        " running: warn, naming the rank. Where more than half of the ranks are behind, nobody"
        " straggles."
    )
    State = Shares
    steps = True

    def observe_step(self, own: Shares, step: Step, view: View) -> Seen[Shares]:
        """Observe the compute time of every rank in a step."""
        ranks, row, waited = tuple(step.ranks), [], own.waited
        if step.step <= own.last_step or ranks != own.ranks:
            own = Shares(ranks=ranks, waited=waited)
        for said in step.ranks.values():
            wait_s = None if said.sections is None else said.sections.wait
            if wait_s is None or said.dt_s is None or wait_s >= said.dt_s:
                return replace(own, last_step=step.step), []
            row.append(said.dt_s - max(0.0, wait_s))
            waited = waited or wait_s > 0.0
        if len(row) < 2:
            return own, []
        began_ts = own.began_ts if own.rows else step.tick.ts
        rows = (*own.rows, tuple(row))
        own = replace(own, last_step=step.step, rows=rows, waited=waited, began_ts=began_ts)
        if len(rows) < self.settings.window_steps:
            return own, []
        return self._compared(own, step, view)

    def _compared(self, own: Shares, step: Step, view: View) -> Seen[Shares]:
        """Compare the ranks' medians at the end of a window."""
        ratio, medians = self.settings.ratio, _medians(own)
        best_s = min(medians.values())
        slow = [rank for rank, median_s in medians.items() if median_s > ratio * best_s]
        behind, findings = dict[int, tuple[int, float]](), []
        for rank in slow if 2 * len(slow) <= len(medians) else ():
            windows, since_ts = own.behind.get(rank, (0, own.began_ts))
            behind[rank] = (windows + 1, since_ts)
            if windows + 1 < self.settings.windows:
                continue
            median_s, times = medians[rank], medians[rank] / best_s
            text = f"rank {rank} computes {median_s:.4g} s a step, {times:.2f} times as long as"
            finding = self.finding(
                step,
                view,
                Severity.WARN,
                f"rank{rank}",
                f"{text} the fastest rank, for {windows + 1} windows (limit {ratio:g})",
                setting="ratio",
                rank=rank,
                value=times,
                threshold=ratio,
                since=since_ts,
            )
            findings.append(finding)
        return replace(own, behind=behind, rows=()), findings

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
        if len(own.ranks) > 1 and not own.waited:
            return "No rank told how long it waited in collectives: stragglers were not observed."
        return None


def _medians(own: Shares) -> dict[int, float]:
    """Return rank → median of its compute seconds in the present window."""
    times = zip(*own.rows, strict=True)
    return {rank: statistics.median(row) for rank, row in zip(own.ranks, times, strict=True)}


@dataclass(frozen=True, kw_only=True)
class Usages:
    """How busy the devices of the run have been since the averaging began."""

    looked_mono: float | None = None
    """Watcher's clock of the last samples, if the run trained then."""
    trained_s: float = 0.0
    ranks: dict[str, int] = field(default_factory=dict)
    """UUID of a device → its rank."""
    readings: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """UUID → its utilisation in percent, by sample."""
    told: bool = False
    """Whether any device has said how busy it is."""


class Imbalance(Detector[Usages]):
    """D14: the samples of `over_s` seconds of training are averaged.

    Utilisation is no sign of progress: a rank that waits for its peers shows 100 %.
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
        samples, ranks, readings = devices_in(tick), dict(own.ranks), dict(own.readings)
        if not samples:
            return own, []
        told = own.told or any(sample.util is not None for sample in samples)
        if not _trains(view):
            return replace(own, looked_mono=None, told=told), []
        for sample in samples:
            if sample.rank is not None:
                ranks[sample.uuid] = sample.rank
            if sample.util is not None and sample.uuid in ranks:
                readings[sample.uuid] = (*readings.get(sample.uuid, ()), sample.util)
        since_s = 0.0 if own.looked_mono is None else tick.mono - own.looked_mono
        own = Usages(
            looked_mono=tick.mono,
            trained_s=own.trained_s + (since_s if since_s <= HOLDS_S else 0.0),
            ranks=ranks,
            readings=readings,
            told=told,
        )
        if own.trained_s < self.settings.over_s or not readings:
            return own, []
        return replace(own, trained_s=0.0, readings={}), self._judged(own, tick, view)

    def _judged(self, own: Usages, tick: Tick, view: View) -> list[Finding]:
        """Look at the averages; name a device that differs from the others."""
        settings, means = self.settings, _means(own)
        uuid = min(means, key=lambda name: (means[name], own.ranks[name]))
        low, high = means[uuid], max(means.values())
        if low < settings.ratio * high:
            broken, value, limit = "ratio", low / high, settings.ratio
        elif low < settings.least_util:
            broken, value, limit = "least_util", low, settings.least_util
        else:
            return []
        rank: int | None = own.ranks[uuid]
        text = f"rank {rank}, device {uuid}: used only {low:.0f} %, the busiest {high:.0f} %"
        if len(means) > 1 and high < settings.least_util and broken == "least_util":
            rank, text = None, f"the devices are used only {low:.0f} to {high:.0f} %"
        steps = [stream.step for stream in view.streams.values()]
        finding = self.finding(
            tick,
            view,
            Severity.WARN,
            broken,
            f"{text}, averaged over {settings.over_s:g} s",
            setting=broken,
            rank=rank,
            step=max(steps, default=None),
            value=value,
            threshold=limit,
        )
        return [finding]

    def armed(self, own: Usages, view: View) -> bool:
        """Whether any device has said how busy it is."""
        return own.told

    def measure(self, own: Usages, view: View, mono: float) -> Near:
        """Return the utilisation of the least used device."""
        if not own.readings:
            return Near(blind=NOTHING_YET)
        low = min(_means(own).values())
        return Near(value=low, limit=self.settings.least_util, unit="%", below=True)

    def missing(self, own: Usages, view: View) -> str | None:
        """Say when a run on devices never learnt how busy they were."""
        profile = hardware_profiles().get(view.run.order.profile)
        if profile is None or not profile.has_devices or own.told:
            return None
        return "no device said how busy it was"


def _means(own: Usages) -> dict[str, float]:
    """Return UUID → mean utilisation in percent."""
    return {uuid: statistics.fmean(row) for uuid, row in own.readings.items()}


def _trains(view: View) -> bool:
    """Whether every rank has ended a step and is neither done nor in checkpoint or evaluation."""
    streams = view.streams.values()
    return len(streams) == view.run.order.world_size and all(
        stream.completed_steps > 0
        and not stream.done
        and stream.section not in NON_TRAINING_SECTIONS
        for stream in streams
    )
