"""The runs that one argument of `gonogo compare` names.

`A`, `A1,A2,A3` or `name=A1,A2,A3`, where each part is a run directory, a decision (its file or
`dec_…`), a run of the home (`run_…`), or, by the service, a run or an experiment (its newest run).
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gonogo.cli.client import Client, client_of
from gonogo.cli.ledger import find_decision, home_of, look_around, trusted
from gonogo.cli.logs import find_run_dir
from gonogo.cli.naming import resolve_run
from gonogo.cli.settings import Settings
from gonogo.contract.decision import DecisionKind
from gonogo.contract.errors import Corrupt, NotFound, Rejected, Unavailable
from gonogo.judge.compare.question import Question
from gonogo.judge.compare.unit import NoUnit, Unit
from gonogo.judge.comparing import unit_of_decision, unit_of_directory
from gonogo.judge.facts.record import load_order
from gonogo.ledger.recorded import RecordedDecision, load_decision, record_of
from gonogo.ledger.replay import doubt_about
from gonogo.ledger.sign import Trust
from gonogo.rundir import RunDir

_NAMED = re.compile(r"([A-Za-z0-9][\w.-]{0,63})=(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantArgument:
    """One argument, taken apart."""

    name: str
    runs: tuple[str, ...]


def read_variants(arguments: Sequence[str]) -> list[VariantArgument]:
    """Return the variants, each under its own name.

    A variant of one run is named like the run (the last part of a directory). One of several runs
    gets a letter by its place, unless it is named.

    Raises:
        Rejected: fewer than two, an empty part, or a name or a run that is given twice.
    """
    if len(arguments) < 2:
        raise Rejected("expected a baseline and at least one more variant: gonogo compare A B")
    parts = [_parts(text) for text in arguments]
    short = [name or (Path(runs[0]).name if len(runs) == 1 else "") for name, runs in parts]
    whole = [name or (runs[0] if len(runs) == 1 else "") for name, runs in parts]
    names = short if len({name for name in short if name}) == sum(map(bool, short)) else whole
    found = [
        VariantArgument(name=name or chr(ord("A") + place), runs=tuple(runs))
        for place, (name, (_, runs)) in enumerate(zip(names, parts, strict=True))
    ]
    _each_once([row.name for row in found], "the name")
    _each_once([run for row in found for run in row.runs], "the run")
    return found


def _parts(text: str) -> tuple[str, list[str]]:
    """Return the name, or nothing, and the runs of one argument."""
    if os.path.exists(text):  # unlike Path.exists, a list too long for a name is just not there
        return "", [text]
    named = _NAMED.fullmatch(text)
    name, rest = (named[1], named[2]) if named else ("", text)
    runs = [rest] if os.path.exists(rest) else [part.strip() for part in rest.split(",")]
    if not all(runs):
        raise Rejected(f"{text!r}: a run is missing; expected A, A1,A2 or name=A1,A2")
    return name, runs


def _each_once(texts: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for text in texts:
        if text in seen:
            raise Rejected(f"{what} {text!r} is given twice; a run counts once")
        seen.add(text)


@dataclass(slots=True, kw_only=True)
class Reach:
    """Fetches runs; asks the service only where a run is not here."""

    settings: Settings
    question: Question
    keys: Sequence[Path] | None = None
    """Files of the public keys to trust; none: those of the homes."""
    _client: Client | None = field(default=None, repr=False)

    def close(self) -> None:
        """Close the connection, where there was one."""
        if self._client is not None:
            self._client.__exit__(None, None, None)

    def unit(self, name: str) -> Unit | NoUnit:
        """Return what a run brings to a comparison.

        Raises:
            NotFound: there is no such directory, decision, run or experiment.
            Rejected: it may mean several things, or is no run directory.
            Unavailable: only the service could know it, and does not answer.
        """
        path = Path(name)
        if os.path.isdir(path):
            return unit_of_directory(name, path, self.question)
        if os.path.isfile(path) or name.lower().startswith("dec_"):
            return self._of_decision_file(name, find_decision(name, self.settings.home))
        if "/" in name:
            raise NotFound(f"{name}: no such run directory, and no such decision")
        here = self._run_dir(name) if name.startswith("run_") else None
        if here is not None:
            return self._of_run(name, here.name, here)
        return self._of_service(name)

    def _of_run(self, name: str, run: str, path: Path) -> Unit | NoUnit:
        """Return what a run's directory brings; one that holds another run brings nothing of it."""
        holds = _run_in(path)
        if holds not in (None, run):
            return NoUnit(name=name, why=f"the directory of {run} holds {holds}")
        return unit_of_directory(name, path, self.question)

    def _run_dir(self, run: str | None) -> Path | None:
        """Return the directory of a run in the home or its demos, when it is there."""
        return None if run is None else find_run_dir(run, self.settings.home, own=False)

    def _of_decision_file(self, name: str, path: Path) -> Unit | NoUnit:
        recorded = load_decision(path)
        path = Path(os.path.abspath(path))
        run = recorded.decision.run
        beside = path.resolve().parent.parent / "runs" / run if run else None
        run_dir = beside if beside is not None and beside.is_dir() else self._run_dir(run)
        doubt = None
        if recorded.seals() is None:
            doubt = doubt_about(recorded, look_around(recorded, path, self._trust(recorded, path)))
        return unit_of_decision(name, recorded, run_dir, self.question, doubt=doubt)

    def _trust(self, recorded: RecordedDecision, path: Path) -> Trust:
        """Return the keys for a decision: those named, its home's, else of a signed one ours."""
        own = home_of(path)
        return trusted(self.keys, *((own, self.settings.home) if recorded.signed else (own,)))

    def _of_service(self, name: str) -> Unit | NoUnit:
        """Return what the service knows: by the directory where it lies here, else the decision."""
        try:
            client = self._connected()
            run = resolve_run(client, name)
            if run is None:
                return NoUnit(name=name, why="it has no run yet")
            view = client.run(run)
            here = self._run_dir(run) or _own_dir(view.dir, run)
            if here is not None:
                return self._of_run(name, run, here)
            rows = client.get_patiently(f"/experiments/{view.experiment}/decisions")["items"]
        except Unavailable as error:
            raise Unavailable(f"{name}: no such directory here; {error.detail}") from error
        judged = [
            row
            for row in rows
            if row.get("run") == run and row.get("kind") == DecisionKind.AUTO and row.get("facts")
        ]
        if not judged:
            return NoUnit(name=name, why=f"{run} is not judged yet")
        newest: dict[str, Any] = max(judged, key=lambda row: int(row["seq"]))
        return unit_of_decision(name, record_of(newest), None, self.question)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = client_of(self.settings)
        return self._client


def _own_dir(told: str | None, run: str) -> Path | None:
    """Return the directory that the service names, where it lies here and is that run's."""
    return Path(told) if told is not None and _run_in(Path(told)) == run else None


def _run_in(path: Path) -> str | None:
    """Return whose directory it is by its order; None where that says nothing."""
    try:
        order = load_order(RunDir(path))
    except Corrupt:
        return None
    return None if order is None else order.run or None


def units_of(
    variants: Iterable[VariantArgument],
    unit: Callable[[str], Unit | NoUnit],
    *,
    paired: bool = True,
) -> dict[str, list[Unit | NoUnit]]:
    """Return the runs of each variant; those at the same place are one repeat.

    Args:
        variants: as typed.
        unit: how one run is fetched.
        paired: whether places mean repeats; they do only where every variant has several runs.
    """
    rows = list(variants)
    repeats = paired and all(len(row.runs) > 1 for row in rows)
    alike = len({len(row.runs) for row in rows}) == 1
    return {
        row.name: [
            replace(unit(name), repeat=place if repeats and alike else None)
            for place, name in enumerate(row.runs, start=1)
        ]
        for row in rows
    }
