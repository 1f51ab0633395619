"""What if another package's detector raises an error? It watches no more, and that is said.

An error of one of D1 to D26 is a fault of ours and ends the fold. A guest's ends no run: it is left
out from there on, by the same event live and offline, its own warning tells of it, and what it was
ordered to watch was not watched, so nothing passes.
"""

import re
from typing import Any

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.tick import Tick
from gonogo.judge.watch.detector import Detector
from gonogo.judge.watch.registry import failed_text, is_ours, ordered_detectors
from gonogo.judge.watch.view import Run, View, found

_ADDRESS = re.compile("0x[0-9a-f]+")
_MOST = 200
"""Characters of an error that are told."""


def begin(run: Run) -> tuple[tuple[Detector[Any], ...], dict[str, Any], dict[str, str]]:
    """Return the detectors that watch a run, their states, and what was wrong with other guests."""
    detectors, own, failed = [], {}, {}
    for kind in ordered_detectors(run):
        name = str(kind.name)
        try:
            row = kind(run)
            own[name] = row.begin()
        except Exception as error:  # noqa: BLE001
            failed[name] = failure_of(name, error)
        else:
            detectors.append(row)
    return tuple(detectors), own, failed


def failure_of(name: str, error: Exception) -> str:
    """Return the sentence about a guest's error.

    Raises:
        Exception: the error itself, where the detector is ours.
    """
    if is_ours(name):
        raise error
    return f"{failed_text(name)}: {failure(error)}"


def failure(error: Exception) -> str:
    """Return an error in words that are the same on every host: one line, without an address."""
    words = _ADDRESS.sub("0x", str(error).partition("\n")[0])[:_MOST]
    return f"{type(error).__name__}: {words}"


def failure_finding(name: str, text: str, tick: Tick, view: View) -> Finding:
    """Return the warning that a guest watches no more."""
    return found(view, name, Severity.WARN, episode="failed", at=tick.ts, text=text)
