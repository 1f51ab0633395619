"""Leases: silent runs are shown as lost and alerted about; nothing is started.

A silent host is not a dead host. Only proof (an exit record, a new boot id, an operator) or the
plan's own `isolated_limit_s` lets another attempt begin. Silence is timed by this process's clock.
After a pause every run has its whole time again. A run that has ended is timed too, until all that
its end promised has come; after `GIVE_UP_S` it is judged by what is here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import AlertType
from gonogo.contract.errors import Unavailable
from gonogo.contract.lifecycle import RunState
from gonogo.contract.outcome import Actor, OutcomeCode
from service.context import Context
from service.db.schema import ProgressRow, RunRow
from service.experiments.advance import give_up_rest
from service.experiments.checkpoints import load_resume_points
from service.experiments.lifecycle import (
    CONDUCTOR,
    Deed,
    lock_run,
    queue_alert,
    record_event,
    with_next,
)
from service.experiments.verbs import Points, replace_run
from service.experiments.workers import hosts_of
from service.judging.ended import is_complete
from service.queries.experiments import load_experiment
from service.queries.runs import load_run

LEASE_S = 30.0
TAKEOVER_AFTER_S = 360.0
"""After `isolated_limit_s`: by then the watcher has ended the run and every process is gone."""
GIVE_UP_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    """A run that a worker holds, or that has ended and is not complete here."""

    run: str
    heard: int
    lost: bool
    isolated_limit_s: float | None = None
    ended: bool = False


class Silence(NamedTuple):
    """A run's counter, and when it was last seen to grow, on the conductor's clock."""

    heard: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What the silence of runs means."""

    lost: tuple[str, ...] = ()
    take_over: tuple[str, ...] = ()
    give_up: tuple[str, ...] = ()


def observe(
    seen: Mapping[str, Silence], living: Sequence[Living], now_mono: float
) -> dict[str, Silence]:
    """Return what is known of each run's silence."""
    fresh = {row.run: Silence(row.heard, now_mono) for row in living}
    return {
        run: seen[run] if run in seen and seen[run].heard == now.heard else now
        for run, now in fresh.items()
    }


def decide(seen: Mapping[str, Silence], living: Sequence[Living], now_mono: float) -> Verdicts:
    """Return which runs are lost now, and which the plan allows to be taken over."""
    silent = {run.run: now_mono - seen[run.run].since for run in living}
    return Verdicts(
        lost=tuple(run.run for run in living if not run.lost and silent[run.run] > LEASE_S),
        take_over=tuple(
            run.run
            for run in living
            if run.isolated_limit_s is not None
            and silent[run.run] > run.isolated_limit_s + TAKEOVER_AFTER_S
        ),
        give_up=tuple(run.run for run in living if run.ended and silent[run.run] > GIVE_UP_S),
    )


class Leases:
    """Watches the silence of runs."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: dict[str, Silence] = {}

    def run_once(self) -> None:
        """Look once, and do what follows."""
        context = self._context
        try:
            living = context.store.read(load_living)
            now_mono = context.mono()
            self._seen = observe(self._seen, living, now_mono)
            found = decide(self._seen, living, now_mono)
            for run in found.lost:
                context.write(CONDUCTOR, mark_lost, run, self._seen[run].heard)
            for run in found.take_over:
                points = context.store.read(partial(_load_points, run=run))
                context.write(CONDUCTOR, take_over_isolated, run, points)
            for run in found.give_up:
                context.write(CONDUCTOR, give_up_silent, run, self._seen[run].heard)
        except Unavailable:
            self.forget()
            raise

    def forget(self) -> None:
        """Time every silence from now on."""
        self._seen = {}


def _load_points(session: Session, run: str) -> Points:
    row = load_run(session, run)
    return load_resume_points(session, load_experiment(session, row.experiment), row.phase)


def load_living(session: Session) -> list[Living]:
    """Return every run that a worker holds, and the ended ones that are not complete."""
    held = RunRow.state.not_in((RunState.QUEUED.value, RunState.ENDED.value))
    owed = (
        (RunRow.state == RunState.ENDED.value)
        & RunRow.judged.is_(False)
        & RunRow.given_up.is_not(True)
    )
    limit_s = RunRow.order["limits"]["isolated_limit_s"].as_float()
    query = (
        select(RunRow.id, RunRow.state, RunRow.lost, ProgressRow.heard, limit_s)
        .join(ProgressRow, ProgressRow.run == RunRow.id)
        .where(held | owed)
    )
    found = []
    for run, state, lost, heard, limit in session.execute(query).all():
        ended = state == RunState.ENDED
        if ended and is_complete(session, load_run(session, run)):
            continue  # the judge has it
        isolated_s = None if ended else limit
        found.append(
            Living(run=run, heard=heard, lost=lost, isolated_limit_s=isolated_s, ended=ended)
        )
    return found


def mark_lost(deed: Deed, run_id: str, heard: int) -> None:
    """Show a run as lost and alert, unless it was heard of in the meantime."""
    experiment, run = lock_run(deed, run_id)
    progress = deed.session.get_one(ProgressRow, run_id, populate_existing=True)
    over = run.state == RunState.QUEUED or run.judged or bool(run.given_up)
    if over or run.lost or progress.heard != heard:
        return
    run.lost = True
    what = (
        "it has ended and cannot be judged before the rest of its files is here"
        if run.state == RunState.ENDED
        else "it may continue there, nothing is started"
    )
    text = (
        f"{experiment.name}, {run.phase}: nothing heard of run {run.id} on {hosts_of(run)}"
        f" for {LEASE_S:g} s; {what}"
    )
    record_event(deed, experiment, "run.lost", run=run, text=text)
    alert = with_next(text, f"show {experiment.id}")
    queue_alert(deed, experiment, AlertType.RUN_LOST, alert, run=run)


def give_up_silent(deed: Deed, run_id: str, heard: int) -> None:
    """Wait no more for the rest of a run, unless it was heard of in the meantime."""
    experiment, run = lock_run(deed, run_id)
    progress = deed.session.get_one(ProgressRow, run_id, populate_existing=True)
    if progress.heard == heard:
        give_up_rest(deed, experiment, run, f"nothing came for {GIVE_UP_S / 3600:g} h")


def take_over_isolated(deed: Deed, run_id: str, points: Points) -> None:
    """End a run whose host was isolated for too long, and queue the next attempt."""
    experiment, run = lock_run(deed, run_id)
    if run.state != RunState.ENDED and run.lost:
        text = f"host {run.host} was isolated for longer than the plan's limit"
        replace_run(deed, experiment, run, OutcomeCode.ISOLATED, Actor.INFRA, text, points)
