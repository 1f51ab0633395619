"""What are this host's devices and software? `python -m nsa.probe`, run once a boot and commit.

It takes seconds (torch is loaded, a matrix product is measured), so it starts with the worker and
its answer is kept in `GONOGO_HOME/probe.json`. Only nsa imports torch, hence the other process.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gonogo.rundir import save_json
from gonogo.supervise.preflight.code import load_git_sha
from gonogo.supervise.processes import boot_id

PROBE_LIMIT_S = 90.0
_PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "VIRTUAL_ENV", "TMPDIR")

_log = logging.getLogger(__name__)


class Probe(BaseModel):
    """What nsa.probe said; `error` instead, when it could not."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    peak_flops: float | None = None
    devices: list[dict[str, Any]] = []
    torch: str | None = None
    collect_env: str | None = None
    error: str | None = None


class _Kept(BaseModel):
    boot_id: str
    git_sha: str | None
    probe: Probe


@dataclass(slots=True)
class ProbeStore:
    """The probe of this boot and commit: measured by `start`, waited for by `result`."""

    home: Path
    root: Path
    environ: Mapping[str, str] = field(repr=False)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin to measure, unless that is known or under way."""
        if self._process is not None or self._kept() is not None:
            return
        clean = {name: self.environ[name] for name in _PASSED_ON if name in self.environ}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nsa.probe"],
                cwd=self.root,
                env=clean,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            _log.warning("no probe: %s", error, extra={"action": "probe_failed"})

    def result(self) -> Probe:
        """Return the probe, waiting for it if it must be; failures are not kept."""
        kept = self._kept()
        if kept is not None:
            return kept
        self.start()
        process, self._process = self._process, None
        if process is None:
            return Probe(error="nsa.probe cannot be started")
        try:
            out, err = process.communicate(timeout=PROBE_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Probe(error=f"nsa.probe did not answer within {PROBE_LIMIT_S:g} s")
        return self._keep(process.returncode, out, err)

    def stop(self) -> None:
        """End a measurement that is still under way."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _keep(self, code: int, out: bytes, err: bytes) -> Probe:
        if code != 0:
            said = (err or out).decode("utf-8", "replace").strip().splitlines()
            return Probe(error=f"nsa.probe ended with {code}: {said[-1] if said else 'no word'}")
        try:
            probe = Probe.model_validate_json(out)
        except ValidationError:
            return Probe(error="nsa.probe said something else than a probe")
        kept = {"v": 1, "boot_id": boot_id(), "git_sha": load_git_sha(self.root)}
        try:
            save_json(self.home / "probe.json", {**kept, "probe": probe.model_dump(mode="json")})
        except OSError as error:
            _log.warning("no probe.json: %s", error, extra={"action": "probe_unsaved"})
        return probe

    def _kept(self) -> Probe | None:
        """Return the kept probe, when it is of this boot and commit."""
        try:
            kept = _Kept.model_validate_json((self.home / "probe.json").read_bytes())
        except (OSError, ValidationError, json.JSONDecodeError):
            return None
        current = kept.boot_id == boot_id() and kept.git_sha == load_git_sha(self.root)
        return kept.probe if current else None
