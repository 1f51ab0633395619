"""What if another package's detector raises an error? It watches no more, and that is said.

An error of one of D1 to D26 is a fault of ours and ends the fold. A guest's ends no run: it is left
out from there on, by the same event live and offline, its own warning tells of it, and what it was
ordered to watch was not watched, so nothing passes.
"""

from typing import Any

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.tick import Tick
from gonogo.watch.detector import Detector
from gonogo.watch.packages import ERRORS, failure
from gonogo.watch.registry import failed_text, is_ours, ordered_detectors
from gonogo.watch.view import Run, View, found


def begin(run: Run) -> tuple[tuple[Detector[Any], ...], dict[str, Any], dict[str, str]]:
    """Return the detectors that watch a run, their states, and what was wrong with other guests."""
    detectors, own, failed = [], {}, {}
    for kind in ordered_detectors(run):
        name = str(kind.name)
        try:
            row = kind(run)
            own[name] = row.begin()
        except ERRORS as error:
            failed[name] = failure_of(name, error)
        else:
            detectors.append(row)
    return tuple(detectors), own, failed


def failure_of(name: str, error: BaseException) -> str:
    """Return the sentence about a guest's error.

    Raises:
        BaseException: the error itself, where the detector is ours.
    """
    if is_ours(name):
        raise error
    return f"{failed_text(name)}: {failure(error)}"


def failure_finding(name: str, text: str, tick: Tick, view: View) -> Finding:
    """Return the warning that a guest watches no more."""
    return found(view, name, Severity.WARN, episode="failed", at=tick.ts, text=text)
