"""Who judges the runs that have ended? This pass: complete ones, one after the other, at once."""

import logging
from collections.abc import Callable

from sqlalchemy.orm import Session

from gonogo.contract.decision import Decision
from service.context import Context
from service.decisions import save_decision
from service.judging import Assessment, assess, conclude, find_unjudged
from service.lifecycle import Deed

_ROUNDS = 5
_AGAIN_S = 30.0
"""After a judgement that failed for a bug, so that one broken run does not keep others waiting."""
_log = logging.getLogger(__name__)


class Judging:
    """Judges what waits for it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._not_before: dict[str, float] = {}

    def run_once(self) -> None:
        """Judge every run whose evidence is complete."""
        for run in self._context.store.read(find_unjudged):
            now_mono = self._context.mono()
            if now_mono < self._not_before.get(run, now_mono):
                continue
            self._not_before[run] = now_mono + _AGAIN_S
            decisions = self._judge(run)
            del self._not_before[run]
            for decision in decisions:
                save_decision(self._context.settings.decisions, decision)

    def _judge(self, run: str) -> list[Decision]:
        context = self._context
        for _ in range(_ROUNDS):
            assessment = context.store.read(lambda session: assess(session, run))
            made = context.store.write(self._conclusion(assessment))
            if made is not None:
                _log.info("judged %s", run, extra={"action": "judged"})
                return made
        return []

    def _conclusion(self, found: Assessment) -> Callable[[Session], list[Decision] | None]:
        return lambda session: conclude(Deed(session=session, now=self._context.now()), found)
