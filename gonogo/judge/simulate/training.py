"""How does a run go? Boot, steps, checkpoints, evaluations and restarts of coupled ranks.

Each method lets the ranks write what they write while that lasts. A step ends when the slowest
rank is ready: its peers wait for it in backward, and once more in log. `known_until` is the time up
to which every rank's lines have been written.
"""

import random
from dataclasses import replace

from gonogo.contract.heartbeat import StepSections
from gonogo.contract.order import Order
from gonogo.contract.tick import ProcessState
from gonogo.judge.simulate import faults, interludes
from gonogo.judge.simulate.around import Load
from gonogo.judge.simulate.habits import PLAIN, Habits
from gonogo.judge.simulate.losses import Loss
from gonogo.judge.simulate.noise import Noise
from gonogo.judge.simulate.ranks import Probe, Rank, Wall
from gonogo.judge.simulate.series import Series
from gonogo.judge.simulate.sick import Sickness
from gonogo.judge.simulate.telling import WHOLE, telling_of

CHECKPOINT_STEPS, CHECKPOINT_S = 200, 900.0
EVAL_STEPS, EVAL_S = 500, 3600.0
FORWARD, BACKWARD, OPTIMIZER = 0.3, 0.6, 0.1
"""Shares of a step's computing."""
SLICE_S = 20.0
OTHER_HOST_SHARE = 0.2
"""Runs whose ranks have another monotonic clock than the watcher."""


