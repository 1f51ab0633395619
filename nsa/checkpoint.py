"""Write and read checkpoints that are whole or not there.

`checkpoints/step_000020/` holds `model.pt`, `optimizer.pt`, `state.json`, `rng.pt` and, written
last, `manifest.json` with the size and SHA-256 of each. It is written beside its place, synced and
renamed, and never overwritten. Sharded ranks write a part each (`nsa.checkpoint_files`).
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from nsa.checkpoint_files import (
    PEERS_LIMIT_S,
    await_seals,
    leave_seal,
    merged,
    seal_of,
    shard_name,
    sync,
    write_sealed,
)
from nsa.errors import BadConfig

VERSION = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"step_[0-9]{6,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a run needs to resume as if it had not stopped.

    `next_sequence` is the data position: the number of the first sequence not yet trained on. `rng`
    holds one generator state per rank, `device_rng` that of its GPU (empty on CPUs). `corpus` is
    the digest of the training text. `marks` are the places where each lane of a stream resumes,
    empty for other sources. `loss_scale` is that of fp16. `config` is the whole configuration, so
    that the weights can be used without the run. `shapes` is empty unless `model` and `optimizer`
    are one rank's part; then it has the shapes of the whole, by kind and name.
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
    shapes: dict[str, dict[str, list[int]]] = field(default_factory=dict)


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run_dir / "checkpoints" / f"step_{step:06d}"


def begin_draft(run_dir: Path, step: int) -> Path:
    """Make room for a checkpoint, beside its place.

    One is written at a time: any other draft is one that was given up.

    Raises:
        OSError: the file system refused.
    """
    sweep(run_dir)
    draft = _draft(run_dir, step)
    draft.mkdir(parents=True)
    return draft


def save_part(
    run_dir: Path,
    snapshot: Snapshot,
    rank: int,
    after_file: Callable[[Path], None] = lambda file: None,
) -> None:
    """Write what one of several sharded ranks holds, into the draft that rank 0 has begun.

    Raises:
        OSError: the file system refused.
    """
    draft, writers = _draft(run_dir, snapshot.step), _part_writers(snapshot, rank)
    try:
        files = write_sealed(draft, writers, after_file)
    except Exception as refused:
        for name in writers:  # where the disk is full, the seal needs room
            with suppress(OSError):
                (draft / name).unlink()
        with suppress(OSError):  # then rank 0 waits in vain, and says so
            leave_seal(draft, rank, {}, refused)
        raise
    leave_seal(draft, rank, files)


def save_checkpoint(
    run_dir: Path,
    snapshot: Snapshot,
    after_file: Callable[[Path], None] = lambda file: None,
    *,
    begun: bool = False,
    peers_limit_s: float = PEERS_LIMIT_S,
) -> Path:
    """Write a checkpoint; returns its directory, which is whole and durable.

    Args:
        run_dir: whose `checkpoints/` it goes to.
        snapshot: what to write; with `shapes` it is rank 0's part, and the others write theirs.
        after_file: called with each file; what it raises ends the write as a full disk would.
        begun: the draft is there, and others may be writing into it.
        peers_limit_s: how long the others may take when this rank is done.

    Raises:
        OSError: the file system refused; what was there before is untouched.
    """
    place = checkpoint_path(run_dir, snapshot.step)
    if (place / MANIFEST).exists():
        return place
    draft = _draft(run_dir, snapshot.step)
    try:
        if not begun:
            begin_draft(run_dir, snapshot.step)
        files = write_sealed(draft, _writers(snapshot), after_file)
        if snapshot.shapes:
            files |= await_seals(draft, range(1, snapshot.world_size), limit_s=peers_limit_s)
        manifest = {"v": VERSION, "step": snapshot.step, "files": files}
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        sync(draft / MANIFEST)
        sync(draft)
        draft.rename(place)
        sync(place.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return place


def _draft(run_dir: Path, step: int) -> Path:
    place = checkpoint_path(run_dir, step)
    return place.with_name(f".{place.name}.draft")


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
    """The checkpoints of a folder that are newer than `step`, where a run resumes."""
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
    """All checkpoints of a run, oldest first; a copy that somebody put beside them is none."""
    folder = checkpoint_path(run_dir, 0).parent
    return sorted(
        (place for place in folder.glob("step_*") if _NAME.fullmatch(place.name)), key=_step
    )


def _step(place: Path) -> int:
    return int(place.name.removeprefix("step_"))


def load_checkpoint(place: Path, expected_step: int | None = None) -> Snapshot:
    """Read a checkpoint after checking every file against its manifest.

    Raises:
        BadConfig: it is missing, torn, changed since, of another form or of another step.
    """
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        if manifest["v"] != VERSION:
            raise BadConfig(f"checkpoint {place} has version {manifest['v']!r}")
        for name, seal in manifest["files"].items():
            if seal_of(place / name) != seal:
                raise BadConfig(f"checkpoint {place}: {name} is not what its manifest says")
        state = json.loads((place / "state.json").read_text(encoding="utf-8"))
        if expected_step not in (None, state["step"]):
            raise BadConfig(f"checkpoint {place} is of step {state['step']}, not {expected_step}")
        rng = _load(place / "rng.pt")
        return Snapshot(
            step=state["step"],
            next_sequence=state["next_sequence"],
            config_digest=state["config_digest"],
            world_size=state["world_size"],
            model=_load_whole(place, "model", state),
            optimizer=_load_whole(place, "optimizer", state),
            rng=rng["cpu"],
            device_rng=rng["device"],
            corpus=state["corpus"],
            marks=state["marks"],
            loss_scale=state["loss_scale"],
            config=state["config"],
        )
    except (BadConfig, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a damaged file: of json, zip, pickle, struct or torch
        first = str(error).partition("\n")[0]
        raise BadConfig(
            f"cannot read checkpoint {place}: {type(error).__name__}: {first}"
        ) from error


def _writers(snapshot: Snapshot) -> dict[str, Callable[[BinaryIO], Any]]:
    state = {
        "step": snapshot.step,
        "next_sequence": snapshot.next_sequence,
        "config_digest": snapshot.config_digest,
        "world_size": snapshot.world_size,
        "corpus": snapshot.corpus,
        "marks": snapshot.marks,
        "loss_scale": snapshot.loss_scale,
        "config": snapshot.config,
        "shapes": snapshot.shapes,
    }
    rng = {"cpu": snapshot.rng, "device": snapshot.device_rng}
    return {
        **_part_writers(snapshot, 0),
        "rng.pt": lambda file: torch.save(rng, file),
        "state.json": lambda file: file.write(json.dumps(state).encode()),
    }


def _part_writers(snapshot: Snapshot, rank: int) -> dict[str, Callable[[BinaryIO], Any]]:
    states = {"model": snapshot.model, "optimizer": snapshot.optimizer}
    return {
        shard_name(kind, rank) if snapshot.shapes else f"{kind}.pt": partial(torch.save, state)
        for kind, state in states.items()
    }


def _parts(kind: str, state: dict[str, Any]) -> list[str]:
    """The files that hold the model or the optimizer, by rank."""
    if not state["shapes"]:
        return [f"{kind}.pt"]
    return [shard_name(kind, rank) for rank in range(state["world_size"])]


def _load_whole(place: Path, kind: str, state: dict[str, Any]) -> dict[str, Any]:
    parts = [_load(place / name) for name in _parts(kind, state)]
    whole: dict[str, Any] = merged(parts, state["shapes"][kind]) if state["shapes"] else parts[0]
    return whole


def _load(file: Path) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True)


def load_weights(model: nn.Module, place: Path, weights: Mapping[str, Any]) -> None:
    """Give a model the weights of a checkpoint, which must be its own.

    Raises:
        BadConfig: the first that is missing, too much, or of another shape or dtype.
    """
    own = model.state_dict()
    for name in (*own, *(name for name in weights if name not in own)):
        was, now = _shape_of(weights.get(name)), _shape_of(own.get(name))
        if was != now:
            raise BadConfig(
                f"checkpoint {place} does not fit this model: {name} is {was} there, {now} here"
            )
    model.load_state_dict(dict(weights))


def _shape_of(value: Any) -> str:
    """What must be equal, in words."""
    if not isinstance(value, Tensor):
        return "missing" if value is None else "no tensor"
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
