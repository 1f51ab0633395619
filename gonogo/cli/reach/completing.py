"""What can a shell complete? Ids and names, as far as the service answers within a second.

A shell that asks is never told of an error: without an answer there is nothing to complete.
"""

from collections.abc import Iterator

from gonogo.cli.connection import client_of
from gonogo.cli.reach.naming import LAST, describe
from gonogo.cli.settings import load_settings
from gonogo.contract.api import FoundView
from gonogo.contract.errors import GonogoError
from gonogo.contract.ids import Kind
from gonogo.planning.source import bundled_campaign_names, bundled_plan_names

ANSWER_S = 1.0
"""How long a shell waits for the service."""
Completion = list[tuple[str, str]]


def _complete(text: str, *kinds: Kind) -> Completion:
    try:
        with client_of(load_settings(), timeout_s=ANSWER_S) as client:
            answer = client.get(
                "/find", text=text, kind=[kind.value for kind in kinds], begins=True
            )
        found = [FoundView.model_validate(row) for row in answer["items"]]
    except GonogoError:
        return []
    last = [(LAST, "the newest experiment")] if LAST.startswith(text) and text else []
    return [*last, *(row for view in found for row in _spellings(view, text))]


def _spellings(view: FoundView, text: str) -> Iterator[tuple[str, str]]:
    """Yield the id, or the name where that is what begins so."""
    if view.id.startswith(text):
        yield view.id, describe(view)
    elif view.name.startswith(text):
        yield view.name, describe(view)
    else:
        yield view.id, describe(view)


def complete_experiments(incomplete: str) -> Completion:
    """Return the experiments that begin so, by id or by name."""
    return _complete(incomplete, Kind.EXPERIMENT)


def complete_runs(incomplete: str) -> Completion:
    """Return the runs and experiments that begin so."""
    return _complete(incomplete, Kind.RUN, Kind.EXPERIMENT)


def complete_decisions(incomplete: str) -> Completion:
    """Return the decisions and experiments that begin so."""
    return _complete(incomplete, Kind.DECISION, Kind.EXPERIMENT)


def complete_campaigns(incomplete: str) -> Completion:
    """Return the campaigns that begin so, by id or by name."""
    return _complete(incomplete, Kind.CAMPAIGN)


def complete_campaign_plans(incomplete: str) -> list[str]:
    """Return the bundled campaigns that begin so."""
    return [name for name in bundled_campaign_names() if name.startswith(incomplete)]


def complete_plans(incomplete: str) -> list[str]:
    """Return the bundled plans that begin so; files are the shell's own."""
    return [name for name in bundled_plan_names() if name.startswith(incomplete)]