class Training:
    """The ranks of one run; `probe` tells the watcher how a process is found."""

    def __init__(
        self,
        order: Order,
        *,
        noise: Noise,
        dice: random.Random,
        step_s: float,
        sick: Sickness | None,
        now: float,
        outside_x: float = 0.0,
        other_loss: Loss | None = None,
        habits: Habits = PLAIN,
    ) -> None:
        self.order, self.noise, self.dice, self.step_s = order, noise, dice, step_s
        self.sick = sick
        self.wall = Wall()
        self.step = self.saved_step = 0
        self._boots = 0
        self._drift = 0.0
        self._compiles = bool(order.train["engine"]["compile"])
        self.next_checkpoint = self.next_eval = 0.0
        offset = dice.uniform(1e4, 1e5) if dice.random() < OTHER_HOST_SHARE else 0.0
        telling = WHOLE if sick is not None else telling_of(noise, dice)
        self.ranks = [
            Rank(rank, now=now, offset=offset, wall=self.wall, telling=telling)
            for rank in range(order.world_size)
        ]
        self._series = Series(
            noise,
            dice,
            sick=None if sick is None else sick.numbers,
            onset=0 if sick is None else sick.onset_step,
            fp16=order.identity.dtype == "fp16",
            other=other_loss,
        )
        self._load = Load(noise, dice)
        self._habits = habits if telling.tokens else replace(habits, grows_at=())
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
    def known_until(self) -> float:
        """The time before which no further line will be written."""
        return min(rank.now for rank in self.ranks)

    def _chance(self, an_hour: float, seconds: float) -> bool:
        return self.dice.random() * 3600.0 < an_hour * seconds

    # Starting.

    def boot(self, probe: Probe) -> None:
        """Every rank starts, tells what it is, waits for leave and opens its data."""
        dice, order = self.dice, self.order
        fault = self.sick.boot if self.sick else None
        self._boots += 1
        boot_s = dice.uniform(*self.noise.boot_s)
        told = order.identity.model_dump(exclude_none=True)
        first_seq = 1 if self._boots == 1 else 0
        if fault is not None:
            self.onset = self.ranks[0].now
        for rank in self.ranks:
            rank.begin(f"boot{self._boots}.{rank.rank}", first_seq=first_seq)
            rank.step = 0 if rank.telling.boots_at_zero else self.saved_step
            probe(rank.now + 0.5, rank.rank, ProcessState.ALIVE)
            if fault == "absent" and rank.rank == 1:
                rank.mute = True
            rank.vanish(boot_s * dice.uniform(1.0, 1.1))
            identity = {**told, "dim": 8} if fault == "foreign" else told
            rank.say("boot", backend="DDP", run=order.run, attempt=order.attempt, **identity)
            rank.spend(dice.uniform(0.1, 3.0))
        if fault is None:
            load_s = dice.uniform(0.1, 12.0)
            for rank in self.ranks:
                rank.section = None
                rank.enter("data")
                rank.spend(load_s)
                rank.say("loader_ready", dt=load_s)
                rank.enter(None)
            self.meet()
        self.step = self.saved_step
        if self._habits.first_eval_s:
            interludes.outside(self, "eval", self._habits.first_eval_s)
        now = self.ranks[0].now
        self.next_checkpoint, self.next_eval = now + CHECKPOINT_S, now + EVAL_S

    def restart(self, probe: Probe) -> None:
        """All processes are replaced, and go on after the last checkpoint; seq begins at 0."""
        gone_s = self.dice.uniform(*self.noise.gone_s)
        now = max(rank.now for rank in self.ranks)
        for rank in self.ranks:
            rank.now = now + gone_s
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
                faults.hang(self, self.sick, probe)
                return
            if self.sick.lingers:
                faults.linger(self, self.sick, probe)
        if self.onset is not None and self.sick is not None:
            if self.sick.hang or self.sick.lingers:
                self._idle()
                return
            if self.sick.rounds:
                interludes.outside(
                    self, self.dice.choice(("data", "eval")), self.dice.uniform(5.0, 60.0)
                )
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

    def _times(self) -> list[float]:
        """Return how long each rank computes in this step."""
        noise, dice, sick = self.noise, self.dice, self.sick
        kept = 1.0 - 1.0 / noise.drift_steps
        self._drift = self._drift * kept + dice.gauss(
            0.0, noise.drift_sigma * (2.0 / noise.drift_steps) ** 0.5
        )
        common_s = self.step_s * dice.lognormvariate(self._drift, noise.sigma)
        common_s *= self._habits.grown_x(self.step)
        ill = sick is not None and self.onset is not None
        if sick is not None and ill:
            common_s *= sick.step_x
        if sick is None:
            common_s = self._load.slowed(common_s, self.known_until)
        times = [common_s * dice.lognormvariate(0.0, noise.own_sigma) for _ in self.ranks]
        if sick is not None and ill and sick.own_x != 1.0:
            times[1] *= sick.own_x
        return times

    def _fetch_s(self, step_s: float) -> float:
        noise, dice = self.noise, self.dice
        share = noise.fetch_share
        if self.sick is not None and self.onset is not None and self.sick.fetch_share:
            share = self.sick.fetch_share / (1.0 - self.sick.fetch_share)
            return step_s * share * dice.lognormvariate(0.0, 0.1)
        fetch_s = dice.expovariate(1.0 / (share * step_s))
        if self._chance(noise.stall_rate, step_s):
            stall_s = noise.stall_least_s * dice.paretovariate(noise.stall_tail)
            fetch_s += min(noise.stall_most_s, stall_s)
        return fetch_s

    def _pause(self, rank: Rank, step_s: float) -> None:
        """Let a rank's interpreter stand, now and then."""
        noise, dice = self.noise, self.dice
        if not self._chance(noise.pause_rate, step_s):
            return
        if dice.random() < noise.long_pause_share:
            rank.freeze(
                dice.uniform(noise.pause_s[1], noise.long_pause_s), busy=dice.random() < 0.5
            )
        else:
            rank.freeze(dice.uniform(*noise.pause_s))

    def _wait_for_disk(self, rank: Rank, step_s: float, probe: Probe) -> None:
        """Let a rank sleep uninterruptibly, now and then; its thread goes on speaking."""
        noise, dice = self.noise, self.dice
        if not self._chance(noise.disk_rate, step_s):
            return
        seconds = dice.uniform(*noise.disk_s)
        if dice.random() < noise.long_disk_share:
            seconds = dice.uniform(noise.disk_s[1], noise.long_disk_s)
        self._sleep(rank, seconds, probe)

    def _sleep(self, rank: Rank, seconds: float, probe: Probe) -> None:
        probe(rank.now, rank.rank, ProcessState.UNINTERRUPTIBLE)
        rank.spend(seconds)
        probe(rank.now, rank.rank, ProcessState.ALIVE)

    def _take(self, probe: Probe) -> None:
        """Take one whole step."""
        dice, step = self.dice, self.step
        began, times = self.known_until, self._times()
        paused = dice.choice(("data", "forward", "backward", "optimizer"))
        if self.sick is None and self._chance(self.noise.standstill_rate, self.step_s):
            # lines that come late as well are no reason to stand beyond the minute of D5
            seconds = min(
                dice.uniform(*self.noise.standstill_s),
                self.noise.standstill_s[1] - self._habits.lag_s,
            )
            for rank in self.ranks:
                rank.freeze(seconds, busy=False)
        if self._compiles:
            times = [times[0] + dice.uniform(*self.noise.compile_s)] * len(times)
            self._compiles = False
        habits, epoch_s, compile_s = self._habits, 0.0, 0.0
        if habits.epoch_steps and step > 1 and step % habits.epoch_steps == 1:
            epoch_s = dice.uniform(*habits.epoch_s)
        if step in habits.recompiles_at:
            compile_s = dice.uniform(*habits.recompile_s)
        fetched: list[float] = []
        for rank, own_s in zip(self.ranks, times, strict=True):
            self.open_step(rank, step)
            fetched.append(self._fetch_s(own_s) + epoch_s)
            rank.spend(fetched[-1])
            if paused == "data":
                self._pause(rank, own_s)
            self._section(rank, "forward", FORWARD * own_s + compile_s, paused)
            self._section(rank, "backward", BACKWARD * own_s, paused)
            self._wait_for_disk(rank, own_s, probe)
            rank.collective_seq += 1
        waits = self.meet()
        for rank, own_s in zip(self.ranks, times, strict=True):
            self._section(rank, "optimizer", OPTIMIZER * own_s, paused)
            rank.section_seq += 1
            rank.enter("log")
            rank.collective_seq += 1
        waits = [a + b for a, b in zip(waits, self.meet(), strict=True)]
        self._close(began, times, fetched, waits)

    def open_step(self, rank: Rank, step: int) -> None:
        rank.step, rank.in_step = step, True
        rank.enter("data")
        rank.say("step_start")

    def _section(self, rank: Rank, name: str, seconds: float, paused: str) -> None:
        rank.section_seq += 1
        rank.enter(name)
        rank.spend(seconds)
        if name == paused:
            self._pause(rank, seconds / FORWARD)

    def _close(
        self, began: float, times: list[float], fetched: list[float], waits: list[float]
    ) -> None:
        """Every rank writes its progress and the end of its step."""
        numbers = self._series.of_step(self.step)
        tokens = round((self.order.identity.tokens_per_step or 0) * self._habits.grown_x(self.step))
        claim_x = self.sick.claim_x if self.sick is not None and self.onset is not None else 1.0
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

    # Between steps.

    def _between(self, probe: Probe) -> None:
        now, noise, dice = self.known_until, self.noise, self.dice
        sick = self.sick
        if sick is not None and sick.backwards and self.onset is not None:
            self.ranks[1].step -= 3
            self.ranks[1].say("step_start")
            return
        if self.step % CHECKPOINT_STEPS == 0 and now >= self.next_checkpoint:
            self.next_checkpoint = now + CHECKPOINT_S
            interludes.checkpoint(self, probe)
        if self.step % EVAL_STEPS == 0 and now >= self.next_eval:
            self.next_eval = now + EVAL_S
            long = dice.random() < noise.long_eval_share
            seconds = noise.long_eval_s if long else dice.uniform(*noise.eval_s)
            if dice.random() < noise.alone_share:
                interludes.alone(self, "eval", seconds)
            else:
                interludes.outside(self, "eval", seconds)
        if self._chance(noise.clock_step_rate, self.step_s):
            self.wall.step(now, dice.uniform(-3600.0, 3600.0))
        if sick is None and self.saved_step and self._chance(noise.restart_rate, self.step_s):
            self.restart(probe)

    def finish(self, probe: Probe) -> None:
        """All ranks are done and exit with 0, in any order; rank 0 may evaluate before."""
        if self.dice.random() < self.noise.last_alone_share:
            interludes.alone(self, "eval", self.dice.uniform(*self.noise.eval_s))
        for rank in self.ranks:
            rank.say("done")
            probe(rank.now + self.dice.uniform(0.0, 2.0), rank.rank, ProcessState.DEAD, code=0)
            rank.vanish(30.0)

    def _idle(self) -> None:
        """Let time pass where every rank is."""
        for rank in self.ranks:
            rank.spend(SLICE_S)
