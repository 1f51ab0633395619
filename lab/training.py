"""How does a run go? Boot, steps, checkpoints, evaluations and restarts of coupled ranks.

Each method lets the ranks write what they write while that lasts. A step ends when the slowest
rank is ready: its peers wait for it in backward, and once more in log. `known_until` is the time up
to which every rank's lines have been written.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

from gonogo.contract.heartbeat import StepSections
from gonogo.contract.order import Order
from gonogo.contract.records import ProcessState
from lab.noise import PLAIN, WHOLE, Fault, Habits, Noise, Reporting, draw_reporting
from lab.ranks import Probe, Rank, Wall

FIRST_LOSS = math.log(256)
LAST_LOSS = 1.6
FALL_STEPS = 60.0
LEAK_MB = 25.0
SCALE_GROWS_STEPS = 2000
"""As torch.amp.GradScaler's growth_interval."""


class Series:
    """The numbers of one run's steps, the same on every rank but for memory."""

    def __init__(
        self,
        noise: Noise,
        dice: random.Random,
        *,
        sick: str | None,
        onset: int,
        fp16: bool,
    ) -> None:
        self._noise, self._dice, self._sick, self._onset = noise, dice, sick, onset
        self._fp16 = fp16
        self._spike = 0.0
        self._frozen: dict[str, float] = {}
        self._skip = False
        self._scale, self._applied = 65536.0, 0

    def of_step(self, step: int) -> dict[str, Any]:
        """Return the numbers of one step's `progress` lines."""
        noise, dice = self._noise, self._dice
        self._spike *= noise.spike_decay
        if dice.random() < noise.spike_rate_steps:
            self._spike = dice.uniform(*noise.spike)
        fall = (1.0 + (step - 1) / FALL_STEPS) ** -0.5
        loss = LAST_LOSS + (FIRST_LOSS - LAST_LOSS) * fall
        numbers: dict[str, Any] = {
            "loss": loss + dice.gauss(0.0, 0.03) + self._spike,
            "grad_norm": (0.6 + 2.0 * fall + 3.0 * self._spike) * dice.lognormvariate(0.0, 0.2),
            "lr": 1e-3 * min(1.0, step / 200),
            "gate_entropy": 0.9 + 0.02 * dice.random(),
            "gate_max": 0.45 + 0.05 * dice.random(),
            "gate_collapse_frac": 0.0,
        }
        if self._fp16:
            numbers |= self._scaled()
        if self._sick is not None and step >= self._onset:
            self._fall_ill(numbers, step)
        return numbers

    def _scaled(self) -> dict[str, Any]:
        """Return fp16's loss scaling: an overflow halves the scale, time doubles it."""
        self._skip = self._dice.random() < (0.2 if self._skip else 1 / 1000)
        self._applied = 0 if self._skip else self._applied + 1
        told = {"skipped": self._skip, "loss_scale": self._scale}
        if self._skip:
            self._scale /= 2.0
            return {**told, "grad_norm": math.inf}
        if self._applied % SCALE_GROWS_STEPS == 0:
            self._scale *= 2.0
        return told

    def _fall_ill(self, numbers: dict[str, Any], step: int) -> None:
        sick = self._sick
        if sick == "nan" and step == self._onset:
            numbers["loss"] = math.nan
        elif sick == "divergence":
            numbers["loss"] += 0.02 * (step - self._onset)
        elif sick == "frozen_loss":
            if not self._frozen:
                self._frozen = {name: numbers[name] for name in ("loss", "grad_norm")}
            numbers |= self._frozen
        elif sick == "zero_gradients":
            numbers["grad_norm"] = 0.0
        elif sick == "gate_collapse":
            numbers |= {"gate_entropy": 0.05, "gate_max": 0.98, "gate_collapse_frac": 1.0}
        elif sick == "first_loss":
            numbers["loss"] = 9.0

    def rss_mb(self, before: float, step: int) -> float:
        """Return a rank's memory after a step: caches that fill, or a continuing leak."""
        if self._sick == "leak" and step >= self._onset:
            return before + LEAK_MB * self._dice.random()
        level = 2400.0 + 200.0 * (1.0 - math.exp(-step / 500.0))
        return before + 0.05 * (level - before) + self._dice.gauss(0.0, 4.0)


