"""Is this host fit for a run that no service gave out? And how is any preflight made?

Each check says pass, warn or fail in a sentence; one fail and the run is not started. A check that
could not be made warns: it never passes for lack of evidence.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gonogo.contract.order import Order
from gonogo.contract.records import Check, CheckOutcome, Preflight
from gonogo.rundir import RunDir, save_json
from gonogo.supervise.devices.look import look_at_devices
from gonogo.supervise.preflight import checks
from gonogo.supervise.preflight.code import load_branch, load_git_sha
from gonogo.supervise.preflight.store import judge_store, measure_store

WITHOUT_SERVICE = ("devices", "disk", "shm", "orphans", "code", "resume", "store")
"""What is checked where nobody but the host itself orders a run."""

_log = logging.getLogger(__name__)


def check_host(
    order: Order, run_dir: RunDir, *, devices: Sequence[str] | None, cwd: Path, node: int = 0
) -> Preflight:
    """Make every check of `WITHOUT_SERVICE`, write `preflight/` and return the record.

    Args:
        order: the run's order.
        run_dir: its directory.
        devices: devices chosen for it; None when there are not enough.
        cwd: folder of the program.
        node: which node of the run this is; those behind the first write `preflight/node{K}/`.
    """
    place = run_dir.preflight_of(node)
    folder = place.parent
    folder.mkdir(parents=True, exist_ok=True)
    look = None if devices is None else look_at_devices(order, devices, None)
    made = make_checks(
        {
            "devices": lambda: checks.check_devices(order, devices, look),
            "disk": lambda: checks.check_disk(order, run_dir.path),
            "shm": lambda: checks.check_shm(),
            "orphans": lambda: checks.check_orphans(order.run, run_dir.path.parent),
            "code": lambda: check_code(cwd, folder, order.files),
            "resume": lambda: checks.check_start(order),
            "store": lambda: check_store(order, run_dir),
        }
    )
    passed = all(check.outcome is not CheckOutcome.FAIL for check in made)
    record = Preflight(passed=passed, checks=made)
    save_json(place, record.wire())
    return record


def check_store(order: Order, run_dir: RunDir) -> tuple[CheckOutcome, str]:
    """Say how fast the run's checkpoints will be written.

    Raises:
        OSError: the store takes nothing.
    """
    return judge_store(measure_store(run_dir.path), checks.checkpoint_bytes(order))


def make_checks(rows: Mapping[str, Callable[[], tuple[CheckOutcome, str]]]) -> list[Check]:
    """Make checks (id → what makes it) in their order; one that cannot be made warns."""
    return [_make(check_id, check) for check_id, check in rows.items()]


def _make(check_id: str, check: Callable[[], tuple[CheckOutcome, str]]) -> Check:
    try:
        outcome, text = check()
    except OSError as error:
        outcome, text = CheckOutcome.WARN, f"could not be checked: {error}"
    if outcome is not CheckOutcome.PASS:
        _log.warning("%s: %s: %s", check_id, outcome, text, extra={"action": "preflight_check"})
    return Check(id=check_id, outcome=outcome, text=text)


def check_code(root: Path, folder: Path, files: Sequence[str] = ()) -> tuple[CheckOutcome, str]:
    """Say which commit the program's folder is at; kept in `git_sha.txt`.

    Args:
        root: folder of the program.
        folder: where it is written.
        files: those whose digests are code identity; where one is not there, nothing is started.
    """
    absent = [name for name in files if not (root / name).is_file()]
    if absent:
        return CheckOutcome.WARN, f"workload.files: {', '.join(absent)}: no such file in {root}"
    sha = load_git_sha(root)
    (folder / "git_sha.txt").write_text(f"{sha or ''}\n")
    if sha is None:
        return CheckOutcome.WARN, f"no git commit can be read in {root}"
    state = "with uncommitted changes" if "+" in sha else "clean"
    branch = load_branch(root)
    return CheckOutcome.PASS, f"{sha}{f' on {branch}' if branch else ''}, {state}"
