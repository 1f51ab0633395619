"""How does a run go whose script attached our library? As `training`, by the script's own calls.

A rank's step and section, and the lines that are due, are those of the library itself
(`gonogo.trainer.position`), on simulated time. A step opens where the step before ended, so
evaluations and checkpoints fall into it. Afterwards it opens again if nothing of it was computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS, Msg, StepSections
from gonogo.contract.order import Order
from gonogo.contract.records import ProcessState
from gonogo.trainer.position import Position
from lab.noise import UNNAMED_STALL_S, WHOLE, Fault, Pause, Reporting, Script, Who
from lab.ranks import Probe, Rank
from lab.training import ANNOUNCED_S, BACKWARD, FORWARD, OPTIMIZER, Training

UNCOUNTED = Reporting(fields_left_out=frozenset({"tokens", "toks_per_s"}))
LATCH_S = 0.002
"""What a collective takes once all have come."""
ASLEEP_AFTER_S = 1.0
"""After which one that saves may sleep uninterruptibly."""
LOG_SHARE = 0.01
"""Mean of what rank 0 spends on logging, as a share of the step."""
LONG_X = 1.5
"""Times the seconds in which an answer is due that a rank hangs."""
_OF_THE_LAST = frozenset({Msg.BOOT, Msg.CHECKPOINT, Msg.EVAL, Msg.DONE})
"""Messages about the last step that has ended."""


class AttachedRank(Rank):
    """One rank, by the calls of `gonogo.trainer.Beat`."""

    __slots__ = ("place",)

    def begin(self, boot: str, *, first_seq: int, step: int = 0) -> None:
        """Start a process; the library counts its lines from 1, whatever came before."""
        super().begin(boot, first_seq=1, step=step)
        self.place = Position(ended=step, since=self.now)
        self.counts = False
        self._settle()

    def say(self, msg: str, **fields: Any) -> None:
        """Write one line, about the step that its kind is about."""
        self.step = self.place.ended if msg in _OF_THE_LAST else self.place.step
        super().say(msg, **fields)

    def go(self) -> None:
        """Leave section boot: the first step begins."""
        self.place.enter(None, self.now)
        self._open()

    def enter(self, section: str | None) -> None:
        """Name what the rank does from now on."""
        if section == self.section:
            return
        due = self.place.enter(section, self.now)
        self._settle()
        if due is not None:
            self.say(due, collective_seq=self.collective_seq)

    @contextmanager
    def named(self, section: str) -> Iterator[None]:
        """Name what the rank does meanwhile; inside an evaluation or a checkpoint it is that."""
        outer = self.section
        self.enter(outer if outer in NON_TRAINING_SECTIONS else section)
        yield
        self.enter(outer)

    def wait_until(self, now: float) -> None:
        """Wait for the others in a collective that the library counts."""
        outer = self.section
        self.collective_seq += 1
        self.counts = True
        self.enter("log" if outer is None else outer)
        began = self.now
        self.spend(now - began)
        self.place.waited_s += self.now - began
        self.enter(outer)

    def end_step(self, numbers: Mapping[str, Any], tokens: int, last: int) -> None:
        """End the open step, and open the next one unless this was the last."""
        place = self.place
        if not place.is_open:
            self._open()
        progress, ended = dict(numbers), dict[str, Any](tokens=tokens)
        if "data" in place.spent_s:
            progress["dt_fetch_s"] = place.spent_s["data"]
        took_s = place.end_step(self.now)
        if took_s > 0.0:
            progress["toks_per_s"] = tokens / took_s
        if (times_s := place.sections_s()) is not None:
            ended["step_sections"] = StepSections.model_construct(None, **times_s)
        self.say("progress", **progress)
        self._settle()
        self.say("step_end", dt_step_s=took_s, collective_seq=self.collective_seq, **ended)
        if place.ended < last:
            self._open()

    def tell(self, msg: str, **fields: Any) -> None:
        """Report that an evaluation or a checkpoint is over; outside of it the step opens again."""
        self.say(msg, **fields)
        place = self.place
        if place.is_open and place.untouched and self.section not in NON_TRAINING_SECTIONS:
            self._open()

    def _open(self) -> None:
        self.place.open_step(self.now)
        self._settle()
        self.say("step_start")

    def _settle(self) -> None:
        """Stand where the library says."""
        place = self.place
        self.section, self.section_seq, self.since = place.section, place.section_seq, place.since
        self._announced = place.announced


class Scripted(Training):
    """The ranks of one run whose script attached."""

    rank_type: type[Rank] = AttachedRank
    ranks: Sequence[AttachedRank]

    def __init__(self, order: Order, *, script: Script, **of_run: Any) -> None:
        self.script = script
        super().__init__(order, **of_run)
        self._outside = None  # the library takes no names of a script's own
        self._hangs = False
        """Whether the fault is due in this step."""

    def reporting(self) -> Reporting:
        """Return what the library reports: all but what only the script knows."""
        return WHOLE if self.script.tells_tokens else UNCOUNTED

    def open_data(self, load_s: float) -> None:
        """Every rank opens its data before it attaches a model, and is let begin."""
        for rank in self.ranks:
            rank.spend(load_s)
        self.meet()
        for rank in self.ranks:
            rank.go()
            if self.script.flows:
                rank.enter("data")

    def pause_after_step(self, probe: Probe) -> None:
        """Save and evaluate where the script does: within `_take`."""

    def hang(self, sick: Fault, probe: Probe) -> None:
        """Take a step in which a rank stays where the fault is, for longer than it may."""
        self._hangs = True
        self._take(probe)

    # One step.

    def _take(self, probe: Probe) -> None:
        """Take one whole step, and what the script does after it."""
        script, step = self.script, self.step
        times = self.draw_step()
        for rank, own_s in zip(self.ranks, times, strict=True):
            self._fetch(rank, own_s, probe)
            self._compute(rank, "forward", FORWARD * own_s, probe)
            self._compute(rank, "backward", BACKWARD * own_s, probe)
            self.wait_for_disk(rank, own_s, probe)
        self._synchronise()
        for rank, own_s in zip(self.ranks, times, strict=True):
            self._compute(rank, "optimizer", OPTIMIZER * own_s, probe)
            if script.names_computing and not script.flows:
                rank.enter(None)
        if script.flows:
            self._log(probe)
            self._ask()
        if script.in_step:
            self._breaks(probe)
        self._tell_step()
        if script.asks and step < self.order.last_step:
            self._ask()
        if not script.in_step:
            self._breaks(probe)

    def _fetch(self, rank: AttachedRank, own_s: float, probe: Probe) -> None:
        fetch_s = self.fetch_s(own_s)
        if not self.script.names_data:
            fetch_s = min(fetch_s, UNNAMED_STALL_S)
        with rank.named("data") if self.script.names_data else nullcontext():
            rank.spend(fetch_s)
            self._stay(rank, "data", probe)
            self.pause("data", rank, own_s)

    def _compute(self, rank: AttachedRank, name: str, seconds: float, probe: Probe) -> None:
        if self.script.names_computing:
            rank.enter(name)
        rank.spend(seconds)
        self._stay(rank, name, probe)
        self.pause(name, rank, seconds / FORWARD)

    def _log(self, probe: Probe) -> None:
        """Log after some steps, rank 0 more than the others."""
        if not self.script.logs_every or self.step % self.script.logs_every:
            return
        for rank in self.ranks:
            rank.enter("log")
            mean_s = LOG_SHARE * self.step_s * (1.0 if rank.rank == 0 else 0.1)
            rank.spend(self.dice.expovariate(1.0 / mean_s))
            self._stay(rank, "log", probe)
            rank.enter(self._outside_of_all)

    def _tell_step(self) -> None:
        numbers = self._series.of_step(self.step)
        tokens = self.order.identity.tokens_per_step or 0
        for rank in self.ranks:
            rank.rss_mb = self._series.rss_mb(rank.rss_mb, self.step)
            row = {**numbers, "host_rss_mb": rank.rss_mb}
            rank.end_step(row, tokens, self.order.last_step)

    def _synchronise(self) -> None:
        """Let every rank wait for the last one, in a collective that nobody counts."""
        self.meet()
        for rank in self.ranks:
            rank.spend(LATCH_S)

    def _ask(self) -> None:
        """Let all ranks ask together: one collective, which each of them counts."""
        if len(self.ranks) > 1:
            until = max(rank.now for rank in self.ranks) + LATCH_S
            for rank in self.ranks:
                rank.wait_until(until)

    # Evaluations and checkpoints.

    @property
    def _outside_of_all(self) -> str | None:
        """Where a rank is that does nothing of the following: adapters name what comes next."""
        if not self.script.flows:
            return None
        return "data" if self.step < self.order.last_step else "checkpoint"

    def _breaks(self, probe: Probe) -> None:
        """Log, evaluate and save when due."""
        if not self.script.flows:
            self._log(probe)
        for section, pause in (("eval", self.script.evaluates), ("checkpoint", self.script.saves)):
            hangs = self._hangs and self.sick is not None and self.sick.section == section
            if not hangs and not (pause.every and self.step % pause.every == 0):
                continue
            self._pause(section, pause, probe)
            if section == "checkpoint":
                self.saved_step = self.ranks[0].place.ended
        self._leave()

    def _leave(self) -> None:
        for rank in self.ranks:
            rank.enter(self._outside_of_all)

    def _pause(self, section: str, pause: Pause, probe: Probe) -> None:
        """Evaluate or save on the acting ranks."""
        acting = self.ranks if pause.who is Who.ALL else self.ranks[:1]
        seconds = pause.seconds * self.dice.uniform(0.7, 1.0)
        for rank in self.ranks:
            if rank in acting:
                rank.enter(section)
                self._act(rank, section, seconds * self.dice.uniform(0.97, 1.0), probe)
                rank.enter(self._outside_of_all)
            else:
                rank.enter(section if self.script.flows else None)
        if pause.who is not Who.FIRST:
            self._synchronise()
        self._leave()

    def _act(self, rank: AttachedRank, section: str, seconds: float, probe: Probe) -> None:
        """Save or evaluate; now and then a rank cannot speak, or waits for its disk."""
        noise, dice = self.noise, self.dice
        saves = section == "checkpoint" and self.sick is None
        if saves and seconds > ASLEEP_AFTER_S and dice.random() < noise.disk_checkpoint_share:
            probe(rank.now + ASLEEP_AFTER_S, rank.rank, ProcessState.UNINTERRUPTIBLE)
            probe(rank.now + seconds, rank.rank, ProcessState.ALIVE)
        if saves and dice.random() < noise.silent_checkpoint_share:
            rank.freeze(seconds)
        else:
            rank.spend(seconds)
        self._stay(rank, section, probe)
        rank.tell(section, **({"val_loss": 2.0} if section == "eval" else {}), dt=seconds)

    # Sick runs.

    def _stay(self, rank: AttachedRank, section: str, probe: Probe) -> None:
        """Stay here, where this is the fault of this step."""
        sick = self.sick
        if sick is None or not self._hangs or section != sick.section:
            return
        if rank.rank != (1 if sick.rank is None else sick.rank):
            return
        self.onset = rank.now
        rank.spend(ANNOUNCED_S)
        if sick.state is not None:
            probe(rank.now, rank.rank, ProcessState(sick.state), code=sick.code)
        rank.mute = sick.silent
        rank.spend(LONG_X * sick.within_s)
