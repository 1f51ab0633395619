"""From findings and commands to evidence and requests to end.

The first halt finding that is due decides. It waits at most EVIDENCE_WAIT_S for a round of
evidence, and on several nodes for a sign of every node. Then it becomes a request, once: `.HALT`
asks ranks that still move to leave, `.kill` ends ranks that do not. A finding that acts at a
checkpoint waits for a verified one. Ranks that were asked to leave and stand still are killed, and
so are all when an operator asks again.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.worker_messages import Command, CommandKind
from gonogo.evidence_round import by_relevance
from gonogo.rundir import RunDir
from gonogo.supervise.durable import Reserve
from gonogo.supervise.end_request import (
    HALT_LIMIT_S,
    KILL_NAME,
    EndRequest,
    ask_halt,
    ask_kill,
    is_asked,
    load_request,
)
from gonogo.supervise.evidence.rounds import (
    MAX_ROUNDS,
    MAX_ROUNDS_BEFORE_HALTS,
    MAX_ROUNDS_OF_SUSPICION,
    Evidence,
)
from gonogo.supervise.watcher.journal import Pace
from gonogo.supervise.watcher.rank_probes import Processes
from gonogo.timeline.rank import RankStream
from gonogo.trainer.heartbeat_writer import READ
from gonogo.watch.fold import WatchState, near
from gonogo.watch.registry import cause_of

EVIDENCE_WAIT_S = 1.0
SECOND_ROUND_S, NEXT_ROUND_S = 5.0, 60.0
"""After a suspicion, and after each round of a run that still stands."""
RECENT_ROUND_S = 10.0
SIGN_AFTER_S = 3.0  # A node that is heard so long after a finding was there when it happened.
FORESIGHT_S = 8.0
"""More than a round takes: ranks have three seconds to answer, stacks five to be read."""
LEAST_SHARE = 0.5
"""A limit is near only after this share of it, since a limit of seconds is always near."""
AT_CHECKPOINT_SHARE = 0.5  # The share of a finding's projected time that may be waited.
AT_CHECKPOINT_LIMIT_S = 3600.0
SUPERSEDED_LIMIT_S = 10.0

_FORESEEN = (Detector.NO_FIRST_HEARTBEAT, Detector.STALL, Detector.SECTION_DEADLINE)
"""Deadlines that name a rank only with evidence."""
_STANDING = frozenset({Detector.STALL, Detector.ALIVE_LOST, Detector.SECTION_DEADLINE})
_OF_NODES = _STANDING | {Detector.PROCESS_DEATH}
"""Findings for which the loss of another node may be the cause."""
_CANNOT_MOVE = _OF_NODES | {
    Detector.NO_FIRST_HEARTBEAT,
    Detector.IDENTITY,
    Detector.HARDWARE,
    Detector.DISK,
}
"""Halts that kill: no rank can answer, or a checkpoint would be worthless or would not fit."""
_CODE_OF_COMMAND = {
    CommandKind.HALT: OutcomeCode.HALTED,
    CommandKind.CANCEL: OutcomeCode.CANCELLED,
    CommandKind.SUPERSEDE: OutcomeCode.SUPERSEDED,
}

_log = logging.getLogger(__name__)


def ends_run(finding: Finding) -> bool:
    """Return whether a finding ends the run, now or later."""
    return finding.severity is Severity.HALT and finding.act is not Act.PAGE


def patience_s(finding: Finding, order: Order, *, leaving_s: float) -> float:
    """Return how long a halt may wait for a verified checkpoint; 0 acts now.

    Args:
        finding: one that ends the run; if it acts at a checkpoint, its value is the run's seconds
            left.
        order: without a cadence there is no checkpoint to wait for.
        leaving_s: how long moving ranks may take to leave.
    """
    cadence = order.checkpoint
    never = cadence.every_steps is None and cadence.every_s is None
    if finding.act is not Act.AT_CHECKPOINT or never:
        return 0.0
    left_s = finding.value
    if left_s is None or not math.isfinite(left_s):
        return AT_CHECKPOINT_LIMIT_S
    return min(max(0.0, AT_CHECKPOINT_SHARE * left_s - leaving_s), AT_CHECKPOINT_LIMIT_S)


def leaving(request: EndRequest, leaving_s: float, mono: float, most_s: float) -> EndRequest:
    """Return a request to leave: with time for moving ranks, more while they evaluate or save.

    Args:
        request: one to kill.
        leaving_s: how long moving ranks may take to leave; 0 where none can be asked.
        most_s: the longest time of any rank.
    """
    moving_s = min(leaving_s, most_s)
    if moving_s == 0.0 or most_s < HALT_LIMIT_S:
        return replace(request, until_mono=mono + moving_s, leave_s=moving_s)
    return replace(request, until_mono=mono + most_s, leave_s=most_s, moving_s=moving_s)


class Halting:
    """Evidence and requests of one run."""

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
        self._found_at = self._act_at = 0.0
        self._deferred: Finding | None = None
        self._deferred_until = 0.0
        self._suspicion: Finding | None = None
        self._next_round_at = 0.0
        self._standing = Standing()

    def asked(self) -> bool:
        """Return whether the run has been asked to end, by anybody."""
        return is_asked(self._dir.halt) or self._is_killed()

    def _is_killed(self) -> bool:
        return is_asked(self._dir.path / KILL_NAME)

    def observe(self, finding: Finding, now: float) -> Finding:
        """Decide on a new finding, take evidence for it, and return it with its evidence."""
        if finding.severity not in (Severity.SUSPECT, Severity.HALT):
            return finding
        if ends_run(finding):
            self._decide(finding, now, now + EVIDENCE_WAIT_S)
        if self.asked():
            return finding
        halts = finding.severity is Severity.HALT
        most = MAX_ROUNDS if halts else MAX_ROUNDS_OF_SUSPICION
        paths = self._take_evidence(finding.detector, finding.rank, now, most=most)
        before = self._suspicion
        is_new = before is None or before.step != finding.step
        if not halts and finding.detector in _STANDING and is_new:
            self._suspicion, self._next_round_at = finding, now + SECOND_ROUND_S
        return finding.model_copy(update={"evidence": paths}) if paths else finding

    def foresee(self, state: WatchState, now: float) -> None:
        """Take a round of evidence when a deadline is near: it may name the rank."""
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
        """Do what the control plane asks: leave with a checkpoint; asked again, end at once."""
        text = ": ".join(part for part in (command.actor, command.reason) if part)
        superseded = command.kind is CommandKind.SUPERSEDE
        by = Actor.INFRA if superseded else Actor.OPERATOR
        request = self._build(_CODE_OF_COMMAND[command.kind], by, text)
        if not self.asked():
            self._ask_to_leave(request, now, SUPERSEDED_LIMIT_S if superseded else HALT_LIMIT_S)
        elif command.again and not self._is_killed():
            self._put(request)

    def isolate(self, silent_s: float, now: float) -> None:
        """End the run because the control plane has been silent for too long."""
        if not self.asked():
            text = f"nothing was acknowledged for {silent_s:.0f} s"
            self._ask_to_leave(self._build(OutcomeCode.ISOLATED, Actor.INFRA, text), now)

    def lose(self, node: int, proof: str) -> None:
        """End the run because a node is proven lost."""
        if not self.asked():
            text = f"node {node} is lost: {proof}"
            self._put(self._build(OutcomeCode.NODE_LOST, Actor.INFRA, text))

    def hurry(self, ranks: Mapping[int, RankStream], now: float) -> None:
        """Kill ranks that were asked to leave and stand still."""
        request = load_request(self._dir.halt)
        if request is None or self._is_killed() or (self._dir.path / READ).exists():
            return
        limit_s = request.moving_s
        if limit_s is None:
            # A step may take far longer than the last (a compilation): the plan's limit counts too.
            limit_s = max(self._pace.leaving_s(), self._order.watch.stall.halt_s)
        if self._standing.lasts_s(ranks, now, may_step=request.moving_s is None) >= limit_s:
            text = f"asked to leave, the ranks did not within {limit_s:.0f} s"
            ended = replace(request, at=time.time(), text=text)
            self._put(replace(ended, until_mono=None, leave_s=None, moving_s=None))

    def advance(self, now: float) -> None:
        """Act on what is due: a further round, or the decision."""
        if self._suspicion is not None and now >= self._next_round_at:
            self._next_round_at = now + NEXT_ROUND_S
            if not self._look_again(self._suspicion, now):
                self._suspicion = None
        if self._pending is None and self._deferred is not None and now >= self._deferred_until:
            self._pending, self._act_at = self._deferred, now
        finding, last = self._pending, self._evidence.last
        if finding is None or (now < self._act_at and last is not None and last.is_running()):
            return
        silent = self._processes.silent()
        settled = bool(silent) or self._processes.all_heard(self._found_at + SIGN_AFTER_S)
        if finding.detector in _OF_NODES and not settled:
            return
        if not self.asked():
            self._answer(finding, silent, now)
        self._pending = None  # only now: a request that the disk refuses is repeated

    def _answer(self, finding: Finding, silent: Mapping[int, float], now: float) -> None:
        """Ask for the end that a finding demands; while a node is silent the cause is unknown."""
        died = finding.detector == Detector.PROCESS_DEATH
        by = Actor.TRAINER if died else Actor.WATCHDOG
        request = self._build(cause_of(finding), by, finding.text)
        if silent:
            node, seconds = max(silent.items(), key=lambda row: row[1])
            text = f"nothing was heard of node {node} for {seconds:.0f} s; {finding.text}"
            request = self._build(OutcomeCode.ISOLATED, Actor.INFRA, text)
        request = replace(request, key=finding.key)
        if finding.detector in _CANNOT_MOVE:
            self._put(request)
        else:
            self._ask_to_leave(request, now)

    def _decide(self, finding: Finding, now: float, act_at: float) -> None:
        waits_s = patience_s(finding, self._order, leaving_s=self._pace.leaving_s())
        if waits_s > 0:  # a restarted watcher does not begin the wait again
            waits_s -= min(waits_s, max(0.0, time.time() - finding.at))
        if waits_s > 0 and self._deferred is None:
            self._deferred, self._deferred_until = finding, now + waits_s
        elif waits_s <= 0 and self._pending is None:
            self._pending, self._found_at, self._act_at = finding, now, act_at

    def _look_again(self, suspicion: Finding, now: float) -> bool:
        """Take a thorough round of a run that still stands where it stood."""
        if self._pending is not None or self.asked():
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

    def _build(self, reason: OutcomeCode, by: Actor, text: str) -> EndRequest:
        return EndRequest(
            reason=reason.value,
            ended_by=by.value,
            at=time.time(),
            text=text,
            grace_s=self._order.halt.grace_s,
        )

    def _ask_to_leave(self, request: EndRequest, now: float, most_s: float = HALT_LIMIT_S) -> None:
        """Write a request to leave; a program that reads no `.HALT` gets no time."""
        leaving_s = 0.0 if (self._dir.path / READ).exists() else self._pace.leaving_s()
        self._put(leaving(request, leaving_s, now, most_s))

    def _put(self, request: EndRequest) -> None:
        self._evidence.stop()
        ask, way = (ask_kill, "kill") if request.leave_s is None else (ask_halt, "leave")
        if Reserve(self._dir.path).write(partial(ask, self._dir.path, request)):
            text = request.text or request.reason
            _log.warning("ending the run: %s (%s)", text, way, extra={"action": "end_asked"})


@dataclass(slots=True)
class Standing:
    """Since when ranks that were asked to leave do nothing that may lead to their end."""

    since: float | None = None  # Monotonic seconds.
    place: tuple[object, ...] = ()

    def lasts_s(self, ranks: Mapping[int, RankStream], now: float, *, may_step: bool) -> float:
        """Return for how long no rank has evaluated, saved or seen the request.

        With `may_step` ranks that change their place, or name no section, move as well.
        """
        moves = any(map(_is_busy, ranks.values()))
        if may_step:
            place = tuple(_place(row) for _, row in sorted(ranks.items()))
            unnamed = any(not row.done and row.section is None for row in ranks.values())
            moves = moves or unnamed or place != self.place
            self.place = place
        if self.since is None or moves:
            self.since = now
        return now - self.since


def find_near_deadline(state: WatchState, now: float) -> Detector | None:
    """Return a deadline that will be reached within FORESIGHT_S if nothing changes."""
    rows = near(state, now)
    for detector in _FORESEEN:
        row = rows.get(detector)
        if row is None or row.time_left_s is None or row.time_left_s > FORESIGHT_S:
            continue
        if row.share is not None and row.share >= LEAST_SHARE:
            return detector
    return None


def _is_busy(row: RankStream) -> bool:
    return not row.done and (row.halt_seen or row.section in NON_TRAINING_SECTIONS)


def _place(row: RankStream) -> tuple[object, ...]:
    return (row.step, row.completed, row.section, row.section_seq, row.halt_seen, row.done)
