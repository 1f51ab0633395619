"""Durable checkpoints of runs, and the checkpoint from which a run begins.

A durable checkpoint is complete, with the very bytes that its manifest names. If the run directory
can be reached from here, the files are read whole, so call this outside of transactions that write.
Otherwise the ticks of the run's watcher say which checkpoints it verified, and the preflight of a
later run may have found one missing.

Taints, what counts against a run because of its checkpoint, stand in the order of each run and
travel with its checkpoints. The database adds the results of the experiment that left it.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from pydantic import ValidationError
from sqlalchemy.orm import Session

from gonogo.contract.decision import PASSING, Verdict
from gonogo.contract.errors import Corrupt, GonogoError
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.observation import CheckpointSeen, Kind
from gonogo.contract.order import ResumePoint, Taint, TaintKind, carried_on
from gonogo.contract.outcome import SHOWN_BY_LINES, OutcomeCode
from gonogo.contract.records import Manifest, Preflight
from gonogo.files import read_plain
from gonogo.judge.gate.built_in import IN_WEIGHTS
from gonogo.rundir import RunDir, is_text, load_sealed
from gonogo.watch.registry import cause_of, shown_by_lines
from service.db.schema import AssessmentRow, ExperimentRow, RunRow
from service.evidence.artifacts import reachable_dir
from service.evidence.files import load_bytes_backwards
from service.experiments.advance import resolved_of
from service.experiments.state import ANSWERS, has_not_passed, load_decided, went_to_its_end
from service.experiments.workers import Host, host_of_run
from service.queries.experiments import load_experiment, phases_of, runs_of
from service.queries.runs import load_findings, load_run

_TICKS = "watch.jsonl"
_SEEN = f'"{Kind.CHECKPOINTS}"'.encode()
_log = logging.getLogger(__name__)


def durable_checkpoints(
    session: Session, run: RunRow, before: int | None = None, *, since: int = 0
) -> Iterator[ResumePoint]:
    """Yield a run's durable checkpoints from `since` to before `before`, the newest first."""
    if run.dir is None:
        return
    steps = range(since, sys.maxsize if before is None else before)
    here = reachable_dir(run)
    if here is not None:
        yield from _verified_here(here, steps)
        return
    for seen in load_seen(session, run):
        place = PurePosixPath(seen.path)
        inside = ".." not in place.parts and not place.is_absolute()
        if seen.verified and inside and seen.step is not None and seen.step in steps:
            yield ResumePoint(
                path=str(run.dir / place), step=seen.step, manifest_sha256=seen.manifest_sha256
            )


def load_seen(session: Session, run: RunRow) -> Iterator[CheckpointSeen]:
    """Yield what the run's watcher reported of its checkpoints, the newest first."""
    for piece in load_bytes_backwards(session, run.id, _TICKS):
        for line in reversed(piece.splitlines() if _SEEN in piece else []):
            if _SEEN not in line:
                continue
            try:
                rows = json.loads(line)["observations"][Kind.CHECKPOINTS]
                seen = [CheckpointSeen.model_validate(row) for row in rows]
            except (ValueError, KeyError, TypeError):
                continue
            yield from sorted(seen, key=lambda row: row.step or 0, reverse=True)


def is_durable(point: ResumePoint, attempts: Iterable[RunRow], before: Host | None = None) -> bool:
    """Say whether a checkpoint that was durable once still is, as far as known.

    `before` is the host that wrote a checkpoint of another experiment.
    """
    folder = Path(point.path)
    if folder.is_dir():
        found = _manifest(folder)
        if found is None or found[0].step != point.step:
            return False
        manifest, sha256 = found
        return point.manifest_sha256 in (None, sha256) and _is_whole(folder, manifest)
    rows = list(attempts)
    holder = holder_of(point, rows)
    if holder is not None and reachable_dir(holder) is not None:
        return False
    return point.path not in found_missing(rows, before)


