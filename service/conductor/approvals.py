"""Which approvals has nobody given in time? They expire, by the wall clock that asked for them."""

from sqlalchemy.orm import Session

from service.context import Context
from service.experiments.approvals import expire
from service.experiments.decisions import save_soon
from service.experiments.lifecycle import CONDUCTOR
from service.experiments.standing import is_expired
from service.queries.experiments import load_awaiting


def load_expired(session: Session, now: float) -> list[str]:
    """Return the experiments whose approval has expired at `now` (Unix seconds)."""
    return [row.id for row in load_awaiting(session) if is_expired(row, now)]


class Approvals:
    """Lets approvals expire."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run_once(self) -> None:
        """Look at the clock once, and record what it says."""
        context = self._context
        for experiment in context.store.read(lambda session: load_expired(session, context.now())):
            self._expire(experiment)

    def _expire(self, experiment: str) -> None:
        context = self._context
        made = context.write(CONDUCTOR, expire, experiment)
        if made is not None:
            save_soon(context.settings.decisions, made)
