"""Measures this host's devices and software once a boot and commit: `python -m nsa.probe`.

It takes seconds, so it starts with the worker, and its result is kept in `GONOGO_HOME/probe.json`
(`hosts/{name}/probe.json` for hosts that share a home). All is measured again when the number of
usable cores has changed. It is a process of its own because only nsa imports torch.
"""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gonogo.device_slots import gpus_of
from gonogo.rundir import save_json
from gonogo.supervise.preflight.code import load_git_sha
from gonogo.supervise.processes import boot_id

PROBE_LIMIT_S = 90.0
_ANSWER = re.compile(r"^\{", re.MULTILINE)
"""A program's answer begins here; NCCL may print lines around it."""
_PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "VIRTUAL_ENV", "TMPDIR")

_log = logging.getLogger(__name__)


class Probe(BaseModel):
    """What nsa.probe printed; `error` if it failed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    peak_flops: float | None = None
    devices: list[dict[str, Any]] = []
    torch: str | None = None
    cpus: int | None = None
    """How many cores it could use."""
    collect_env: str | None = None
    error: str | None = None

    @property
    def measured(self) -> frozenset[str]:
        """UUIDs of the GPUs that were measured."""
        return frozenset(str(row["uuid"]) for row in self.devices if row.get("uuid"))

    @property
    def of_cpu(self) -> list[dict[str, Any]]:
        """What was measured of the CPU."""
        return [row for row in self.devices if row.get("device") == "cpu"]

    def knows(self, gpus: Sequence[str]) -> bool:
        """Say whether these GPUs were measured; without any, whether the CPU was."""
        if gpus:
            return self.measured.issuperset(gpus)
        return bool(self.of_cpu) or not self.devices


class _Kept(BaseModel):
    boot_id: str
    git_sha: str | None
    probe: Probe


@dataclass(slots=True)
class ProbeStore:
    """The probe of this boot and commit: `start` measures, `result` waits.

    A GPU is measured when a run gets it for the first time, or when it is free at the worker's
    start; never while another run uses it.
    """

    home: Path
    root: Path
    environ: Mapping[str, str] = field(repr=False)
    host: str | None = None
    """Name of the host, where several share the home."""
    _process: subprocess.Popen[bytes] | None = None
    _measuring: tuple[str, ...] = ()

    def start(self, slots: Sequence[str] = ()) -> None:
        """Begin to measure the GPUs among free slots that are not known; without one, the CPU."""
        kept, gpus = self._kept(), gpus_of(slots)
        if self._process is not None or (kept is not None and kept.knows(gpus)):
            return
        known = frozenset[str]() if kept is None else kept.measured
        gpus = tuple(uuid for uuid in gpus if uuid not in known)
        try:
            self._process = self.run("nsa.probe", gpus)
            self._measuring = gpus
        except OSError as error:
            _log.warning("no probe: %s", error, extra={"action": "probe_failed"})

    def run(
        self, module: str, gpus: Sequence[str], *options: str, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a program of the workload on GPUs of its own, or on none.

        Raises:
            OSError: it cannot be started.
        """
        clean = {name: self.environ[name] for name in _PASSED_ON if name in self.environ}
        return subprocess.Popen(
            [sys.executable, "-m", module, *options],
            cwd=self.root,
            env={**clean, **(env or {}), "CUDA_VISIBLE_DEVICES": ",".join(gpus)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def result(self, slots: Sequence[str] = ()) -> Probe:
        """Return the probe, waiting for it if it must be; failures are not kept.

        Args:
            slots: what a run gets: those that nobody measured are measured now.
        """
        if self._process is not None:  # one that is under way may be of other devices
            self._finish()
        kept = self._kept()
        if kept is not None and kept.knows(gpus_of(slots)):
            return kept
        self.start(slots)
        return self._finish()

    def _finish(self) -> Probe:
        process, self._process = self._process, None
        if process is None:
            return Probe(error="nsa.probe cannot be started")
        found, error = read_answer(process, "nsa.probe", PROBE_LIMIT_S)
        return Probe(error=error) if found is None else self._keep(found)

    def stop(self) -> None:
        """End a measurement that is still under way."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _keep(self, found: dict[str, Any]) -> Probe:
        try:
            said_now = Probe.model_validate(found)
        except ValidationError:
            return Probe(error="nsa.probe printed something that is not a probe")
        probe = _added(self._kept(), said_now, self._measuring)
        kept = {"v": 1, "boot_id": boot_id(), "git_sha": load_git_sha(self.root)}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_json(self._path, {**kept, "probe": probe.model_dump(mode="json")})
        except OSError as error:
            _log.warning("no probe.json: %s", error, extra={"action": "probe_unsaved"})
        return probe

    @property
    def _path(self) -> Path:
        folder = self.home if self.host is None else self.home / "hosts" / self.host
        return folder / "probe.json"

    def _kept(self) -> Probe | None:
        """Return the kept probe, when it is of this boot and commit, and of as many cores."""
        try:
            kept = _Kept.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError, json.JSONDecodeError):
            return None
        now = (boot_id(), load_git_sha(self.root), len(os.sched_getaffinity(0)))
        return kept.probe if (kept.boot_id, kept.git_sha, kept.probe.cpus) == now else None


def read_answer(
    process: "subprocess.Popen[bytes]", program: str, limit_s: float
) -> tuple[dict[str, Any] | None, str]:
    """Wait for a program of the workload; return its JSON answer, or why there is none.

    Args:
        process: started by `ProbeStore.run`; it is killed when the time is up.
        limit_s: how long to wait, in seconds.
    """
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, f"{program} did not answer within {limit_s:g} s"
    if process.returncode != 0:
        said = (err or out).decode("utf-8", "replace").strip().splitlines()
        return None, f"{program} ended with {process.returncode}: {said[-1] if said else 'no word'}"
    text = out.decode("utf-8", "replace")
    begins = _ANSWER.search(text)
    try:
        found, _ = json.JSONDecoder().raw_decode(text, begins.start() if begins else 0)
    except ValueError:
        found = None
    return (found, "") if isinstance(found, dict) else (None, f"{program} printed something else")


def _added(before: Probe | None, now: Probe, gpus: Sequence[str]) -> Probe:
    """Return a probe with what was measured before, and the UUIDs of what was measured now."""
    rows = [dict(row) for row in now.devices]
    for row, uuid in zip(rows, gpus, strict=False):
        if str(row.get("device")).startswith("cuda"):
            row["uuid"] = uuid
    known = {row.get("uuid") for row in rows}
    old = [] if before is None else [row for row in before.devices if row.get("uuid") not in known]
    rows = [*(row for row in old if row.get("uuid")), *rows]
    peaks = [row["peak_flops"] for row in rows if row.get("peak_flops") is not None]
    return now.model_copy(
        update={"devices": rows, "peak_flops": sum(peaks) if peaks else now.peak_flops}
    )