def found_missing(attempts: Iterable[RunRow], before: Host | None = None) -> set[str]:
    """Return the checkpoints that a preflight did not find on the host that wrote them."""
    rows = list(attempts)
    found = set()
    for run in rows:
        record = _preflight(run)
        if run.resume_from is None or record is None or "resume" not in record.failed():
            continue
        holder = holder_of(run.resume_from, rows)
        wrote_it, looked = before if holder is None else host_of_run(holder), host_of_run(run)
        if wrote_it is None or (looked is not None and wrote_it.is_same(looked)):
            found.add(run.resume_from.path)
    return found


def holder_of(point: ResumePoint, attempts: Iterable[RunRow]) -> RunRow | None:
    """Return the run that wrote a checkpoint, if it is one of these."""
    return next((run for run in attempts if wrote(run, point)), None)


def wrote(run: RunRow, point: ResumePoint) -> bool:
    """Say whether a run has written a checkpoint."""
    return run.dir is not None and PurePosixPath(point.path).is_relative_to(run.dir)


def host_of(point: ResumePoint, attempts: Iterable[RunRow]) -> Host | None:
    """Return the host on which one of these runs wrote a checkpoint."""
    holder = holder_of(point, attempts)
    return None if holder is None else host_of_run(holder)


def host_of_origin(experiment: ExperimentRow) -> Host | None:
    """Return the host of the checkpoint that was taken over from another experiment."""
    name = None if experiment.origin is None else experiment.origin.host
    return None if name is None else Host(name)


def is_unfit(run: RunRow) -> bool:
    """Say whether a preflight found the host of a run unfit, or a full disk ended the run."""
    if run.outcome is not None and run.outcome.code is OutcomeCode.DISK_FULL:
        return True
    record = _preflight(run)
    return record is not None and record.host_is_unfit()


def _preflight(run: RunRow) -> Preflight | None:
    try:
        return Preflight.model_validate(run.preflight)
    except ValidationError:
        return None


def _verified_here(run_dir: RunDir, steps: range) -> Iterator[ResumePoint]:
    """Yield the whole checkpoints by the steps of their manifests; folder names do not count."""
    try:
        folders = [
            path
            for path in run_dir.checkpoints.iterdir()
            if not path.name.startswith(".") and path.is_dir() and is_text(path)
        ]
    except OSError:
        return
    read = [(path, *found) for path in folders if (found := _manifest(path)) is not None]
    wanted = [row for row in read if row[1].step in steps]
    for path, manifest, sha256 in sorted(
        wanted, key=lambda row: (row[1].step, row[0]), reverse=True
    ):
        if _is_whole(path, manifest):
            yield ResumePoint(path=str(path), step=manifest.step, manifest_sha256=sha256)


def _manifest(folder: Path) -> tuple[Manifest, str] | None:
    try:
        return load_sealed(folder / "manifest.json", Manifest)
    except (OSError, Corrupt) as error:
        _refuse(folder, error)
        return None


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    try:
        for name, expected in manifest.files.items():
            path = RunDir(folder).inside(name)
            if path.stat().st_size != expected.bytes or _sha256(path) != expected.sha256:
                raise Corrupt(f"{name} is not what the manifest says")
    except (OSError, GonogoError) as error:
        _refuse(folder, error)
        return False
    return True


def _refuse(folder: Path, error: Exception) -> None:
    _log.warning("checkpoint %s: %s", folder, error, extra={"action": "checkpoint_refused"})


def _sha256(path: Path) -> str:
    with read_plain(path) as stream:
        found = hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]  # an open file
    return found.hexdigest()


def load_resume_points(
    session: Session,
    experiment: ExperimentRow,
    phase: str | None,
    *,
    unpassed: bool = False,
    made_by: Callable[[RunRow], bool] | None = None,
) -> dict[str, ResumePoint]:
    """Return phase → checkpoint from which its next run begins.

    These are the phase itself, and the phase after it if its plan takes the weights of another.
    `unpassed`: it may resume from a run that reached its last step without a GO, as where it has
    become longer. `made_by` says whether the checkpoints of a run fit.
    """
    found: dict[str, ResumePoint] = {}
    if phase is None:
        return found
    plan = resolved_of(experiment).parsed()
    wanted = plan.phase(phase)
    # A run that begins at its last step would have no step to show.
    before = None if unpassed else wanted.steps
    point = _lineage_checkpoint(session, experiment, phase, before=before, made_by=made_by)
    if point is not None and not unpassed:
        holder = holder_of(point, runs_of(session, experiment.id, phase))
        point = None if holder is not None and has_not_passed(holder) else point
    following = plan.next_phase(phase)
    begins = {phase: point or load_weights(session, experiment, wanted.init_from)}
    if following is not None:
        begins[following.name] = load_weights(session, experiment, following.init_from)
    return {name: row for name, row in begins.items() if row is not None}


