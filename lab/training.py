"""How does a run go? Boot, steps, checkpoints, evaluations and restarts of coupled ranks.

Each method lets the ranks write what they write while that lasts. A step ends when the slowest
rank is ready: its peers wait for it in backward, and once more in log. `known_until` is the time up
to which every rank's lines have been written.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from gonogo.contract.heartbeat import StepSections
from gonogo.contract.order import Order
from gonogo.contract.tick import ProcessState
from lab import computing, faults, pauses
from lab.computing import BACKWARD, FORWARD, OPTIMIZER
from lab.faults import Fault
from lab.hosts import Load
from lab.losses import Loss
from lab.ranks import Probe, Rank, Wall
from lab.rates import Noise
from lab.series import Series
from lab.variations import PLAIN, WHOLE, Habits, Reporting, draw_reporting

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
        other_loss: Loss | None = None,
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
            other=other_loss,
        )
        self.load = Load(noise, dice)
        self.habits = habits if reporting.tokens else replace(habits, grows_at=())
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
            pauses.outside(self, "eval", self.habits.first_eval_s)
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
                faults.linger(self, self.sick, probe)
        if self.onset is not None and self.sick is not None:
            if self.sick.hang or self.sick.lingers:
                self._idle()
                return
            if self.sick.rounds:
                pauses.outside(
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

    def _take(self, probe: Probe) -> None:
        """Take one whole step."""
        step, began = self.step, self.known_until
        drawn = computing.draw(self)
        times, paused = drawn.times, drawn.paused
        fetched: list[float] = []
        for rank, own_s in zip(self.ranks, times, strict=True):
            self.open_step(rank, step)
            fetched.append(computing.fetch_s(self, own_s, drawn.epoch_s))
            rank.spend(fetched[-1])
            if paused == "data":
                computing.pause(self, rank, own_s)
            self._section(rank, "forward", FORWARD * own_s + drawn.compile_s, paused)
            self._section(rank, "backward", BACKWARD * own_s, paused)
            computing.wait_for_disk(self, rank, own_s, probe)
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
            computing.pause(self, rank, seconds / FORWARD)

    def hang(self, sick: Fault, probe: Probe) -> None:
        """Hang in a step that opens."""
        faults.hang(self, sick, probe)

    def _close(
        self, began: float, times: list[float], fetched: list[float], waits: list[float]
    ) -> None:
        """Every rank writes its progress and the end of its step."""
        numbers = self._series.of_step(self.step)
        tokens = round((self.order.identity.tokens_per_step or 0) * self.habits.grown_x(self.step))
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
        noise, sick = self.noise, self.sick
        if sick is not None and sick.backwards and self.onset is not None:
            self.ranks[1].step -= 3
            self.ranks[1].say("step_start")
            return
        now = self.known_until
        self.pause_after_step(probe)
        if self.chance(noise.clock_step_rate, self.step_s):
            self.wall.step(now, self.dice.uniform(-3600.0, 3600.0))
        if sick is None and self.saved_step and self.chance(noise.restart_rate, self.step_s):
            self.restart(probe)

    def pause_after_step(self, probe: Probe) -> None:
        """Save and evaluate, now and then."""
        now, noise, dice = self.known_until, self.noise, self.dice
        if self.step % CHECKPOINT_STEPS == 0 and now >= self.next_checkpoint:
            self.next_checkpoint = now + CHECKPOINT_S
            pauses.checkpoint(self, probe)
        if self.step % EVAL_STEPS == 0 and now >= self.next_eval:
            self.next_eval = now + EVAL_S
            long = dice.random() < noise.long_eval_share
            seconds = noise.long_eval_s if long else dice.uniform(*noise.eval_s)
            if dice.random() < noise.alone_share:
                pauses.alone(self, "eval", seconds)
            else:
                pauses.outside(self, "eval", seconds)

    def finish(self, probe: Probe) -> None:
        """All ranks are done and exit with 0, in any order; rank 0 may evaluate before."""
        if self.dice.random() < self.noise.last_alone_share:
            pauses.alone(self, "eval", self.dice.uniform(*self.noise.eval_s))
        for rank in self.ranks:
            rank.say("done")
            probe(rank.now + self.dice.uniform(0.0, 2.0), rank.rank, ProcessState.DEAD, code=0)
            rank.vanish(30.0)

    def _idle(self) -> None:
        """Let time pass where every rank is."""
        for rank in self.ranks:
            rank.spend(SLICE_S)
