"""What has the watcher decided, and has it been done? The hand between findings and requests.

The first halt finding that is due decides; it waits at most EVIDENCE_WAIT_S for a round of evidence
and is then acted upon, once: what stands in `.HALT` or `.kill` is never written again, so a watcher
that died in between completes what the one before it had decided. Ranks that were asked to leave
and stand are ended (`leaving`), and so are all where an operator asks again. A finding that acts at
a checkpoint becomes due when one has been verified, or when it can wait no longer; one that pages
ends nothing.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from gonogo.contract.agent import Command
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector
from gonogo.evidence_round import by_relevance
from gonogo.rundir import RunDir
from gonogo.supervise.end_request import KILL_NAME, ask_halt, ask_kill, is_asked, load_request
from gonogo.supervise.evidence.rounds import (
    MAX_ROUNDS,
    MAX_ROUNDS_BEFORE_HALTS,
    MAX_ROUNDS_OF_SUSPICION,
    Evidence,
    Target,
)
from gonogo.supervise.watcher.leaving import Leaving
from gonogo.supervise.watcher.pace import Pace
from gonogo.supervise.watcher.response import (
    Response,
    Way,
    answer_command,
    answer_finding,
    answer_isolation,
    answer_lost_node,
    answer_second_command,
    blame_silence,
    ends_run,
    patience_s,
)
from gonogo.supervise.weather import Reserve
from gonogo.timeline.rank import RankStream
from gonogo.trainer.line_file import READ

EVIDENCE_WAIT_S = 1.0
SECOND_ROUND_S, NEXT_ROUND_S = 5.0, 60.0
"""After a suspicion, and after each round of a run that still stands."""
RECENT_ROUND_S = 10.0
VICTIM_WAIT_S = 15.0
"""How long the death of a rank that missed another waits for what its node's silence means."""
_STANDING = frozenset({Detector.STALL, Detector.ALIVE_LOST, Detector.SECTION_DEADLINE})

_log = logging.getLogger(__name__)


class Processes(Protocol):
    """Who knows of the ranks' processes, and of the nodes that they are on."""

    def targets(self) -> Mapping[int, Target]:
        """Return every rank's process as it is now."""

    def silent(self) -> Mapping[int, float]:
        """Return node → seconds since it was heard, of those that are silent."""

    def is_quiet(self) -> bool:
        """Say whether a node was not heard just now, and may fall silent any moment."""

    def may_be_victim(self, rank: int | None) -> bool:
        """Say whether a dead rank may have died of another node's silence."""