def load_weights(
    session: Session, experiment: ExperimentRow, init_from: str | None
) -> ResumePoint | None:
    """Return the last weights of the phase `init_from`, as a checkpoint of step 0.

    None if the last weights are not durable: earlier ones are not those that the gate saw.
    """
    if init_from is None:
        return None
    source = _lineage_checkpoint(session, experiment, init_from, over=True)
    return source and source.model_copy(update={"step": 0})


def _lineage_checkpoint(
    session: Session,
    experiment: ExperimentRow,
    phase: str,
    *,
    over: bool = False,
    before: int | None = None,
    made_by: Callable[[RunRow], bool] | None = None,
) -> ResumePoint | None:
    """Return the newest durable checkpoint of a phase's last run, or of a run that it continued.

    Only runs under the patch of the last run count. An inherited phase is looked up in the
    experiment that it was taken over from. `over`: an earlier checkpoint does not stand in for the
    last; `before`: only earlier steps.
    """
    runs = runs_of(session, experiment.id, phase)
    source = None if runs else _inherited_from(session, experiment, phase)
    if source is not None:
        return _lineage_checkpoint(
            session, source, phase, over=over, before=before, made_by=made_by
        )
    attempts, taken_over = runs_of(session, experiment.id), host_of_origin(experiment)
    missing = found_missing(attempts, taken_over)
    counted = [run for run in reversed(runs) if made_by is None or made_by(run)]
    for run in counted:
        if run.change != counted[0].change:
            continue
        points = durable_checkpoints(session, run, before)
        found = next((row for row in points if row.path not in missing), None)
        last = 0 if found is None else found.step
        if over and any((row.step or 0) > last for row in load_seen(session, run)):
            return None
        if found is not None:
            return found
        began = run.resume_from
        if began is None or not began.step:
            held = run.dir is not None or run.state not in (RunState.QUEUED, RunState.ENDED)
            if held or run.reason in ANSWERS:
                return None  # it started from the beginning on purpose
        elif (before is None or began.step < before) and is_durable(began, attempts, taken_over):
            return began
    return None


def _inherited_from(
    session: Session, experiment: ExperimentRow, phase: str
) -> ExperimentRow | None:
    states = {row.name: row.state for row in phases_of(session, experiment.id)}
    if experiment.origin is None or states.get(phase) != PhaseState.INHERITED:
        return None
    return session.get(ExperimentRow, experiment.origin.experiment)


def checkpoints_before(session: Session, run: str, step: int | None) -> Iterator[ResumePoint]:
    """Yield the checkpoints before a step (None: any) with which a rerun may begin, newest first.

    These are its own durable ones, then the one that it began with.
    """
    row = load_run(session, run)
    began = row.resume_from
    yield from durable_checkpoints(session, row, step)
    if began is None or not (step is None or began.step < step):
        return
    attempts = runs_of(session, row.experiment)
    taken_over = host_of_origin(load_experiment(session, row.experiment))
    if not began.step or is_durable(began, attempts, taken_over):
        yield began


def taints_of(session: Session, experiment: ExperimentRow, run: RunRow) -> list[Taint]:
    """Return the taints of a run that is about to be ordered."""
    point = run.resume_from
    if point is None or not point.step:
        return []
    holder = holder_of(point, runs_of(session, experiment.id, run.phase))
    own = [_taint(session, holder)] if holder is not None and has_not_passed(holder) else []
    return carried_on(own, _carried(session, experiment, run.phase, point, holder))


