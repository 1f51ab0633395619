"""Which experiment, run or decision is meant? An id, the beginning of one, or a name.

`last` is the newest experiment. A run's whole id stands for its experiment where a run cannot be
meant, since Prometheus' alerts know the run alone. A beginning may leave out the kind (`01KD…` for
`exp_01KD…`) and is compared without regard to case. What may mean several things is refused, with
all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gonogo.cli.screen.times import ago
from gonogo.contract.api import FoundView
from gonogo.contract.errors import NotFound, Problem, Rejected
from gonogo.contract.ids import Kind, is_id
from gonogo.contract.lifecycle import ExperimentState

if TYPE_CHECKING:
    from gonogo.cli.client import Client

WORD = {
    Kind.EXPERIMENT: "experiment",
    Kind.RUN: "run",
    Kind.DECISION: "decision",
    Kind.CAMPAIGN: "campaign",
}
LAST = "last"
SHOWN = 10
"""Candidates that are listed of an ambiguous text."""


class Ambiguous(Rejected):
    """The text may mean several things."""


def resolve(client: Client, text: str, *kinds: Kind) -> tuple[Kind, str]:
    """Return the kind and the id of what a person means.

    Args:
        client: the service's.
        text: an id, the beginning of one, an experiment's name, or `last`.
        kinds: what may be meant.

    Raises:
        NotFound: nothing is called so.
        Ambiguous: several things are; its `problems` are the candidates.
    """
    for kind in kinds:
        if is_id(text, kind):
            return kind, text
    if Kind.EXPERIMENT in kinds and is_id(text, Kind.RUN):
        return Kind.EXPERIMENT, str(client.get(f"/runs/{text}")["experiment"])
    if text == LAST and Kind.EXPERIMENT in kinds:
        return Kind.EXPERIMENT, _newest(client)
    answer = client.get("/find", text=text, kind=[kind.value for kind in kinds], limit=SHOWN + 1)
    found = [FoundView.model_validate(row) for row in answer["items"]] if text else []
    if not found:
        words = " or ".join(WORD[kind] for kind in kinds)
        shows = "gonogo campaign list" if kinds == (Kind.CAMPAIGN,) else "gonogo list"
        raise NotFound(f"there is no {words} {text!r}; `{shows}` shows what there is")
    if len(found) > 1:
        raise ambiguous(text, found)
    return found[0].kind, found[0].id


def _newest(client: Client) -> str:
    """Return the id of the newest experiment."""
    newest = client.get_patiently("/experiments", limit=1)["items"]
    if not newest:
        raise NotFound("there is no experiment yet; submit one with: gonogo submit demo")
    return str(newest[0]["id"])


def resolve_run(client: Client, text: str) -> str | None:
    """Return the id of a run; of an experiment its newest, or None while it has none.

    Raises:
        NotFound: nothing is called so.
        Ambiguous: several things are.
    """
    kind, found = resolve(client, text, Kind.RUN, Kind.EXPERIMENT)
    if kind is Kind.RUN:
        return found
    runs = [run for phase in client.experiment(found).phases for run in phase.runs]
    return max(runs, default=None)


def origin_of(client: Client, text: str) -> str:
    """Return `EXP:PHASE[@STEP]` with the id of the experiment that a person means.

    Raises:
        Rejected: it has not that form.
        NotFound: no experiment is called so.
        Ambiguous: several are.
    """
    name, colon, rest = text.rpartition(":")
    if not (name and colon and rest):
        raise Rejected(f"--from: found {text!r}; expected EXP:PHASE, such as last:smoke")
    _, experiment = resolve(client, name, Kind.EXPERIMENT)
    return f"{experiment}:{rest}"


def ambiguous(text: str, found: Sequence[FoundView]) -> Ambiguous:
    """Return the error of a text that may mean several things."""
    count = f"{len(found)} things" if len(found) <= SHOWN else f"more than {SHOWN} things"
    rows = [Problem(path=row.id, message=describe(row)) for row in found[:SHOWN]]
    return Ambiguous(f"{text!r} may mean {count}; say which by its id:", problems=tuple(rows))


def describe(row: FoundView) -> str:
    """Return what something is, in a few words: `smoke of nightly, GO, 3 min ago`."""
    what = f"{row.phase} of {row.name}" if row.phase else row.name
    going_on = row.kind is Kind.EXPERIMENT and row.state != ExperimentState.FINISHED
    words = row.state if going_on else row.verdict or row.state
    return f"{what}, {words}{' by hand' if row.by_hand and not going_on else ''}, {ago(row.at)}"
