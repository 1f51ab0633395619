"""Find the experiment, run, decision or campaign that a text names.

A text is an id, what is shown of one (`run_7Q2M9XKD`), the beginning of one with or without its
kind, or the name of an experiment or campaign. `last` is the newest experiment. An ambiguous text
is refused with the candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gonogo.cli.output import ago
from gonogo.contract.api import FoundView
from gonogo.contract.errors import NotFound, Problem, Rejected
from gonogo.contract.ids import SHORT_LENGTH, Kind, is_id
from gonogo.contract.lifecycle import ExperimentState

if TYPE_CHECKING:
    from gonogo.cli.client import Client

WORD = {
    Kind.EXPERIMENT: "experiment",
    Kind.RUN: "run",
    Kind.DECISION: "decision",
    Kind.CAMPAIGN: "campaign",
}
Id = Annotated[str, typer.Argument(help="Experiment: id, beginning of it, name, or `last`.")]
LAST = "last"
_BEGIN = {
    Kind.EXPERIMENT: "gonogo submit demo",
    Kind.CAMPAIGN: "gonogo campaign submit campaign-demo",
}
SHOWN = 10
"""Candidates that are listed of an ambiguous text."""
LEAST_LETTERS = 4
"""Letters of an id, without its kind, that name a file or folder of a home."""


class Ambiguous(Rejected):
    """The text may mean several things; `problems` are the candidates."""


def pick_id(text: str, kind: Kind, known: Iterable[Path]) -> Path | None:
    """Return the file or folder that is named by the id that a text means; None: none of them."""
    letters = text.removeprefix(f"{kind.value}_").upper()
    if len(letters) < LEAST_LETTERS or re.search(r"[^0-9A-Z]", letters):
        return None
    shown = len(letters) == SHORT_LENGTH
    found = {
        path.stem: path
        for path in known
        if is_id(path.stem, kind)
        and (path.stem[4:].startswith(letters) or (shown and path.stem.endswith(letters)))
    }
    if len(found) > 1:
        rows = [Problem(path=stem, message=str(path)) for stem, path in sorted(found.items())]
        words = f"{text!r} may mean {len(found)} {WORD[kind]}s of this home; say which by its id:"
        raise Ambiguous(words, problems=tuple(rows[:SHOWN]))
    return next(iter(found.values()), None)


def resolve(client: Client, text: str, *kinds: Kind) -> tuple[Kind, str]:
    """Return the kind and the id of what a text names; `kinds` are what may be meant."""
    for kind in kinds:
        if is_id(text, kind):
            return kind, text
    if Kind.EXPERIMENT in kinds and is_id(text, Kind.RUN):
        return Kind.EXPERIMENT, str(client.get(f"/runs/{text}")["experiment"])
    for kind, begin in _BEGIN.items():
        if text == LAST and kind in kinds:
            newest = client.get(f"/{WORD[kind]}s", limit=1)["items"]
            if not newest:
                raise NotFound(f"there is no {WORD[kind]} yet; begin one with: {begin}")
            return kind, str(newest[0]["id"])
    answer = client.get("/find", text=text, kind=[kind.value for kind in kinds], limit=SHOWN + 1)
    found = [FoundView.model_validate(row) for row in answer["items"]] if text else []
    if not found:
        words = " or ".join(WORD[kind] for kind in kinds)
        shows = "gonogo campaign list" if kinds == (Kind.CAMPAIGN,) else "gonogo list"
        raise NotFound(f"there is no {words} {text!r}; `{shows}` shows what there is")
    if len(found) > 1:
        count = f"{len(found)} things" if len(found) <= SHOWN else f"more than {SHOWN} things"
        rows = tuple(Problem(path=row.id, message=describe(row)) for row in found[:SHOWN])
        raise Ambiguous(f"{text!r} may mean {count}; say which by its id:", problems=rows)
    return found[0].kind, found[0].id


def resolve_run(client: Client, text: str) -> str | None:
    """Return the id of a run; of an experiment its newest, or None while it has none."""
    kind, found = resolve(client, text, Kind.RUN, Kind.EXPERIMENT)
    if kind is Kind.RUN:
        return found
    runs = [run for phase in client.experiment(found).phases for run in phase.runs]
    return max(runs, default=None)


def origin_of(client: Client, text: str) -> str:
    """Return `EXP:PHASE[@STEP]` with the id of its experiment."""
    name, colon, rest = text.rpartition(":")
    if not (name and colon and rest):
        raise Rejected(f"--from: found {text!r}; expected EXP:PHASE, such as last:smoke")
    _, experiment = resolve(client, name, Kind.EXPERIMENT)
    return f"{experiment}:{rest}"


def describe(row: FoundView) -> str:
    """Return a description: `smoke of nightly, GO, 3 min ago`."""
    what = f"{row.phase} of {row.name}" if row.phase else row.name
    active = row.kind is Kind.EXPERIMENT and row.state != ExperimentState.FINISHED
    words = row.state if active else row.verdict or row.state
    return f"{what}, {words}{' by hand' if row.by_hand and not active else ''}, {ago(row.at)}"
