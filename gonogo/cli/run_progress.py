"""Show a `gonogo run` while it is active: its output, its steps, its findings."""

import os
import sys
import time
from contextlib import suppress

from gonogo.cli.output import duration, say
from gonogo.cli.run_advice import advise_unread, printed_lines
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.patience import Place
from gonogo.contract.stack_trace import classify, describe_places, parse_frames
from gonogo.evidence_round import stack_rank
from gonogo.judge.facts.files import RunFiles
from gonogo.rundir import RunDir, read_tail
from gonogo.supervise.launch.nodes import Place as Part
from gonogo.supervise.watcher.metrics_file import load_metrics

TELL_EVERY_S = 10.0
MUTE_AFTER_S = 60.0
_CHUNK_BYTES = 2**16
_MOST_PLACES = 4
_LOG_BYTES = 2**18


class RunProgress:
    """Shows a run while it is active; a closed terminal or pipe does not end it."""

    def __init__(
        self, run_dir: RunDir, order: Order, *, quiet: bool, place: Part | None = None
    ) -> None:
        self._dir, self._order = run_dir, order
        self._log = run_dir.rank_log(0 if place is None else place.ranks.start)
        self._leads = place is None or place.leads
        self._shown_on = (sys.stderr if quiet else sys.stdout).fileno()
        self._offset = self._findings = 0
        self._last = b"\n"
        """The last byte of the output that was shown."""
        self._began = self._told = time.monotonic()
        self._warned = False
        self._suspicion: Finding | None = None
        self._remainder = Remainder()

    def look(self) -> None:
        """Show what is new."""
        self._pass_on()
        if not self._leads:  # node 0 reports on the run as a whole
            return
        rows = list(RunFiles(self._dir.path).rows("findings.jsonl", Finding))
        for found in rows[self._findings :]:
            self._findings += 1
            self._suspicion = found if found.severity is Severity.SUSPECT else self._suspicion
            say(f"{found.severity}: {found.detector}: {found.text}")
        now = time.monotonic()
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            self._tell(now)

    def _pass_on(self) -> None:
        with suppress(OSError), self._log.open("rb", buffering=0) as log:
            while chunk := os.pread(log.fileno(), _CHUNK_BYTES, self._offset):
                written = os.write(self._shown_on, chunk)
                self._offset, self._last = self._offset + written, chunk[written - 1 : written]

    def end_line(self) -> None:
        """End the last line of the output, unless the program or a bar on a terminal has."""
        if self._last != b"\n":
            with suppress(OSError):
                if self._last != b"\r" or not os.isatty(self._shown_on):
                    os.write(self._shown_on, b"\n")

    def _tell(self, now: float) -> None:
        snapshot = load_metrics(self._dir.path)
        ranks = {} if snapshot is None else snapshot.ranks
        seen = [row.step for row in ranks.values() if row.step is not None]
        if not seen:
            if now - self._began >= MUTE_AFTER_S and not self._warned:
                self._warned = True
                limit_s = self._order.limits_of_places()[Place.START].seconds
                halt = "nothing is halted for it" if limit_s is None else f"limit {limit_s:g} s"
                advice = advise_unread(self._order, printed_lines(self._dir))
                say(f"no step seen yet ({halt}): {advice[0]}")
            return
        step, steps = min(seen), self._order.steps
        text = f"step {step}" + ("" if steps is None else f" of {steps}")
        loss = next((row.loss for row in ranks.values() if row.loss is not None), None)
        text += "" if loss is None else f", loss {loss:g}"
        hung = self._suspicion is not None and (self._suspicion.step or 0) >= step
        say(
            text
            + self._remainder.tell(step, steps, now, where_ranks_stand(self._dir) if hung else None)
        )


def where_ranks_stand(run_dir: RunDir) -> str:
    """Return where the ranks are by the last round of stacks; else an empty text."""
    rounds = sorted(run_dir.evidence.glob("[0-9]*_*"))
    if not rounds:
        return ""
    texts = {stack_rank(path.name): read_tail(path, _LOG_BYTES) for path in rounds[-1].iterdir()}
    frames = {rank: parse_frames(text) for rank, text in texts.items() if rank is not None}
    places = ((rank, classify(row).text()) for rank, row in sorted(frames.items())[:_MOST_PLACES])
    each = "; ".join(f"rank {rank} is in {place}" for rank, place in places if place)
    return describe_places(frames) or each


class Remainder:
    """Remaining time by the steps seen so far; the time before the first one does not count."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._newest = (0, 0.0)

    def tell(self, step: int, steps: int | None, now: float, where: str | None = None) -> str:
        """Take the newest step; return the remaining time, or how long no step has come.

        Args:
            step: the newest that has ended.
            steps: the last one; None if unknown.
            now: seconds on any steady clock.
            where: where the ranks are, if the step is suspected to hang.
        """
        if self._first is None:
            self._first = self._newest = (step, now)
        elif step != self._newest[0]:
            self._newest = (step, now)
        text = ""
        ran, took_s = step - self._first[0], self._newest[1] - self._first[1]
        if steps is not None and ran > 0 and step < steps:
            text = f", about {duration(took_s / ran * (steps - step))} left"
        stands_s = now - self._newest[1]
        if stands_s < TELL_EVERY_S:
            return text
        if where is None:
            return f"{text}, no step for {duration(stands_s)}"
        return f", looks hung for {duration(stands_s)}{where and f': {where}'}"
