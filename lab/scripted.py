"""How does a run go whose script attached our library? As `training`, by the script's own calls."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from gonogo.contract.order import Order
from gonogo.contract.tick import ProcessState
from lab import computing
from lab.attached import AttachedRank
from lab.computing import BACKWARD, FORWARD, OPTIMIZER
from lab.faults import ANNOUNCED_S, Fault
from lab.ranks import Probe, Rank
from lab.scripts import UNNAMED_STALL_S, Pause, Script, When, Who
from lab.training import Training
from lab.variations import WHOLE, Reporting

UNCOUNTED = Reporting(fields_left_out=frozenset({"tokens", "toks_per_s"}))
LATCH_S = 0.002
"""What a collective takes once all have come."""
ASLEEP_AFTER_S = 1.0
"""After which one that saves may sleep uninterruptibly."""
LOG_SHARE = 0.01
"""Mean of what rank 0 spends on logging, as a share of the step."""
LONG_X = 1.5
"""Times the seconds in which an answer is due that a rank hangs."""


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
        drawn = computing.draw(self)
        for rank, own_s in zip(self.ranks, drawn.times, strict=True):
            self._fetch(rank, own_s, drawn, probe)
            forward_s = FORWARD * own_s + drawn.compile_s
            self._compute(rank, "forward", forward_s, drawn.paused, probe)
            self._compute(rank, "backward", BACKWARD * own_s, drawn.paused, probe)
            computing.wait_for_disk(self, rank, own_s, probe)
        self._synchronise()
        for rank, own_s in zip(self.ranks, drawn.times, strict=True):
            self._compute(rank, "optimizer", OPTIMIZER * own_s, drawn.paused, probe)
            if script.names_computing and not script.flows:
                rank.enter(None)
        if script.flows:
            self._log(probe)
            self._ask()
        if script.when is When.IN_STEP and self._breaks(probe):
            return
        self._tell_step()
        if script.when is When.AFTER_STEP and self._breaks(probe):
            return
        if script.asks and step < self.order.last_step:
            self._ask()
        if script.when is When.AFTER_ASKING:
            self._breaks(probe)

    def _fetch(
        self, rank: AttachedRank, own_s: float, drawn: computing.Drawn, probe: Probe
    ) -> None:
        fetch_s = computing.fetch_s(self, own_s, drawn.epoch_s)
        if not self.script.names_data:
            fetch_s = min(fetch_s, UNNAMED_STALL_S)
        with rank.named("data") if self.script.names_data else nullcontext():
            rank.spend(fetch_s)
            self._stay(rank, "data", probe)
            if drawn.paused == "data":
                computing.pause(self, rank, own_s)

    def _compute(
        self, rank: AttachedRank, name: str, seconds: float, paused: str, probe: Probe
    ) -> None:
        if self.script.names_computing:
            rank.enter(name)
        rank.spend(seconds)
        self._stay(rank, name, probe)
        if name == paused:
            computing.pause(self, rank, seconds / FORWARD)

    def _log(self, probe: Probe) -> None:
        """Log after some steps, rank 0 more than the others."""
        if not self.script.logs_every or self.step % self.script.logs_every:
            return
        for rank in self.ranks:
            rank.enter("log")
            mean_s = LOG_SHARE * self.step_s * (1.0 if rank.rank == 0 else 0.1)
            rank.spend(self.dice.expovariate(1.0 / mean_s))
            self._stay(rank, "log", probe)
            if not self.script.straight:
                rank.enter(self._outside_of_all)

    def _tell_step(self) -> None:
        numbers = self._series.of_step(self.step)
        tokens = round((self.order.identity.tokens_per_step or 0) * self.habits.grown_x(self.step))
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

    def _breaks(self, probe: Probe) -> bool:
        """Log, evaluate and save when due; return whether all ranks were restarted."""
        if not self.script.flows:
            self._log(probe)
        for section, pause in (("eval", self.script.evaluates), ("checkpoint", self.script.saves)):
            hangs = self._hangs and self.sick is not None and self.sick.section == section
            if not hangs and not (pause.every and self.step % pause.every == 0):
                continue
            if self._pause(section, pause, probe):
                return True
            if section == "checkpoint":
                self.saved_step = self.ranks[0].place.ended
        self._leave()
        return False

    def _leave(self) -> None:
        for rank in self.ranks:
            rank.enter(self._outside_of_all)

    def _pause(self, section: str, pause: Pause, probe: Probe) -> bool:
        """Evaluate or save on the acting ranks; return whether all ranks were restarted."""
        alone = {Who.FIRST: 0, Who.FIRST_AWAITED: 0, Who.LAST_AWAITED: len(self.ranks) - 1}
        acting = [rank for rank in self.ranks if rank.rank == alone.get(pause.who, rank.rank)]
        seconds = pause.seconds * self.dice.uniform(0.7, 1.0)
        least = 0.4 if pause.who is Who.UNEVEN else 0.97
        well = self.sick is None
        if well and self.saved_step and self.chance(self.noise.restart_rate, seconds):
            until = self.known_until + seconds * self.dice.random()
            until = max(until, *(rank.now for rank in self.ranks))  # all are there until it ends
            for rank in self.ranks:
                rank.enter(section if rank in acting else self._outside_of_all)
                rank.spend(max(0.0, until - rank.now))
            self.restart(probe)
            return True
        for rank in self.ranks:
            if rank in acting:
                rank.enter(section)
                self._act(rank, section, seconds * self.dice.uniform(least, 1.0), probe)
                rank.enter(self._outside_of_all)
            else:
                rank.enter(section if self.script.flows else None)
        if pause.who is not Who.FIRST:
            self._synchronise()
        self._leave()
        return False

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