FORWARD, BACKWARD, OPTIMIZER = 0.3, 0.6, 0.1
"""Shares of a step's computing."""
EPOCH_SHARE = 0.3
"""Longest restart of a loader, as a share of the time between epochs; more is starving (D17)."""
ANNOUNCED_S = 1.5
"""Seconds after which a rank has reported the section in which it falls silent."""
CHECKPOINT_STEPS, CHECKPOINT_S = 200, 900.0
EVAL_STEPS, EVAL_S = 500, 3600.0
SLICE_S = 20.0
OTHER_HOST_SHARE = 0.2
"""Runs whose ranks have another monotonic clock than the watcher."""


class Training:
    """The ranks of one run; `probe` reports a process's state to the watcher."""

    rank_type: type[Rank] = Rank

    def __init__(
        self,
        order: Order,
        *,
        noise: Noise,
        dice: random.Random,
        step_s: float,
        sick: Fault | None,
        now: float,
        outside_x: float = 0.0,
        habits: Habits = PLAIN,
    ) -> None:
        self.order, self.noise, self.dice, self.step_s = order, noise, dice, step_s
        self.sick = sick
        self.wall = Wall()
        self.step = self.saved_step = 0
        self._boots = 0
        self.drift = 0.0
        self.compiles = bool(order.train["engine"]["compile"])
        self.next_checkpoint = self.next_eval = 0.0
        offset = dice.uniform(1e4, 1e5) if dice.random() < OTHER_HOST_SHARE else 0.0
        reporting = WHOLE if sick is not None else self.reporting()
        self.ranks: Sequence[Rank] = [
            self.rank_type(rank, now=now, offset=offset, wall=self.wall, reporting=reporting)
            for rank in range(order.world_size)
        ]
        self._series = Series(
            noise,
            dice,
            sick=None if sick is None else sick.numbers,
            onset=0 if sick is None else sick.onset_step,
            fp16=order.identity.dtype == "fp16",
        )
        self._loaded_until, self._slower_x = 0.0, 1.0
        """Until when a neighbour takes processors, and how many times longer steps take."""
        self.paused = ""
        """The section in which interpreters stand in this step, if any does."""
        self.epoch_s = 0.0
        """How much longer each rank waits for its loader in this step."""
        self.habits = habits
        self._outside_x = outside_x
        """Median time between two steps, in step times."""
        self._apart_s = 0.0
        """What was spent so before the present step."""
        self._outside = dice.choice((None, "episodes"))
        well = sick is None
        if well and dice.random() < noise.uncounted_share:
            for rank in self.ranks:
                rank.counts = False
        logs = well and dice.random() < noise.log_alone_share
        self._log_every = dice.choice((1, 10)) if logs else 0
        """Every so many steps rank 0 alone names a section more."""
        self.onset: float | None = None
        """When the fault began."""

    @property
    def fault(self) -> Fault | None:
        """The fault that has begun."""
        return None if self.onset is None else self.sick

    def reporting(self) -> Reporting:
        """Return what a healthy run reports."""
        return draw_reporting(self.noise, self.dice)

    @property
    def known_until(self) -> float:
        """The time before which no further line will be written."""
        return min(rank.now for rank in self.ranks)

    def chance(self, an_hour: float, seconds: float) -> bool:
        """Whether what comes so often an hour comes in these seconds."""
        return self.dice.random() * 3600.0 < an_hour * seconds

    # Starting.

    def boot(self, probe: Probe) -> None:
        """Every rank starts, reports its identity, waits for .GO and opens its data."""
        dice, order = self.dice, self.order
        fault = self.sick.boot if self.sick else None
        self._boots += 1
        boot_s = dice.uniform(*self.noise.boot_s)
        told = order.identity.model_dump(exclude_none=True)
        first_seq = 1 if self._boots == 1 else 0
        if fault is not None:
            self.onset = self.ranks[0].now
        for rank in self.ranks:
            resumed = 0 if rank.reporting.boots_at_zero else self.saved_step
            rank.begin(f"boot{self._boots}.{rank.rank}", first_seq=first_seq, step=resumed)
            probe(rank.now + 0.5, rank.rank, ProcessState.ALIVE)
            if fault == "absent" and rank.rank == 1:
                rank.mute = True
            rank.vanish(boot_s * dice.uniform(1.0, 1.1))
            identity = {**told, "dim": 8} if fault == "foreign" else told
            rank.say("boot", backend="DDP", run=order.run, attempt=order.attempt, **identity)
            rank.spend(dice.uniform(0.1, 3.0))
        if fault is None:
            self.open_data(dice.uniform(0.1, 12.0))
        self.step = self.saved_step
        if self.habits.first_eval_s:
            self.outside("eval", self.habits.first_eval_s)
        now = self.ranks[0].now
        self.next_checkpoint, self.next_eval = now + CHECKPOINT_S, now + EVAL_S

    def open_data(self, load_s: float) -> None:
        """Every rank opens its data, and is let begin."""
        for rank in self.ranks:
            rank.section = None
            rank.enter("data")
            rank.spend(load_s)
            rank.say("loader_ready", dt=load_s)
            rank.enter(None)
        self.meet()

    def restart(self, probe: Probe) -> None:
        """All processes are replaced, and resume after the last checkpoint; seq begins at 0."""
        gone_s = self.dice.uniform(*self.noise.gone_s)
        self.meet()  # who is ahead waits for the last one, and speaks until then
        for rank in self.ranks:
            rank.vanish(gone_s)
        self.boot(probe)

    # One step.

    def advance(self, probe: Probe) -> None:
        """Take one step, and what comes between it and the next."""
        if self.sick is not None and self.sick.boot is not None:
            self._idle()
            return
        self.step += 1
        if self.sick is not None and self.step >= self.sick.onset_step and self.onset is None:
            self.onset = max(rank.now for rank in self.ranks)
            if self.sick.hang:
                self.hang(self.sick, probe)
                return
            if self.sick.lingers:
                self._linger(self.sick, probe)
        if self.fault is not None and (self.fault.hang or self.fault.lingers):
            self._idle()
            return
        if self.fault is not None and self.fault.rounds:
            self.outside(self.dice.choice(("data", "eval")), self.dice.uniform(5.0, 60.0))
            return
        if self._outside_x:
            self._spend_outside()
        self._take(probe)
        self._between(probe)

    def _spend_outside(self) -> None:
        """All ranks spend time in no section, or in one of a name of its own."""
        took_s = self.step_s * self._outside_x
        self._apart_s = took_s * self.dice.lognormvariate(0.0, self.noise.outside_sigma)
        for rank in self.ranks:
            if self._outside is not None:
                rank.enter(self._outside)
            rank.spend(self._apart_s)
            if self._outside is not None:
                rank.enter(None)

    def _take(self, probe: Probe) -> None:
        """Take one whole step."""
        began, times = self.known_until, self.draw_step()
        fetched: list[float] = []
        for rank, own_s in zip(self.ranks, times, strict=True):
            self._open_step(rank)
            fetched.append(self.fetch_s(own_s))
            rank.spend(fetched[-1])
            self.pause("data", rank, own_s)
            self._section(rank, "forward", FORWARD * own_s)
            self._section(rank, "backward", BACKWARD * own_s)
            self.wait_for_disk(rank, own_s, probe)
            rank.collective_seq += 1
        waits = self.meet()
        for rank, own_s in zip(self.ranks, times, strict=True):
            self._section(rank, "optimizer", OPTIMIZER * own_s)
            rank.section_seq += 1
            rank.enter("log")
            rank.collective_seq += 1
        waits = [a + b for a, b in zip(waits, self.meet(), strict=True)]
        self._close(began, times, fetched, waits)

    def _open_step(self, rank: Rank) -> None:
        rank.step, rank.in_step = self.step, True
        rank.enter("data")
        rank.say("step_start")

    def _section(self, rank: Rank, name: str, seconds: float) -> None:
        rank.section_seq += 1
        rank.enter(name)
        rank.spend(seconds)
        self.pause(name, rank, seconds / FORWARD)

    def _close(
        self, began: float, times: list[float], fetched: list[float], waits: list[float]
    ) -> None:
        """Every rank writes its progress and the end of its step."""
        numbers = self._series.of_step(self.step)
        tokens = self.order.identity.tokens_per_step or 0
        claim_x = self.fault.claim_x if self.fault is not None else 1.0
        for rank, own_s, fetch_s, wait_s in zip(self.ranks, times, fetched, waits, strict=True):
            rank.rss_mb = self._series.rss_mb(rank.rss_mb, self.step)
            took_s = rank.now - began
            rank.say(
                "progress",
                toks_per_s=claim_x * tokens / (took_s + self._apart_s),
                dt_fetch_s=fetch_s,
                gpu_mem_alloc=4000.0,
                gpu_mem_reserved=6000.0,
                host_rss_mb=rank.rss_mb,
                **numbers,
            )
            if rank.rank == 0 and self._log_every and self.step % self._log_every == 0:
                rank.section_seq += 2
            rank.enter(None)
            compute_s = max(0.0, took_s - fetch_s - wait_s)
            rank.say(
                "step_end",
                dt_step_s=took_s,
                tokens=tokens,
                collective_seq=rank.collective_seq,
                step_sections=StepSections.model_construct(
                    data=fetch_s,
                    forward=FORWARD * compute_s,
                    backward=BACKWARD * compute_s,
                    optimizer=OPTIMIZER * compute_s,
                    wait=wait_s,
                ),
            )
            rank.in_step = False
            rank.now += 1e-4 * own_s

    def meet(self) -> list[float]:
        """Let every rank wait for the last one; returns for how long each did."""
        end = max(rank.now for rank in self.ranks)
        waits = [end - rank.now for rank in self.ranks]
        for rank, wait_s in zip(self.ranks, waits, strict=True):
            rank.spend(wait_s)
        return waits

    # What the dice say of a step.

    def draw_step(self) -> list[float]:
        """Return how long each rank computes in the next step; all may stand still before it."""
        dice, step, noise, habits = self.dice, self.step, self.noise, self.habits
        times = self._times()
        self.paused = dice.choice(("data", "forward", "backward", "optimizer"))
        if self.sick is None and self.chance(noise.standstill_rate, self.step_s):
            # lines that come late as well are no reason to stand beyond the minute of D5
            longest_s = noise.standstill_s[1] - habits.lag_s
            seconds = min(dice.uniform(*noise.standstill_s), longest_s)
            for rank in self.ranks:
                rank.freeze(seconds, busy=False)
        if self.compiles:
            times = [times[0] + dice.uniform(*noise.compile_s)] * len(times)
            self.compiles = False
        self.epoch_s = 0.0
        if habits.epoch_steps and step > 1 and step % habits.epoch_steps == 1:
            longest_s = EPOCH_SHARE * habits.epoch_steps * self.step_s
            self.epoch_s = min(dice.uniform(*habits.epoch_s), longest_s)
        return times

    def _times(self) -> list[float]:
        noise, dice, fault = self.noise, self.dice, self.fault
        moved = noise.drift_sigma * (2.0 / noise.drift_steps) ** 0.5
        self.drift = self.drift * (1.0 - 1.0 / noise.drift_steps) + dice.gauss(0.0, moved)
        common_s = self.step_s * dice.lognormvariate(self.drift, noise.sigma)
        if self.sick is None:
            common_s = self._slowed(common_s)
        if fault is not None:
            common_s *= fault.step_x
        times = [common_s * dice.lognormvariate(0.0, noise.own_sigma) for _ in self.ranks]
        if fault is not None and fault.own_x != 1.0:
            times[1] *= fault.own_x
        return times

    def _slowed(self, step_s: float) -> float:
        """Return how long a step takes that begins now, with a neighbour that may take a part."""
        noise, dice, now = self.noise, self.dice, self.known_until
        if now >= self._loaded_until and self.chance(noise.load_rate, step_s):
            self._loaded_until = now + dice.uniform(*noise.load_s)
            self._slower_x = dice.uniform(*noise.load_x)
        loaded_s = min(max(0.0, self._loaded_until - now), step_s * self._slower_x)
        return step_s + loaded_s * (1.0 - 1.0 / self._slower_x)

    def fetch_s(self, step_s: float) -> float:
        """Return how long a rank waits for its loader in a step, within the deadline of data."""
        noise, dice = self.noise, self.dice
        if self.fault is not None and self.fault.fetch_share:
            share = self.fault.fetch_share / (1.0 - self.fault.fetch_share)
            return step_s * share * dice.lognormvariate(0.0, 0.1) + self.epoch_s
        seconds = dice.expovariate(1.0 / (noise.fetch_share * step_s)) + self.epoch_s
        if self.chance(noise.stall_rate, step_s):
            stall_s = noise.stall_least_s * dice.paretovariate(noise.stall_tail)
            seconds += min(max(0.0, noise.stall_most_s - self.epoch_s), stall_s)
        return seconds

    def pause(self, section: str, rank: Rank, step_s: float) -> None:
        """Let a rank's interpreter stand, now and then, if this is the section for it."""
        noise, dice = self.noise, self.dice
        if section != self.paused or not self.chance(noise.pause_rate, step_s):
            return
        if dice.random() < noise.long_pause_share:
            seconds = dice.uniform(noise.pause_s[1], noise.long_pause_s)
            rank.freeze(seconds, busy=dice.random() < 0.5)
        else:
            rank.freeze(dice.uniform(*noise.pause_s))

    def wait_for_disk(self, rank: Rank, step_s: float, probe: Probe) -> None:
        """Let a rank sleep uninterruptibly, now and then; its thread keeps writing lines."""
        noise, dice = self.noise, self.dice
        if not self.chance(noise.disk_rate, step_s):
            return
        seconds = dice.uniform(*noise.disk_s)
        if dice.random() < noise.long_disk_share:
            seconds = dice.uniform(noise.disk_s[1], noise.long_disk_s)
        probe(rank.now, rank.rank, ProcessState.UNINTERRUPTIBLE)
        rank.spend(seconds)
        probe(rank.now, rank.rank, ProcessState.ALIVE)

    # Between steps.

    def _between(self, probe: Probe) -> None:
        noise = self.noise
        if self.fault is not None and self.fault.backwards:
            self.ranks[1].step -= 3
            self.ranks[1].say("step_start")
            return
        now = self.known_until
        self.pause_after_step(probe)
        if self.chance(noise.clock_step_rate, self.step_s):
            self.wall.step(now, self.dice.uniform(-3600.0, 3600.0))
        if self.sick is None and self.saved_step and self.chance(noise.restart_rate, self.step_s):
            self.restart(probe)

    def pause_after_step(self, probe: Probe) -> None:
        """Save and evaluate, now and then."""
        now, noise, dice = self.known_until, self.noise, self.dice
        if self.step % CHECKPOINT_STEPS == 0 and now >= self.next_checkpoint:
            self.next_checkpoint = now + CHECKPOINT_S
            self.checkpoint(probe)
        if self.step % EVAL_STEPS == 0 and now >= self.next_eval:
            self.next_eval = now + EVAL_S
            long = dice.random() < noise.long_eval_share
            seconds = noise.long_eval_s if long else dice.uniform(*noise.eval_s)
            if dice.random() < noise.alone_share:
                self.alone("eval", seconds)
            else:
                self.outside("eval", seconds)

    def checkpoint(self, probe: Probe) -> None:
        """All ranks save, or rank 0 alone; now and then one cannot speak, or waits for its disk."""
        noise, dice = self.noise, self.dice
        long = dice.random() < noise.long_checkpoint_share
        seconds = noise.long_checkpoint_s if long else dice.uniform(*noise.checkpoint_s)
        self.saved_step = self.step
        if dice.random() < noise.alone_share:
            self.alone("checkpoint", seconds)
            return
        silent = dice.random() < noise.silent_checkpoint_share
        mute = dice.randrange(len(self.ranks)) if silent else -1
        for rank in self.ranks:
            if dice.random() < noise.disk_checkpoint_share:
                probe(rank.now + 1.0, rank.rank, ProcessState.UNINTERRUPTIBLE)
                probe(rank.now + seconds, rank.rank, ProcessState.ALIVE)
        self.outside("checkpoint", seconds, mute)

    def outside(self, section: str, seconds: float, mute: int = -1) -> None:
        """All ranks spend time in a section between steps."""
        for rank in self.ranks:
            rank.enter(section)
            if rank.rank == mute:
                rank.freeze(seconds)
            else:
                rank.spend(seconds)
            self._close_pause(rank, section, seconds)
        self.meet()

    def alone(self, section: str, seconds: float) -> None:
        """Rank 0 acts for all; the others wait in no section, and continue a little later."""
        for rank in self.ranks:
            if rank.rank == 0:
                rank.enter(section)
            rank.collective_seq += rank.rank != 0
            rank.spend(seconds)
            if rank.rank == 0:
                self._close_pause(rank, section, seconds)
                rank.collective_seq += 1
        self.meet()
        for rank in self.ranks[1:]:
            rank.spend(self.dice.uniform(*self.noise.wake_s))

    def _close_pause(self, rank: Rank, section: str, seconds: float) -> None:
        if section == "eval":
            rank.say(section, val_loss=2.0)
        else:
            rank.say(section, dt=seconds)
        rank.enter(None)

    def finish(self, probe: Probe) -> None:
        """All ranks are done and exit with 0, in any order; rank 0 may evaluate before."""
        if self.dice.random() < self.noise.last_alone_share:
            self.alone("eval", self.dice.uniform(*self.noise.eval_s))
        for rank in self.ranks:
            rank.say("done")
            probe(rank.now + self.dice.uniform(0.0, 2.0), rank.rank, ProcessState.DEAD, code=0)
            rank.vanish(30.0)

    # Sick runs.

    def hang(self, sick: Fault, probe: Probe) -> None:
        """In a step that opens, a rank stays in a section for ever, and its peers wait for it."""
        order = ("data", "forward", "backward", "optimizer", "log")
        last = order.index(sick.section or "backward")
        for rank in self.ranks:
            culprit = rank.rank == sick.rank
            self._open_step(rank)
            wait_in = last if culprit else max(last, 4 if sick.section == "optimizer" else 2)
            for name in order[1 : wait_in + 1]:
                rank.section_seq += 1
                rank.enter(name)
                rank.spend(0.1 * self.step_s)
            rank.collective_seq += (wait_in >= 2) + (wait_in >= 4) - culprit * (last in (2, 4))
            if culprit and sick.silent:
                rank.spend(ANNOUNCED_S)
                rank.mute = True
            if culprit and sick.state is not None:
                probe(rank.now + 1.0, rank.rank, ProcessState(sick.state), code=sick.code)
        if sick.together:
            for rank in self.ranks:
                rank.spend(ANNOUNCED_S)
                rank.mute = True
        self.onset = self.known_until

    def _linger(self, sick: Fault, probe: Probe) -> None:
        """All ranks are done at the last ordered step; one never exits."""
        for rank in self.ranks:
            rank.step = self.order.last_step
            rank.say("done")
            if rank.rank != sick.rank:
                probe(rank.now + 1.0, rank.rank, ProcessState.DEAD, code=0)
                rank.mute = True

    def _idle(self) -> None:
        """Let time pass where every rank is."""
        for rank in self.ranks:
            rank.spend(SLICE_S)
