"""How does a run survive its own end? Checkpoints that are whole or not there.

`checkpoints/step_000020/` holds `model.pt`, `optimizer.pt`, `state.json` (step, data position,
digest of the configuration), `rng.pt` and, written last, `manifest.json` with the size and SHA-256
of each. It is written beside its place, synced, then renamed. A directory that is there is never
overwritten. Whoever reads one checks the manifest first.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsa.errors import BadConfig

VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a run needs to go on as if it had not stopped.

    `next_sequence` is the data position: the number of the first sequence not yet trained on.
    `rng` holds one generator state per rank, `device_rng` that of its GPU (empty on CPUs).
    `corpus` is the digest of what was trained on, `marks` where each lane of a stream goes on
    (empty for sources that need none), `loss_scale` that of fp16, `config` the whole
    configuration, so that the weights can be used without the run.
    """

    step: int
    next_sequence: int
    config_digest: str
    world_size: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    rng: list[Tensor]
    device_rng: list[Tensor] = field(default_factory=list)
    corpus: str = ""
    marks: list[list[int]] = field(default_factory=list)
    loss_scale: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run_dir / "checkpoints" / f"step_{step:06d}"


def save_checkpoint(
    run_dir: Path, snapshot: Snapshot, after_file: Callable[[Path], None] = lambda file: None
) -> Path:
    """Write a checkpoint; returns its directory, which is whole and durable.

    Args:
        run_dir: whose `checkpoints/` it goes to.
        snapshot: what to write.
        after_file: called with each file; what it raises ends the write as a full disk would.

    Raises:
        OSError: the file system refused; what was there before is untouched.
    """
    place = checkpoint_path(run_dir, snapshot.step)
    if (place / MANIFEST).exists():
        return place
    draft = place.with_name(f".{place.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        files = {}
        for name, write in _writers(snapshot).items():
            write(draft / name)
            files[name] = _sealed(draft / name)
            after_file(draft / name)
        manifest = {"v": VERSION, "step": snapshot.step, "files": files}
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _sync(draft / MANIFEST)
        _sync(draft)
        draft.rename(place)
        _sync(place.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return place


def keep_newest(run_dir: Path, count: int) -> None:
    """Delete all but the newest `count` checkpoints of a run.

    A directory is renamed first, so that what bears a checkpoint's name is always whole.

    Raises:
        OSError: the file system refused.
    """
    for place in _checkpoints(run_dir)[:-count]:
        gone = place.with_name(f".{place.name}.gone")
        place.rename(gone)
        shutil.rmtree(gone)


def later_checkpoints(run_dir: Path, step: int) -> list[Path]:
    """The checkpoints of a folder that a run which goes on from `step` cannot have written."""
    return [place for place in _checkpoints(run_dir) if _step(place) > step]


def sweep(run_dir: Path) -> None:
    """Delete what a process that was killed while writing or deleting has left."""
    folder = checkpoint_path(run_dir, 0).parent
    for pattern in (".step_*.draft", ".step_*.gone"):
        for left in folder.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def newest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint of a run's folder; any other folder as it is."""
    places = _checkpoints(folder)
    return places[-1] if places else folder


def _checkpoints(run_dir: Path) -> list[Path]:
    """All checkpoints of a run, oldest first."""
    folder = checkpoint_path(run_dir, 0).parent
    return sorted(folder.glob("step_*"), key=_step)


def _step(place: Path) -> int:
    return int(place.name.removeprefix("step_"))


def load_checkpoint(place: Path, expected_step: int | None = None) -> Snapshot:
    """Read a checkpoint after checking its manifest.

    Raises:
        BadConfig: it is missing, torn, changed since, or of another step.
    """
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        if manifest["v"] != VERSION:
            raise BadConfig(f"checkpoint {place} has version {manifest['v']!r}")
        for name, seal in manifest["files"].items():
            if _seal(place / name) != seal:
                raise BadConfig(f"checkpoint {place}: {name} is not what its manifest says")
        state = json.loads((place / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadConfig(f"cannot read checkpoint {place}: {error!r}") from error
    if expected_step not in (None, state["step"]):
        raise BadConfig(f"checkpoint {place} is of step {state['step']}, not {expected_step}")
    rng = _load(place / "rng.pt")
    if isinstance(rng, list):  # as it was written before GPUs had theirs
        rng = {"cpu": rng, "device": []}
    return Snapshot(
        step=state["step"],
        next_sequence=state["next_sequence"],
        config_digest=state["config_digest"],
        world_size=state["world_size"],
        model=_load(place / "model.pt"),
        optimizer=_load(place / "optimizer.pt"),
        rng=rng["cpu"],
        device_rng=rng["device"],
        corpus=state.get("corpus", ""),
        marks=state.get("marks", []),
        loss_scale=state.get("loss_scale", {}),
        config=state.get("config", {}),
    )


def _writers(snapshot: Snapshot) -> dict[str, Callable[[Path], Any]]:
    state = {
        "step": snapshot.step,
        "next_sequence": snapshot.next_sequence,
        "config_digest": snapshot.config_digest,
        "world_size": snapshot.world_size,
        "corpus": snapshot.corpus,
        "marks": snapshot.marks,
        "loss_scale": snapshot.loss_scale,
        "config": snapshot.config,
    }
    return {
        "model.pt": lambda file: _save(snapshot.model, file),
        "optimizer.pt": lambda file: _save(snapshot.optimizer, file),
        "rng.pt": lambda file: _save({"cpu": snapshot.rng, "device": snapshot.device_rng}, file),
        "state.json": lambda file: file.write_text(json.dumps(state), encoding="utf-8"),
    }


def _save(value: Any, file: Path) -> None:
    """Write through a file of Python's: torch's own tells a full disk as an unexpected position."""
    with file.open("wb") as opened:
        torch.save(value, opened)


def _load(file: Path) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True)


def _sealed(file: Path) -> dict[str, Any]:
    _sync(file)
    return _seal(file)


def _seal(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