def taints_left(
    session: Session, experiment: ExperimentRow, phase: str, point: ResumePoint
) -> list[Taint]:
    """Return the taints of another experiment's run that resumes from a checkpoint of this one."""
    runs = runs_of(session, experiment.id, phase)
    holder = holder_of(point, runs)
    own = list(_own(session, experiment, runs, point, holder))
    return carried_on(own, _carried(session, experiment, phase, point, holder))


def _carried(
    session: Session,
    experiment: ExperimentRow,
    phase: str,
    point: ResumePoint,
    holder: RunRow | None,
) -> list[Taint]:
    if holder is not None:
        return [Taint.model_validate(row) for row in (holder.order or {}).get("taints", [])]
    origin = experiment.origin
    source = None if origin is None else session.get(ExperimentRow, origin.experiment)
    return [] if source is None else taints_left(session, source, phase, point)


def _taint(session: Session, run: RunRow, kind: TaintKind = TaintKind.UNPASSED) -> Taint:
    source = session.get_one(ExperimentRow, run.experiment)
    steps = resolved_of(source).parsed().phase(run.phase).steps
    by_hand = called(session, source, run.phase)
    verdict = run.verdict if by_hand in (None, Verdict.GO) else by_hand
    code = None if run.outcome is None else had_failed(session, run) or run.outcome.code
    ended = kind is TaintKind.FAILED and not went_to_its_end(run)
    found = code if ended else verdict
    return Taint(
        kind=kind,
        experiment=run.experiment,
        run=run.id,
        step=steps,
        found=None if found is None else found.value,
    )


def _own(
    session: Session,
    experiment: ExperimentRow,
    runs: Sequence[RunRow],
    point: ResumePoint,
    holder: RunRow | None,
) -> Iterator[Taint]:
    if holder is not None and has_not_passed(holder):
        yield _taint(session, holder)
    failed = [run for run in reversed(runs) if _has_failed(session, run)]
    yield from (_taint(session, run, TaintKind.FAILED) for run in failed)
    behind: ResumePoint | None = point
    while behind is not None and (run := holder_of(behind, runs)) is not None:
        if _failed_of(session, run) & IN_WEIGHTS:
            yield _taint(session, run, TaintKind.DRIFTED)
        behind = run.resume_from
    if holder is not None and not failed:
        whole = (Verdict.NO_GO, Verdict.INCONCLUSIVE, Verdict.CONDITIONAL_GO)
        words = whole if went_to_its_end(holder) else (Verdict.NO_GO,)
        if called(session, experiment, holder.phase) in words:
            yield _taint(session, holder)


def _has_failed(session: Session, run: RunRow) -> bool:
    """Say whether a run failed by its lines, or measured what does not pass its gate."""
    measured = has_not_passed(run) and _failed_of(session, run) - IN_WEIGHTS
    return bool(measured) or had_failed(session, run) is not None


def called(session: Session, experiment: ExperimentRow, phase: str) -> Verdict | None:
    """Return a person's verdict about a phase of a finished experiment, if there is one."""
    if experiment.state != ExperimentState.FINISHED:
        return None
    said = load_decided(session, [experiment.id])[experiment.id].overrides
    words = [row.verdict for row in said if row.phase == phase and row.condition is None]
    return words[-1] if words else None


def had_failed(session: Session, run: RunRow) -> OutcomeCode | None:
    """Return how a run failed, by its lines or in its gate, before something else ended it."""
    if run.outcome is None:
        return None
    if run.verdict not in PASSING:
        if run.outcome.code in SHOWN_BY_LINES:
            return run.outcome.code
        halt = shown_by_lines(load_findings(session, run.id))
        if halt is not None:
            return cause_of(halt)
    if went_to_its_end(run):
        return None  # it has a verdict
    failed = not run.judged or _failed_of(session, run) - IN_WEIGHTS
    return run.outcome.code if failed else None


def _failed_of(session: Session, run: RunRow) -> set[str]:
    assessed = session.get(AssessmentRow, run.id)
    return set() if assessed is None else set(assessed.attempt.failed)
