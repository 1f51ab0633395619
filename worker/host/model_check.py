"""Checks that the ordered model computes on this host: `python -m nsa.sanity`.

It takes seconds, so it runs beside the other checks. A pass is remembered in
`GONOGO_HOME/sanity.json` for this boot, commit, model, environment and devices.
"""

import json
import logging
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.canonical import digest
from gonogo.contract.order import Order
from gonogo.contract.records import CheckOutcome
from gonogo.device_slots import gpus_of
from gonogo.rundir import RunDir, save_json
from gonogo.supervise.preflight.code import load_git_sha
from gonogo.supervise.processes import boot_id
from worker.host.probe import ProbeStore, read_answer

LIMIT_S = 120.0
_REMEMBERED = 32
_OF_THE_MODEL = ("model", "attention", "dtype", "engine", "packing")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ModelCheck:
    """One check: `start` begins it, `result` waits for it."""

    store: ProbeStore
    order: Order
    run_dir: RunDir
    devices: Sequence[str]
    _process: "subprocess.Popen[bytes] | None" = None
    _known: str | None = None
    _error: str = "nsa.sanity was not started"
    _key: str = field(init=False)

    def __post_init__(self) -> None:
        train = self.order.train
        said: dict[str, Any] = {
            "boot": boot_id(),
            "code": load_git_sha(self.store.root),
            "train": {name: train[name] for name in _OF_THE_MODEL if name in train},
            "env": dict(self.order.env),
            "devices": list(gpus_of(self.devices)),
        }
        self._key = digest(said)

    def start(self) -> None:
        """Begin the check, unless it is known to pass."""
        self._known = self._remembered().get(self._key)
        if self._known is not None:
            return
        order = ("--order", str(self.run_dir.order))
        try:
            self._process = self.store.run(
                "nsa.sanity", gpus_of(self.devices), *order, env=self.order.env
            )
        except OSError as error:
            self._error = f"nsa.sanity cannot be started: {error}"

    def result(self) -> tuple[CheckOutcome, str]:
        """Return the result; a check that could not be made fails on GPUs and warns elsewhere."""
        if self._known is not None:
            return CheckOutcome.PASS, f"{self._known} (known)"
        said = self._finish()
        if said is None:
            return (CheckOutcome.FAIL if gpus_of(self.devices) else CheckOutcome.WARN), self._error
        if said.get("passed") is not True:
            return CheckOutcome.FAIL, f"the ordered model's miniature: {said.get('text')}"
        text = f"forward and backward of the miniature, {said.get('text')}"
        self._remember(text)
        return CheckOutcome.PASS, text

    def _finish(self) -> dict[str, Any] | None:
        process, self._process = self._process, None
        if process is None:
            return None
        found, self._error = read_answer(process, "nsa.sanity", LIMIT_S)
        return found

    def _remembered(self) -> dict[str, str]:
        try:
            found = json.loads((self.store.home / "sanity.json").read_bytes())
        except (OSError, ValueError):
            return {}
        passed = found.get("passed") if isinstance(found, dict) else None
        return passed if isinstance(passed, dict) else {}

    def _remember(self, text: str) -> None:
        rows = [*self._remembered().items(), (self._key, text)][-_REMEMBERED:]
        try:
            save_json(self.store.home / "sanity.json", {"v": 1, "passed": dict(rows)})
        except OSError as error:
            _log.warning("no sanity.json: %s", error, extra={"action": "sanity_unsaved"})
