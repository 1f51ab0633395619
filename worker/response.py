"""What is done about a finding? Pure: a finding and the pace → a request to end, and which kind.

Ranks that still move are asked to leave (`.HALT`); ranks that do not move cannot be asked.
"""

from dataclasses import dataclass
from enum import StrEnum

from gonogo.contract.agent import Command, CommandKind
from gonogo.contract.finding import Finding
from gonogo.contract.outcome import CODE_OF_DETECTOR, Actor, Detector, OutcomeCode
from worker.halt import HALT_LIMIT_S, EndRequest

_CANNOT_MOVE = frozenset(
    {
        Detector.PROCESS_DEATH,
        Detector.NO_FIRST_HEARTBEAT,
        Detector.ALIVE_LOST,
        Detector.STALL,
        Detector.SECTION_DEADLINE,
        Detector.IDENTITY,
    }
)
"""Halts that leave nothing to ask; a wrong model has nothing worth saving either."""

_CODE_OF_COMMAND = {
    CommandKind.HALT: OutcomeCode.HALTED,
    CommandKind.CANCEL: OutcomeCode.CANCELLED,
    CommandKind.SUPERSEDE: OutcomeCode.SUPERSEDED,
}
_SUPERSEDED_LIMIT_S = 10.0


class Way(StrEnum):
    """How a run is ended."""

    LEAVE = "leave"
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A way to end and the request to write."""

    way: Way
    request: EndRequest


def answer_finding(
    finding: Finding, *, leaving_s: float, grace_s: float, now: float, now_mono: float
) -> Response:
    """Return what a halt finding asks for.

    Args:
        finding: one of severity halt.
        leaving_s: how long moving ranks may take to leave.
        grace_s: seconds between SIGTERM and SIGKILL.
        now: Unix seconds.
        now_mono: monotonic seconds.
    """
    code = CODE_OF_DETECTOR.get(finding.detector, OutcomeCode.NONZERO_EXIT)
    by_itself = finding.detector is Detector.PROCESS_DEATH
    way = Way.KILL if finding.detector in _CANNOT_MOVE else Way.LEAVE
    request = EndRequest(
        reason=code.value,
        ended_by=(Actor.TRAINER if by_itself else Actor.WATCHDOG).value,
        at=now,
        text=finding.text,
        key=finding.key,
        until_mono=None if way is Way.KILL else now_mono + min(leaving_s, HALT_LIMIT_S),
        grace_s=grace_s,
    )
    return Response(way=way, request=request)


def answer_command(
    command: Command, *, leaving_s: float, grace_s: float, now: float, now_mono: float
) -> Response:
    """Return what an operator's command asks for: to leave with a checkpoint."""
    superseded = command.kind is CommandKind.SUPERSEDE
    limit_s = _SUPERSEDED_LIMIT_S if superseded else HALT_LIMIT_S
    said = ": ".join(part for part in (command.actor, command.reason) if part)
    request = EndRequest(
        reason=_CODE_OF_COMMAND[command.kind].value,
        ended_by=(Actor.INFRA if superseded else Actor.OPERATOR).value,
        at=now,
        text=said,
        until_mono=now_mono + min(leaving_s, limit_s),
        grace_s=grace_s,
    )
    return Response(way=Way.LEAVE, request=request)


def answer_isolation(
    silent_s: float, *, leaving_s: float, grace_s: float, now: float, now_mono: float
) -> Response:
    """Return what a control plane that has been silent for too long asks for."""
    request = EndRequest(
        reason=OutcomeCode.ISOLATED.value,
        ended_by=Actor.INFRA.value,
        at=now,
        text=f"nothing was acknowledged for {silent_s:.0f} s",
        until_mono=now_mono + min(leaving_s, HALT_LIMIT_S),
        grace_s=grace_s,
    )
    return Response(way=Way.LEAVE, request=request)
