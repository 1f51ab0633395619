"""What if this host's disk takes no run? It is tried before a claim; what comes is given back."""

from pathlib import Path

from gonogo.contract.agent import StateReport
from gonogo.contract.lifecycle import RunEvent
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import ExitRecord

_TRIED = b"\0" * 2**16


def try_room(home: Path, runs: Path) -> None:
    """Write a little where a claimed run begins, and take it away again.

    Args:
        home: GONOGO_HOME, in which its secret is kept.
        runs: folder of the run directories.

    Raises:
        OSError: nothing can be written there.
    """
    for folder in (home, runs):
        if folder == home or folder.exists():
            path = folder / ".room"  # the launch lock is held: nobody else tries
            try:
                path.write_bytes(_TRIED)
            finally:
                path.unlink(missing_ok=True)


def build_refused(order: Order, text: str, now: float) -> StateReport:
    """Return the report of a run that ended before anything of it was written.

    Args:
        order: what was claimed.
        text: why it was not begun.
        now: Unix seconds.
    """
    record = ExitRecord(
        ended_at=now,
        ended_by=Actor.INFRA,
        reason=OutcomeCode.PREFLIGHT_FAILED,
        text=text,
        run=order.run,
        attempt=order.attempt,
    )
    return StateReport(token=order.token, event=RunEvent.END, at=now, exit=record)
