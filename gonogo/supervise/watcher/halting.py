"""From findings and commands to evidence and requests to end.

The first halt finding that is due decides. It waits at most EVIDENCE_WAIT_S for a round of
evidence, and then becomes `.HALT` or `.kill`, once. A finding that acts at a checkpoint waits for a
verified one. Ranks that were asked to leave and stand still are killed, and so are all when an
operator asks again.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from gonogo.contract.agent import Command
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector
from gonogo.evidence_round import by_relevance
from gonogo.rundir import RunDir
from gonogo.supervise.disk_reserve import Reserve
from gonogo.supervise.end_request import KILL_NAME, ask_halt, ask_kill, is_asked, load_request
from gonogo.supervise.evidence.rounds import (
    MAX_ROUNDS,
    MAX_ROUNDS_BEFORE_HALTS,
    MAX_ROUNDS_OF_SUSPICION,
    Evidence,
)
from gonogo.supervise.watcher.pace import Pace
from gonogo.supervise.watcher.rank_probes import Processes
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
from gonogo.timeline.rank import RankStream
from gonogo.trainer.line_file import READ
from gonogo.watch import WatchState, near

EVIDENCE_WAIT_S = 1.0
SECOND_ROUND_S, NEXT_ROUND_S = 5.0, 60.0
"""After a suspicion, and after each round of a run that still stands."""
RECENT_ROUND_S = 10.0
VICTIM_WAIT_S = 15.0
"""How long the death of a rank that lost a peer waits for what its node's silence means."""
FORESIGHT_S = 8.0
"""More than a round takes: ranks have three seconds to answer, stacks five to be read."""
LEAST_SHARE = 0.5
"""A limit is near only after this share of it, since a limit of seconds is always near."""
_STANDING = frozenset({Detector.STALL, Detector.ALIVE_LOST, Detector.SECTION_DEADLINE})
_FORESEEN = (Detector.NO_FIRST_HEARTBEAT, Detector.STALL, Detector.SECTION_DEADLINE)
"""Deadlines that name a rank only with evidence."""

_log = logging.getLogger(__name__)


class Halting:
    """Evidence and requests of one run.

    Args:
        run_dir: where requests are written.
        order: the order.
        pace: how long leaving may take.
        evidence: takes rounds of evidence.
        processes: the ranks' processes.
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
        """Return whether the run has been asked to end, by anybody.

        Raises:
            OSError: the disk does not answer.
        """
        return is_asked(self._dir.halt) or self._is_killed()

    def _is_killed(self) -> bool:
        return is_asked(self._dir.path / KILL_NAME)

    def observe(self, finding: Finding, now: float) -> Finding:
        """Decide on a new finding, take evidence for it, and return it with its evidence.

        Args:
            finding: as the fold made it; not recorded yet.
            now: monotonic seconds.

        Raises:
            OSError: the disk refuses the evidence; a halt is decided on all the same.
        """
        if finding.severity not in (Severity.SUSPECT, Severity.HALT):
            return finding
        if ends_run(finding):
            self._decide(finding, now, now + EVIDENCE_WAIT_S)
        if self.asked():
            return finding
        halts = finding.severity is Severity.HALT
        most = MAX_ROUNDS if halts else MAX_ROUNDS_OF_SUSPICION
        paths = self._take_evidence(finding.detector, finding.rank, now, most=most)
        before = None if self._next_round_at is None else self._suspicion
        is_new = before is None or before.step != finding.step
        if not halts and finding.detector in _STANDING and is_new:
            self._next_round_at, self._suspicion = now + SECOND_ROUND_S, finding
        return finding.model_copy(update={"evidence": paths}) if paths else finding

    def foresee(self, state: WatchState, now: float) -> None:
        """Take a round of evidence when a deadline is near: it may name the rank.

        Args:
            state: the fold.
            now: monotonic seconds.

        Raises:
            OSError: the disk refuses the evidence.
        """
        if self._order.world_size < 2:
            return
        detector = find_near_deadline(state, now)
        if detector is not None and not self.asked():
            self._take_evidence(detector, None, now, most=MAX_ROUNDS_BEFORE_HALTS)

    def resume(self, findings: list[Finding], now: float) -> None:
        """Take over what the watcher before this one had decided."""
        for finding in findings:
            if ends_run(finding):
                self._decide(finding, now, now)

    def saved(self, at: float) -> None:
        """Note that a checkpoint was verified at `at` (Unix s): what waited for one is due."""
        if self._deferred is not None and at >= self._deferred.at:
            self._deferred_until = float("-inf")

    def obey(self, command: Command, now: float) -> None:
        """Do what the control plane asks; a second command kills after a round of evidence."""
        if not self.asked():
            self._request(answer_command(command, **self._circumstances(now)))
        elif command.again and self._second is None and not self._is_killed():
            targets = self._processes.targets()
            self._evidence.start_round(command.kind, targets, now, most=MAX_ROUNDS)
            self._second = answer_second_command(command, **self._circumstances(now))
            self._second_at = now + EVIDENCE_WAIT_S

    def isolate(self, silent_s: float, now: float) -> None:
        """End the run because the control plane has been silent for too long."""
        if not self.asked():
            self._request(answer_isolation(silent_s, **self._circumstances(now)))

    def lose(self, node: int, proof: str) -> None:
        """End the run because a node is proven lost."""
        if not self.asked():
            grace_s = self._order.halt.grace_s
            self._request(answer_lost_node(node, proof, grace_s=grace_s, now=time.time()))

    def hurry(self, ranks: Mapping[int, RankStream], now: float) -> None:
        """Kill ranks that were asked to leave and stand still.

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
            # A step may take far longer than the last (a compilation): the plan's limit counts too.
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
        """Act on what is due: a second command, a further round, or the decision."""
        if self._second is not None and self._is_due(now, self._second_at):
            if not self._is_killed():
                self._request(self._second)
            self._second = None  # only now, as below
        if self._next_round_at is not None and now >= self._next_round_at:
            self._next_round_at = now + NEXT_ROUND_S if self._look_again(now) else None
        if self._pending is None and self._deferred is not None and now >= self._deferred_until:
            self._pending, self._act_at = self._deferred, now
        pending = self._pending
        if pending is None or not self._is_due(now, self._act_at):
            return
        silent = self._processes.silent()
        if now < self._settled_at and not silent:
            return
        if pending.detector in _STANDING and not silent and self._processes.is_quiet():
            return  # ranks of a lost node stand, too
        if not self.asked():
            answer = answer_finding(pending, **self._circumstances(now))
            self._request(blame_silence(answer, silent))
        self._pending = None  # only now: a request that the disk refuses is repeated

    def _is_due(self, now: float, at: float) -> bool:
        """Return whether it is time, or the round of evidence is complete."""
        last = self._evidence.last
        return now >= at or last is None or not last.is_running()

    def _decide(self, finding: Finding, now: float, act_at: float) -> None:
        """Take a halt as the one that ends the run, unless there is one already."""
        waits_s = patience_s(finding, self._order, leaving_s=self._pace.leaving_s())
        if waits_s > 0:  # a restarted watcher does not begin the wait again
            waits_s -= min(waits_s, max(0.0, time.time() - finding.at))
        if waits_s > 0 and self._deferred is None:
            self._deferred, self._deferred_until = finding, now + waits_s
        elif waits_s <= 0 and self._pending is None:
            self._pending, self._act_at = finding, act_at
            died = finding.detector == Detector.PROCESS_DEATH
            if died and self._processes.may_be_victim(finding.rank):
                self._settled_at = now + VICTIM_WAIT_S

    def _look_again(self, now: float) -> bool:
        """Take a thorough round of a run that still stands where it stood."""
        suspicion = self._suspicion
        if suspicion is None or self._pending is not None or self.asked():
            return False
        rank, step = suspicion.rank, suspicion.step
        if rank is not None and step is not None and self._step_of(rank) > step:
            return False
        targets = self._processes.targets()
        return self._evidence.start_round(suspicion.detector, targets, now, native=True) is not None

    def _take_evidence(
        self, detector: str, rank: int | None, now: float, *, most: int
    ) -> list[str]:
        """Return the paths of a recent round, or of a new one, the most relevant first."""
        last = self._evidence.last
        if last is None or now - last.started_at > RECENT_ROUND_S:
            targets = self._processes.targets()
            last = self._evidence.start_round(detector, targets, now, most=most)
        return by_relevance(last.paths, rank) if last is not None else []

    def _leaving_s(self) -> float:
        """Return how long the ranks may take to leave; 0 for programs that read no `.HALT`."""
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


