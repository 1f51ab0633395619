"""From findings and commands to requests to end a run; pure functions.

Ranks that still move are asked to leave (`.HALT`); ranks that do not move are killed. A finding
says when to act: now, after the next verified checkpoint, or never (a person is paged).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypedDict

from gonogo.contract.agent import Command, CommandKind
from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.supervise.end_request import HALT_LIMIT_S, EndRequest
from gonogo.watch.registry import cause_of

_CANNOT_MOVE = frozenset(
    {
        Detector.PROCESS_DEATH,
        Detector.NO_FIRST_HEARTBEAT,
        Detector.ALIVE_LOST,
        Detector.STALL,
        Detector.SECTION_DEADLINE,
        Detector.IDENTITY,
        Detector.HARDWARE,
        Detector.DISK,
    }
)
"""Halts that kill: no rank can answer, or a checkpoint would be worthless or would not fit."""

AT_CHECKPOINT_SHARE = 0.5
"""The share of a finding's projected time that may be waited."""
AT_CHECKPOINT_LIMIT_S = 3600.0

_CODE_OF_COMMAND = {
    CommandKind.HALT: OutcomeCode.HALTED,
    CommandKind.CANCEL: OutcomeCode.CANCELLED,
    CommandKind.SUPERSEDE: OutcomeCode.SUPERSEDED,
}
_SUPERSEDED_LIMIT_S = 10.0


class _Time(TypedDict):
    """The time of the ranks, as in `EndRequest`."""

    until_mono: float | None
    leave_s: float | None
    moving_s: float | None


_NO_TIME = _Time(until_mono=None, leave_s=None, moving_s=None)


class Way(StrEnum):
    """How a run is ended."""

    LEAVE = "leave"
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A way to end and the request to write."""

    way: Way
    request: EndRequest


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


def _time_to_leave(leaving_s: float, now_mono: float, limit_s: float | None = None) -> _Time:
    """Return the time of the ranks: what moving ones need, more while they evaluate or save.

    Args:
        leaving_s: how long moving ranks may take to leave; 0 where none can be asked.
        now_mono: monotonic seconds.
        limit_s: the longest time of any rank.
    """
    moving_s = min(leaving_s, HALT_LIMIT_S)
    if limit_s is not None or moving_s == 0.0:
        leave_s = moving_s if limit_s is None else min(moving_s, limit_s)
        return _Time(until_mono=now_mono + leave_s, leave_s=leave_s, moving_s=None)
    return _Time(until_mono=now_mono + HALT_LIMIT_S, leave_s=HALT_LIMIT_S, moving_s=moving_s)


def answer_finding(
    finding: Finding, *, leaving_s: float, grace_s: float, now: float, now_mono: float
) -> Response:
    """Return the answer to a halt finding.

    Args:
        finding: one of severity halt.
        leaving_s: how long moving ranks may take to leave.
        grace_s: seconds between SIGTERM and SIGKILL.
        now: Unix seconds.
        now_mono: monotonic seconds.
    """
    code = cause_of(finding)
    by_itself = finding.detector == Detector.PROCESS_DEATH
    way = Way.KILL if finding.detector in _CANNOT_MOVE else Way.LEAVE
    time_s = _NO_TIME if way is Way.KILL else _time_to_leave(leaving_s, now_mono)
    request = EndRequest(
        reason=code.value,
        ended_by=(Actor.TRAINER if by_itself else Actor.WATCHDOG).value,
        at=now,
        text=finding.text,
        key=finding.key,
        grace_s=grace_s,
        **time_s,
    )
    return Response(way=way, request=request)


def answer_command(
    command: Command, *, leaving_s: float, grace_s: float, now: float, now_mono: float
) -> Response:
    """Return the answer to an operator's command: leave with a checkpoint."""
    superseded = command.kind is CommandKind.SUPERSEDE
    limit_s = _SUPERSEDED_LIMIT_S if superseded else None
    said = ": ".join(part for part in (command.actor, command.reason) if part)
    request = EndRequest(
        reason=_CODE_OF_COMMAND[command.kind].value,
        ended_by=(Actor.INFRA if superseded else Actor.OPERATOR).value,
        at=now,
        text=said,
        grace_s=grace_s,
        **_time_to_leave(leaving_s, now_mono, limit_s),
    )
    return Response(way=Way.LEAVE, request=request)


def answer_second_command(
    command: Command, *, leaving_s: float, grace_s: float, now: float, now_mono: float
) -> Response:
    """Return the answer to an operator's second command: kill."""
    first = answer_command(
        command, leaving_s=leaving_s, grace_s=grace_s, now=now, now_mono=now_mono
    )
    return Response(way=Way.KILL, request=replace(first.request, **_NO_TIME))


def answer_isolation(
    silent_s: float, *, leaving_s: float, grace_s: float, now: float, now_mono: float
) -> Response:
    """Return the answer to a control plane that has been silent for too long."""
    request = EndRequest(
        reason=OutcomeCode.ISOLATED.value,
        ended_by=Actor.INFRA.value,
        at=now,
        text=f"nothing was acknowledged for {silent_s:.0f} s",
        grace_s=grace_s,
        **_time_to_leave(leaving_s, now_mono),
    )
    return Response(way=Way.LEAVE, request=request)


def answer_lost_node(node: int, proof: str, *, grace_s: float, now: float) -> Response:
    """Return the answer to the proven loss of a node."""
    request = EndRequest(
        reason=OutcomeCode.NODE_LOST.value,
        ended_by=Actor.INFRA.value,
        at=now,
        text=f"node {node} is lost: {proof}",
        grace_s=grace_s,
    )
    return Response(way=Way.KILL, request=request)


def blame_silence(response: Response, silent: Mapping[int, float]) -> Response:
    """Return the answer to a finding while a node is silent: the cause is unknown, `isolated`.

    Args:
        response: the answer to the finding.
        silent: node → seconds since it was heard.
    """
    if not silent:
        return response
    node, seconds = max(silent.items(), key=lambda row: row[1])
    told = f"nothing was heard of node {node} for {seconds:.0f} s; {response.request.text}"
    request = replace(
        response.request,
        reason=OutcomeCode.ISOLATED.value,
        ended_by=Actor.INFRA.value,
        text=told,
    )
    return Response(way=response.way, request=request)
