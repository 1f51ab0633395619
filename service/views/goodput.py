"""Time of a run or an experiment, by what it was spent on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gonogo.contract.goodput import ExperimentGoodput, goodput_of
from gonogo.contract.outcome import OutcomeCode
from gonogo.goodput.account import RunTimes, Seconds, account_experiment, account_run
from service.db.schema import ExperimentRow, RunRow
from service.db.store import Session
from service.evidence.lowest_rank import load_account
from service.queries.runs import load_halts, load_timed_runs, load_waited

_UNSEEN = frozenset(
    {
        OutcomeCode.KEEPER_LOST,
        OutcomeCode.WORKER_LOST,
        OutcomeCode.NODE_LOST,
        OutcomeCode.ISOLATED,
        OutcomeCode.SUPERSEDED,
    }
)
"""Ends after which nobody can say what the run did since its last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccount:
    """A run with its seconds."""

    row: RunRow
    opened_at: float
    seconds: Seconds

    def ended_at(self, now: float) -> float:
        """Return when it ended, or now; Unix seconds, never before it was opened."""
        ended_at = now if self.row.ended_at is None else self.row.ended_at
        return max(self.opened_at, ended_at)


def load_accounts(session: Session, experiment: str, now: float) -> list[RunAccount]:
    """Return the accounts of an experiment's runs, oldest first; `now` in Unix seconds."""
    runs = load_timed_runs(session, experiment)
    found = _load_found(session, runs)
    waited = load_waited(session, [run.id for run in runs])
    accounts: list[RunAccount] = []
    before = 0.0
    for run in runs:
        opened_at = max(run.created_at, before)
        placed_at = max(filter(None, (run.claimed_at, waited.get(run.id))), default=None)
        times = _times(run, runs, opened_at, placed_at, found.get(run.id))
        seconds = account_run(times, load_account(session, run.id), now)
        accounts.append(RunAccount(row=run, opened_at=opened_at, seconds=seconds))
        before = accounts[-1].ended_at(now)
    return accounts


def _load_found(session: Session, runs: Iterable[RunRow]) -> dict[str, float]:
    found: dict[str, float] = {}
    for run, finding in load_halts(session, [run.id for run in runs]):
        found[run] = min(finding.at, found.get(run, finding.at))
    return found


def _times(
    run: RunRow,
    runs: Sequence[RunRow],
    opened: float,
    placed: float | None,
    found: float | None,
) -> RunTimes:
    code = run.outcome.code if run.outcome is not None else None
    later = [row for row in runs if row.phase == run.phase and row.attempt > run.attempt]
    return RunTimes(
        opened_at=opened,
        placed_at=placed,
        ended_at=run.ended_at,
        found_at=found,
        again=run.attempt > 1,
        completed=code is OutcomeCode.COMPLETED,
        unseen_end=code in _UNSEEN,
        resumed_steps=tuple(row.resume_from.step if row.resume_from else 0 for row in later),
    )


def load_experiment_goodput(
    session: Session, experiment: ExperimentRow, now: float
) -> ExperimentGoodput:
    """Return where an experiment's time went, and that of each of its runs."""
    accounts = load_accounts(session, experiment.id, now)
    spans = ((row.opened_at, row.ended_at(now), row.seconds) for row in accounts)
    seconds = account_experiment(experiment.created_at, experiment.ended_at, spans, now)
    return ExperimentGoodput(
        experiment=experiment.id,
        runs={row.row.id: goodput_of(row.seconds) for row in accounts},
        **dict(goodput_of(seconds)),
    )