@dataclass(slots=True)
class Leaving:
    """Whether the ranks that were asked to leave still move."""

    place: tuple[object, ...] | None = None
    since: float = 0.0
    """Monotonic seconds at which a rank last moved."""
    idle_since: float | None = None
    """Monotonic seconds since which no rank has evaluated or saved."""

    def stand(self, ranks: Mapping[int, RankStream], now: float, leaving_s: float) -> bool:
        """Return whether no rank has moved for `leaving_s`.

        A rank that may be evaluating or saving counts as moving, also one without a section.

        Args:
            ranks: as they were last heard.
            now: monotonic seconds.
            leaving_s: how long moving ranks may take.
        """
        place = tuple((rank, *_place(row)) for rank, row in sorted(ranks.items()))
        unnamed = any(not row.done and row.section is None for row in ranks.values())
        if place != self.place or unnamed or any(map(_is_busy, ranks.values())):
            self.place, self.since = place, now
        return now - self.since >= leaving_s

    def is_over(self, ranks: Mapping[int, RankStream], now: float, moving_s: float) -> bool:
        """Return whether no rank has evaluated or saved for `moving_s`.

        Args:
            ranks: as they were last heard.
            now: monotonic seconds.
            moving_s: how long moving ranks may take.
        """
        if self.idle_since is None or any(map(_is_busy, ranks.values())):
            self.idle_since = now
        return now - self.idle_since >= moving_s


def find_near_deadline(state: WatchState, now: float) -> Detector | None:
    """Return a deadline that will be reached within FORESIGHT_S if nothing changes.

    Args:
        state: the fold.
        now: monotonic seconds.
    """
    rows = near(state, now)
    for detector in _FORESEEN:
        row = rows.get(detector)
        if row is None or row.time_left_s is None or row.time_left_s > FORESIGHT_S:
            continue
        if row.share is not None and row.share >= LEAST_SHARE:
            return detector
    return None


def _is_busy(row: RankStream) -> bool:
    """Return whether a rank evaluates, saves, or has seen that it is to leave."""
    return not row.done and (row.halt_seen or row.section in NON_TRAINING_SECTIONS)


def _place(row: RankStream) -> tuple[object, ...]:
    """Return what changes when a rank moves."""
    return (row.step, row.completed, row.section, row.section_seq, row.halt_seen, row.done)