class Halting:
    """Turns findings and commands of one run into evidence and requests.

    Args:
        run_dir: where requests are written.
        order: the order.
        pace: how long leaving may take.
        evidence: where rounds are taken.
        processes: who knows of every rank's process as it is now.
        step_of: returns the step that a rank is in now.
    """

    def __init__(
        self,
        run_dir: RunDir,
        order: Order,
        pace: Pace,
        evidence: Evidence,
        processes: Processes,
        step_of: Callable[[int], int],
    ) -> None:
        self._dir, self._order, self._pace = run_dir, order, pace
        self._evidence, self._processes, self._step_of = evidence, processes, step_of
        self._undecided: list[tuple[Finding, float]] = []
        """Halts that no disk let us decide on yet, and when each is to be acted upon."""
        self._pending: Finding | None = None
        self._act_at = self._settled_at = 0.0
        self._deferred: Finding | None = None
        self._deferred_until = 0.0
        self._next_round_at: float | None = None
        self._suspicion: Finding | None = None
        self._leaving = Leaving()
        self._second: Response | None = None
        self._second_at = 0.0

    def asked(self) -> bool:
        """Say whether the run has been asked to end, by whomever."""
        return is_asked(self._dir.halt) or self._is_killed()

    def _is_killed(self) -> bool:
        return is_asked(self._dir.path / KILL_NAME)

    def observe(self, finding: Finding, now: float) -> Finding:
        """Take evidence for a new finding, decide on it, and return it with its evidence.

        Args:
            finding: as the fold made it; not recorded yet.
            now: monotonic seconds.

        Raises:
            OSError: the disk refuses; a halt is decided on all the same, by the next `advance`.
        """
        if finding.severity not in (Severity.SUSPECT, Severity.HALT):
            return finding
        if ends_run(finding):
            self._undecided.append((finding, now + EVIDENCE_WAIT_S))
        if self.asked():
            self._undecided.clear()
            return finding
        self._decide_all(now)
        halts = finding.severity is Severity.HALT
        most = MAX_ROUNDS if halts else MAX_ROUNDS_OF_SUSPICION
        paths = self._take_evidence(finding, now, most=most)
        before = None if self._next_round_at is None else self._suspicion
        is_new = before is None or before.step != finding.step
        if not halts and finding.detector in _STANDING and is_new:
            self._next_round_at, self._suspicion = now + SECOND_ROUND_S, finding
        return finding.model_copy(update={"evidence": paths}) if paths else finding

    def foresee(self, finding: Finding, now: float) -> None:
        """Take a round for a halt that is near: what it tells may name a rank, or decide on it.

        It is taken though suspicions before it had their share.

        Args:
            finding: as the fold would make it (`foresight`).
            now: monotonic seconds.
        """
        if not self.asked():
            self._take_evidence(finding, now, most=MAX_ROUNDS_BEFORE_HALTS)

    def resume(self, findings: list[Finding], now: float) -> None:
        """Take up what a watcher before this one had decided."""
        if self.asked():
            return
        for finding in findings:
            if ends_run(finding):
                self._decide(finding, now, now)

    def saved(self, at: float) -> None:
        """Take note that a checkpoint was verified at `at` (Unix s): what waited for one is due."""
        if self._deferred is not None and at >= self._deferred.at:
            self._deferred_until = float("-inf")

    def obey(self, command: Command, now: float) -> None:
        """Do what the control plane asks; of a run that is leaving already only what hurries it.

        Who asks again means it: a round of evidence, and nothing more is waited for.
        """
        if not self.asked():
            self._request(answer_command(command, **self._circumstances(now)))
        elif command.again and self._second is None and not self._is_killed():
            targets = self._processes.targets()
            self._evidence.start_round(command.kind, targets, now, most=MAX_ROUNDS)
            self._second = answer_second_command(command, **self._circumstances(now))
            self._second_at = now + EVIDENCE_WAIT_S

    def isolate(self, silent_s: float, now: float) -> None:
        """End the run because nobody has answered for too long."""
        if not self.asked():
            self._request(answer_isolation(silent_s, **self._circumstances(now)))

    def lose(self, node: int, proof: str) -> None:
        """End the run because a node is proven to have ended unsaid."""
        if not self.asked():
            grace_s = self._order.halt.grace_s
            self._request(answer_lost_node(node, proof, grace_s=grace_s, now=time.time()))

    def hurry(self, ranks: Mapping[int, RankStream], now: float) -> None:
        """End ranks that were asked to leave and stand, whoever asked, and however long they have.

        Args:
            ranks: as they were last heard.
            now: monotonic seconds.
        """
        request = load_request(self._dir.halt)
        if request is None or self._is_killed() or (self._dir.path / READ).exists():
            return
        if request.moving_s is not None:
            over = self._leaving.is_over(ranks, now, request.moving_s)
            text = f"asked to leave, the ranks did not within {request.moving_s:.0f} s"
        else:
            # A step may once take many times as long as the last (a compilation, a shard of data):
            # that is no hang before the plan calls it one.
            leaving_s = max(self._leaving_s(), self._order.watch.stall.halt_s)
            over = self._leaving.stand(ranks, now, leaving_s)
            text = f"asked to leave, the ranks have not moved for {leaving_s:.0f} s"
        if not over:
            return
        ended = replace(
            request, at=time.time(), text=text, until_mono=None, leave_s=None, moving_s=None
        )
        self._request(Response(way=Way.KILL, request=ended))

    def advance(self, now: float) -> None:
        """Act on what is due: an operator's second word, a further round, or the decision."""
        self._decide_all(now)
        if self._second is not None and self._is_due(now, self._second_at):
            if not self._is_killed():
                self._request(self._second)
            self._second = None  # only now, as below
        if self._next_round_at is not None and now >= self._next_round_at:
            self._next_round_at = now + NEXT_ROUND_S if self._look_again(now) else None
        if self._pending is None and self._deferred is not None and now >= self._deferred_until:
            self._pending, self._act_at = self._deferred, now
        pending = self._pending
        if pending is None:
            return
        if not self._is_due(now, self._act_at):
            return
        silent = self._processes.silent()
        if now < self._settled_at and not silent:
            return
        if pending.detector in _STANDING and not silent and self._processes.is_quiet():
            return  # a node that is gone has ranks that stand, too
        if not self.asked():
            answer = answer_finding(pending, **self._circumstances(now))
            self._request(blame_silence(answer, silent))
        self._pending = None  # only now: a request that no disk took is made again

    def _is_due(self, now: float, at: float) -> bool:
        """Say whether it is time, or the evidence that it was put off for is there."""
        last = self._evidence.last
        return now >= at or last is None or not last.is_running()

    def _decide_all(self, now: float) -> None:
        """Decide on the halts that were found; evidence that no disk takes holds none back.

        Raises:
            OSError: nobody can look just now; what is left is decided on later.
        """
        while self._undecided:
            finding, act_at = self._undecided[0]
            if not self.asked():
                self._decide(finding, now, act_at)
            self._undecided.pop(0)

    def _decide(self, finding: Finding, now: float, act_at: float) -> None:
        """Take a halt as the one that ends the run, now or at a checkpoint, unless one has been."""
        waits_s = patience_s(finding, self._order, leaving_s=self._leaving_s())
        if waits_s > 0:
            waits_s -= min(waits_s, max(0.0, time.time() - finding.at))  # a restart begins no wait
        if waits_s > 0 and self._deferred is None:
            self._deferred, self._deferred_until = finding, now + waits_s
        elif waits_s <= 0 and self._pending is None:
            self._pending, self._act_at = finding, act_at
            died = finding.detector == Detector.PROCESS_DEATH
            if died and self._processes.may_be_victim(finding.rank):
                self._settled_at = now + VICTIM_WAIT_S

    def _look_again(self, now: float) -> bool:
        """Take a thorough round, which costs time, of a run that still stands where it stood."""
        suspicion = self._suspicion
        if suspicion is None or self._pending is not None or self.asked():
            return False
        rank, step = suspicion.rank, suspicion.step
        if rank is not None and step is not None and self._step_of(rank) > step:
            return False
        targets = self._processes.targets()
        return self._evidence.start_round(suspicion.detector, targets, now, native=True) is not None

    def _take_evidence(self, finding: Finding, now: float, *, most: int) -> list[str]:
        """Return the paths of a recent round, or of one that this finding starts, by relevance."""
        last = self._evidence.last
        if last is not None and now - last.started_at <= RECENT_ROUND_S:
            return by_relevance(last.paths, finding.rank)
        targets = self._processes.targets()
        found = self._evidence.start_round(finding.detector, targets, now, most=most)
        return by_relevance(found.paths, finding.rank) if found is not None else []

    def _leaving_s(self) -> float:
        """Return how long the ranks may take to leave: a program that is read knows no `.HALT`."""
        return 0.0 if (self._dir.path / READ).exists() else self._pace.leaving_s()

    def _circumstances(self, now: float) -> dict[str, float]:
        return {
            "leaving_s": self._leaving_s(),
            "grace_s": self._order.halt.grace_s,
            "now": time.time(),
            "now_mono": now,
        }

    def _request(self, response: Response) -> None:
        self._evidence.stop()
        ask = ask_kill if response.way is Way.KILL else ask_halt
        put = partial(ask, self._dir.path, response.request)
        if Reserve(self._dir.path).write(put):
            _log.warning(
                "ending the run: %s (%s)",
                response.request.text or response.request.reason,
                response.way,
                extra={"action": "end_asked"},
            )
