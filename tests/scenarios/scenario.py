"""One entry of the catalogue: a named stream or run directory, and the outcome it has today.

An outcome holds no sentences: the verdict where a directory is judged, the first finding that
halts, and every warning. That of a quick scenario holds its numbers as well: the facts and criteria
of a directory, and how near each detector was to its limit where a stream ended.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.contract.errors import GonogoError
from gonogo.contract.finding import Finding, Near, Severity
from gonogo.judge.directory import judge_directory
from gonogo.watch.fold import near
from tests.watch.streams import World, watch

Outcome = dict[str, Any]
Worlds = Callable[..., Iterator[World]]
QUICK_EVERY = 6
_JUDGED = ("facts", "criteria", "conditions", "diagnosis")
_LEFT_OUT = frozenset(
    {"at", "blind", "bytes", "digest", "evidence", "expected", "files", "found", "identity"}
    | {"key", "order_sha256", "since", "text", "unit", "v", "version"}
)
"""Left out of facts and distances: sentences, digests of files, and repeated parts of the order."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A stream or a run directory with a name."""

    name: str
    found: Callable[[], Outcome]
    long: bool = False
    """Whether only `make outcomes ARGS=--all` looks at it."""

    def outcome(self) -> Outcome:
        """Return the outcome that it has today; that of a long one is without its numbers."""
        found = self.found()
        return _without_numbers(found) if self.long else found


def stream(
    name: str, world: Callable[[], World], *, interval_s: float = 0.25, long: bool = False
) -> Scenario:
    """Return the scenario of a stream that a watcher folds until its first halt."""

    def outcome() -> Outcome:
        return _of_world(world(), interval_s)

    return Scenario(name, outcome, long)


def each(names: str, values: Sequence[Any]) -> Callable[[Worlds], Worlds]:
    """Give a function of worlds its arguments: one scenario for each value, as in parametrize."""

    def decorate(function: Worlds) -> Worlds:
        keys = names.split(", ")
        rows = [dict(zip(keys, row if len(keys) > 1 else [row], strict=True)) for row in values]
        function.__dict__["each"] = [rows, *function.__dict__.get("each", [])]
        return function

    return decorate


def streams(family: str, *functions: Worlds) -> Iterator[Scenario]:
    """Yield the scenarios of functions that yield worlds; one in `QUICK_EVERY` is quick."""
    number = 0
    for function in functions:
        for parts in itertools.product(*function.__dict__.get("each", [])):
            arguments = {key: value for part in parts for key, value in part.items()}
            name = f"{family}/{function.__name__.replace('_', ' ')}"
            if arguments:
                name += f" ({', '.join(f'{key} {value}' for key, value in arguments.items())})"
            yield Scenario(
                name, partial(_all_of, function, arguments), long=number % QUICK_EVERY > 0
            )
            number += 1


def _all_of(function: Worlds, arguments: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a function's world, or of each of its worlds."""
    found = [_of_world(world, 1.0) for world in function(**arguments)]
    return found[0] if len(found) == 1 else {"each": found}


def directory(
    name: str,
    save: Callable[[Path], Path],
    *,
    plan: Mapping[str, Any] | None = None,
    phase: str | None = None,
    now: float | None = None,
    long: bool = False,
) -> Scenario:
    """Return the scenario of a run directory that `save` writes below a folder."""

    def outcome() -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            return outcome_of(save(Path(folder)), plan=plan, phase=phase, now=now)

    return Scenario(name, outcome, long)


def _of_world(world: World, interval_s: float) -> Outcome:
    seen = watch(world, interval_s=interval_s)
    last = seen.ticks[-1].mono if seen.halts else world.mono
    return outcome_of_watch(seen.findings, near(seen.state, last))


def outcome_of_watch(found: Sequence[Finding], rows: Mapping[str, Near]) -> Outcome:
    """Return the outcome of a watched stream.

    Args:
        found: by its watcher, until it halted or the stream ended.
        rows: how near each detector was to its limit then.
    """
    wired = [finding.wire() for finding in found]
    lasted = [finding.at - (finding.since or finding.at) for finding in found]
    numbers = {
        "findings": [{**row, "lasted_s": s} for row, s in zip(wired, lasted, strict=True)],
        "near": {name: row.wire() for name, row in rows.items() if row.blind is None},
    }
    return {**findings_of(wired), "numbers": rounded(numbers)}


def outcome_of(path: Path, **known: Any) -> Outcome:
    """Judge a run directory; one that is refused has the name of the error as its verdict."""
    try:
        document = judge_directory(path, **known)
    except GonogoError as error:
        return {"verdict": type(error).__name__}
    outcome = {"verdict": document["verdict"], **findings_of(document["findings"])}
    return {**outcome, "numbers": rounded({name: document[name] for name in _JUDGED})}


def _without_numbers(outcome: Outcome) -> Outcome:
    if "each" in outcome:
        return {"each": [_without_numbers(row) for row in outcome["each"]]}
    return {key: row for key, row in outcome.items() if key != "numbers"}


def rounded(value: Any) -> Any:
    """Return a document with rounded numbers, without sentences, digests and what is empty."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(row) for row in value]
    if isinstance(value, dict):
        kept = {key: rounded(row) for key, row in value.items() if key not in _LEFT_OUT}
        return {key: row for key, row in kept.items() if row not in ([], {}, "", None)}
    return value


def findings_of(found: Iterable[Mapping[str, Any]]) -> Outcome:
    """Return the first halt and all warnings of findings in their wire form."""
    rows = list(found)
    outcome: Outcome = {}
    for row in rows:
        if row["severity"] == Severity.HALT:
            outcome["halt"] = {
                name: row.get(name) for name in ("detector", "rank", "section", "step")
            }
            break
    warnings = {(row["detector"], row.get("rank")) for row in rows if row["severity"] == "warn"}
    if warnings:
        outcome["warnings"] = [list(row) for row in sorted(warnings, key=str)]
    return outcome
