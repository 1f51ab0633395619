"""Shell completion of ids, names and plans, as far as the service answers within a second."""

from collections.abc import Callable

from gonogo.cli.client import client_of
from gonogo.cli.naming import LAST, describe
from gonogo.cli.settings import load_settings
from gonogo.contract.api import FoundView
from gonogo.contract.errors import GonogoError
from gonogo.contract.ids import Kind
from gonogo.planning.source import bundled_campaign_names, bundled_plan_names

ANSWER_S = 1.0
"""How long a shell waits for the service."""
Completion = list[tuple[str, str]]


def _complete(*kinds: Kind) -> Callable[[str], Completion]:
    def complete(incomplete: str) -> Completion:
        try:
            with client_of(load_settings(), timeout_s=ANSWER_S) as client:
                answer = client.get("/find", text=incomplete, kind=[*kinds], begins=True)
            found = [FoundView.model_validate(row) for row in answer["items"]]
        except GonogoError:
            return []
        last = [(LAST, "the newest experiment")] if LAST.startswith(incomplete or "-") else []
        return last + [
            (row.name if row.name.startswith(incomplete or "-") else row.id, describe(row))
            for row in found
        ]

    return complete


complete_experiments = _complete(Kind.EXPERIMENT)
complete_runs = _complete(Kind.RUN, Kind.EXPERIMENT)
complete_decisions = _complete(Kind.DECISION, Kind.EXPERIMENT)
complete_campaigns = _complete(Kind.CAMPAIGN)


def complete_campaign_plans(incomplete: str) -> list[str]:
    """Return the bundled campaigns that begin so."""
    return [name for name in bundled_campaign_names() if name.startswith(incomplete)]


def complete_plans(incomplete: str) -> list[str]:
    """Return the bundled plans that begin so."""
    return [name for name in bundled_plan_names() if name.startswith(incomplete)]
