"""Write and read checkpoints that are whole or not there, and refuse those of another run.

`checkpoints/step_000020/` holds `model.pt`, `optimizer.pt`, `state.json`, `rng.pt` and, written
last, `manifest.json` with the size and SHA-256 of each. It is written beside its place, synced and
renamed, and never overwritten.

To resume, model, attention, packing, data, seed and corpus must be equal. `FREE` and all other
sections may change. `--weights-only`, or `resume_from` with step 0, starts again from the weights.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor, nn

from nsa.config import AS_IF_ABSENT, TrainConfig, config_mapping
from nsa.errors import BadConfig

VERSION = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"step_[0-9]{6,}")
SECTIONS = ("model", "attention", "packing", "data", "seed")
AS_ABSENT = {"attention.compression": "mean"}
"""What a key that may be left out says then."""
FREE = frozenset(("model.gradient_checkpointing", "attention.backend"))
_HINT = "--weights-only takes its weights alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a run needs to resume as if it had not stopped.

    `next_sequence` is the data position: the number of the first sequence not yet trained on. `rng`
    holds one generator state per rank, `device_rng` that of its GPU (empty on CPUs). `corpus` is
    the digest of the training text. `marks` are the places where each lane of a stream resumes,
    empty for other sources. `loss_scale` is that of fp16. `config` is the whole configuration, so
    that the weights can be used without the run.
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


_IN_STATE = (
    *("step", "next_sequence", "config_digest", "world_size", "corpus", "marks", "loss_scale"),
    "config",
)
"""The fields of `state.json`."""


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run_dir / "checkpoints" / f"step_{step:06d}"


def save_checkpoint(
    run_dir: Path,
    snapshot: Snapshot,
    after_file: Callable[[Path], None] = lambda file: None,
) -> Path:
    """Write a checkpoint whole and durable, or leave what was there; returns its directory."""
    place = checkpoint_path(run_dir, snapshot.step)
    if (place / MANIFEST).exists():
        return place
    draft = place.with_name(f".{place.name}.draft")
    try:
        sweep(run_dir)  # one is written at a time: any other draft was given up
        draft.mkdir(parents=True)
        files = write_sealed(draft, _writers(snapshot), after_file)
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


def write_sealed(
    folder: Path,
    writers: Mapping[str, Callable[[BinaryIO], Any]],
    after_file: Callable[[Path], None],
) -> dict[str, Any]:
    """Write files durably by their writers; returns size and digest of each by name."""
    files = {}
    for name, write in writers.items():
        with (folder / name).open("wb") as opened:
            digested = _Digested(opened)
            try:
                write(cast(BinaryIO, digested))
            except RuntimeError:  # torch's word for a full disk, since it still closes its archive
                if digested.refused is not None:
                    raise digested.refused from None
                raise
            opened.flush()
            os.fsync(opened.fileno())
        files[name] = {"bytes": digested.bytes_written, "sha256": digested.digest.hexdigest()}
        after_file(folder / name)
    return files


class _Digested:
    """A file that is digested while it is written from its beginning to its end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.bytes_written = 0
        self.refused: OSError | None = None

    def write(self, data: Any) -> int:
        self.digest.update(data)
        try:
            written = self._file.write(data)
        except OSError as refused:
            self.refused = refused
            raise
        self.bytes_written += written
        return written

    def flush(self) -> None:
        self._file.flush()


def seal_of(file: Path) -> dict[str, Any]:
    """Size and digest of a file as it is now."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def keep_newest(run_dir: Path, count: int) -> None:
    """Delete all but the newest `count`; renamed first: what bears its name is whole."""
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
    """Read a checkpoint, each file checked by its manifest; BadConfig where it is not whole."""
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
            **{name: state[name] for name in _IN_STATE},
            model=_load(place / "model.pt"),
            optimizer=_load(place / "optimizer.pt"),
            rng=rng["cpu"],
            device_rng=rng["device"],
        )
    except (BadConfig, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a damaged file: of json, zip, pickle, struct or torch
        first = str(error).partition("\n")[0]
        raise BadConfig(
            f"cannot read checkpoint {place}: {type(error).__name__}: {first}"
        ) from error


def _writers(snapshot: Snapshot) -> dict[str, Callable[[BinaryIO], Any]]:
    state = {name: getattr(snapshot, name) for name in _IN_STATE}
    rng = {"cpu": snapshot.rng, "device": snapshot.device_rng}
    return {
        "model.pt": partial(torch.save, snapshot.model),
        "optimizer.pt": partial(torch.save, snapshot.optimizer),
        "rng.pt": partial(torch.save, rng),
        "state.json": lambda file: file.write(json.dumps(state).encode()),
    }


def _load(file: Path) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True)


def load_weights(model: nn.Module, place: Path, weights: Mapping[str, Any]) -> None:
    """Give a model its weights of a checkpoint; BadConfig at the first that does not fit."""
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


def check_same_run(place: str, snapshot: Snapshot, config: TrainConfig) -> None:
    """Raise BadConfig with the first difference from the run that made a checkpoint."""
    if not (snapshot.config and snapshot.corpus):
        raise BadConfig(f"checkpoint {place} does not say what it was trained on; {_HINT}")
    there, here = snapshot.config, config_mapping(config)
    for name, was, now in differences(there, here):
        raise BadConfig(f"checkpoint {place}: {name} was {was!r}, and is {now!r} now; {_HINT}")
    if snapshot.next_sequence != snapshot.step * config.batch.global_seqs:
        raise BadConfig(f"checkpoint {place} was trained with another batch.global_seqs; {_HINT}")
    if snapshot.step > config.steps:
        raise BadConfig(f"checkpoint of step {snapshot.step}, but only {config.steps} ordered")


def check_same_corpus(was: str, now: str, data: str) -> None:
    """Raise BadConfig where the text to resume on is another."""
    if was != now:
        raise BadConfig(
            f"the corpus of {data} is not what the checkpoint was trained on: digest "
            f"{was[:12]} then, {now[:12]} now; {_HINT}"
        )


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """What two configurations train differently: dotted name, value there, value here."""
    for section in SECTIONS:
        was, now = there.get(section), here.get(section)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            for key in (*now, *(key for key in was if key not in now)):
                name = f"{section}.{key}"
                absent = AS_ABSENT.get(name)
                before, after = (absent if x.get(key) is None else x[key] for x in (was, now))
                if before != after and name not in FREE:
                    yield name, before, after
        elif was != now:
            yield section, was, now
    if there.get("data") == here.get("data") == "fineweb_edu":
        revisions = [_revision(mapping) for mapping in (there, here)]
        if revisions[0] != revisions[1]:
            yield "loader.revision", *revisions


def _revision(mapping: Mapping[str, Any]) -> Any:
    return (mapping.get("loader") or AS_IF_ABSENT["loader"])["revision"]
