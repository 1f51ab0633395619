"""Time of a run, an experiment or the fleet, by what it was spent on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gonogo.contract.goodput import (
    ExperimentGoodput,
    FleetGoodput,
    Goodput,
    Part,
    goodput_of,
)
from gonogo.contract.outcome import OutcomeCode
from gonogo.goodput.account import RunTimes, Seconds, account_experiment, account_run
from service.db.schema import ExperimentRow, RunRow
from service.db.store import Session
from service.evidence.heartbeats import Fold, load_fold
from service.queries.runs import (
    load_halts,
    load_seconds_in,
    load_taken,
    load_timed_runs,
    load_waited,
    sum_accounts,
)

FLEET_HOURS = 24.0
"""How long ago a run may have ended that counts to the fleet's time, unless asked otherwise."""
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
    fold: Fold
    seconds: Seconds

    def ended_at(self, now: float) -> float:
        """Return when it ended, or now; Unix seconds, never before it was opened."""
        ended_at = now if self.row.ended_at is None else self.row.ended_at
        return max(self.opened_at, ended_at)


def load_accounts(session: Session, experiment: str, now: float) -> list[RunAccount]:
    """Return the accounts of an experiment's runs, oldest first; `now` in Unix seconds."""
    runs = load_timed_runs(session, experiment)
    stored = load_taken(session, [run.id for run in runs])
    found = _load_found(session, runs)
    waited = load_waited(session, [run.id for run in runs])
    accounts: list[RunAccount] = []
    before = 0.0
    for run in runs:
        opened_at = max(run.created_at, before)
        fold = load_fold(session, run.id, stored.get(run.id))
        placed_at = max(filter(None, (run.claimed_at, waited.get(run.id))), default=None)
        times = _times(run, runs, opened_at, placed_at, found.get(run.id))
        seconds = account_run(times, fold.told, now)
        accounts.append(RunAccount(row=run, opened_at=opened_at, fold=fold, seconds=seconds))
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


def load_fleet_goodput(session: Session, now: float, hours: float) -> FleetGoodput:
    """Return where the device time went, of all runs that are active or ended within `hours`."""
    count, seconds = sum_accounts(session, now - hours * 3600.0)
    return FleetGoodput(hours=hours, runs=count, **dict(goodput_of(seconds)))


def load_stored(session: Session, states: Sequence[str]) -> Iterator[tuple[str, Goodput]]:
    """Yield the accounts, as they were taken last, of runs in these states."""
    for run, seconds in load_seconds_in(session, states):
        yield run, goodput_of({part: seconds[part] for part in Part})
