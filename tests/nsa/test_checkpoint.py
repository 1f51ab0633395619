import dataclasses
import errno
import json
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from nsa.checkpoint import (
    Snapshot,
    checkpoint_path,
    keep_newest,
    later_checkpoints,
    load_checkpoint,
    load_weights,
    newest_checkpoint,
    save_checkpoint,
    seal_of,
    sweep,
    write_sealed,
)
from nsa.errors import BadConfig

ROOT = Path(__file__).parents[2]

SNAPSHOT = Snapshot(
    step=20,
    next_sequence=80,
    config_digest="abc",
    world_size=2,
    model={"w": torch.arange(6.0)},
    optimizer={"state": {0: {"step": torch.tensor(20.0)}}, "param_groups": []},
    rng=[torch.get_rng_state()] * 2,
)


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    gpu = [torch.arange(16, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8)]
    place = save_checkpoint(tmp_path, dataclasses.replace(SNAPSHOT, device_rng=gpu))
    assert place == checkpoint_path(tmp_path, 20) == tmp_path / "checkpoints" / "step_000020"
    loaded = load_checkpoint(place, 20)
    assert (loaded.step, loaded.next_sequence, loaded.world_size) == (20, 80, 2)
    torch.testing.assert_close(loaded.model["w"], SNAPSHOT.model["w"], rtol=0, atol=0)
    assert torch.equal(loaded.rng[1], SNAPSHOT.rng[1])
    assert all(torch.equal(was, now) for was, now in zip(gpu, loaded.device_rng, strict=True))


def test_the_manifest_lists_every_file_with_size_and_digest(tmp_path: Path) -> None:
    place = save_checkpoint(tmp_path, SNAPSHOT)
    manifest = json.loads((place / "manifest.json").read_text())
    assert (manifest["v"], manifest["step"]) == (1, 20)
    assert set(manifest["files"]) | {"manifest.json"} == {file.name for file in place.iterdir()}
    for name, seal in manifest["files"].items():
        assert seal["bytes"] == (place / name).stat().st_size
        assert len(seal["sha256"]) == 64


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "no_manifest", "bad_json"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: str) -> None:
    place = save_checkpoint(tmp_path, SNAPSHOT)
    file = place / "model.pt"
    data = file.read_bytes()
    if damage == "truncated":
        file.write_bytes(data[:-1])
    elif damage == "flipped":
        file.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif damage == "missing":
        file.unlink()
    elif damage == "no_manifest":
        (place / "manifest.json").unlink()
    else:
        (place / "manifest.json").write_text("{")
    with pytest.raises(BadConfig):
        load_checkpoint(place)


def _seal_anew(place: Path) -> None:
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"] = {name: seal_of(place / name) for name in manifest["files"]}
    (place / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("damage", [b"", b"no archive", "truncated"])
@pytest.mark.parametrize("name", ["model.pt", "rng.pt"])
def test_a_file_that_holds_no_tensors_is_told_in_one_line(
    tmp_path: Path, name: str, damage: Any
) -> None:
    place = save_checkpoint(tmp_path, SNAPSHOT)
    if isinstance(damage, bytes):
        (place / name).write_bytes(damage)
    else:
        (place / name).write_bytes((place / name).read_bytes()[:-200])
    _seal_anew(place)
    with pytest.raises(BadConfig, match=r"cannot read checkpoint .*step_000020: ") as refused:
        load_checkpoint(place)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({}, "weight is missing there, [2, 3] float32 here"),
        ({"weight": torch.zeros(3, 2)}, "weight is [3, 2] float32 there, [2, 3] float32 here"),
        ({"weight": torch.zeros(2, 3).bfloat16()}, "weight is [2, 3] bfloat16 there"),
        ({"weight": 3}, "weight is no tensor there"),
        ({"weight": torch.zeros(2, 3), "x": torch.zeros(1)}, "x is [1] float32 there, missing"),
    ],
)
def test_weights_of_another_model_are_told_by_their_first_difference(
    weights: dict[str, Any], said: str
) -> None:
    model = torch.nn.Linear(3, 2, bias=False)
    before = model.weight.clone()
    with pytest.raises(BadConfig, match=re.escape(said)) as refused:
        load_weights(model, Path("there"), weights)
    assert "\n" not in str(refused.value)
    assert torch.equal(model.weight, before)
    load_weights(model, Path("there"), {"weight": torch.ones(2, 3)})
    assert bool((model.weight == 1).all())


def test_a_checkpoint_of_another_step_than_the_order_says_is_refused(tmp_path: Path) -> None:
    place = save_checkpoint(tmp_path, SNAPSHOT)
    with pytest.raises(BadConfig, match="step 20, not 40"):
        load_checkpoint(place, 40)


@pytest.mark.parametrize("name", ["step_000020.bak", "step_000040 (copy)", "step_best", "step_"])
def test_what_somebody_puts_beside_the_checkpoints_is_none_of_them(
    tmp_path: Path, name: str
) -> None:
    for step in (20, 30):
        save_checkpoint(tmp_path, dataclasses.replace(SNAPSHOT, step=step))
    kept = tmp_path / "checkpoints" / name
    shutil.copytree(checkpoint_path(tmp_path, 20), kept)
    assert newest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 30)
    assert later_checkpoints(tmp_path, 20) == [checkpoint_path(tmp_path, 30)]
    keep_newest(tmp_path, 1)
    assert not checkpoint_path(tmp_path, 20).exists()
    assert (kept / "manifest.json").exists()


def test_a_checkpoint_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    place = save_checkpoint(tmp_path, SNAPSHOT)
    save_checkpoint(tmp_path, dataclasses.replace(SNAPSHOT, model={"w": torch.zeros(6)}))
    assert load_checkpoint(place).model["w"][1] == 1.0


def test_a_refused_write_leaves_nothing_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = save_checkpoint(tmp_path, SNAPSHOT)

    def refuse(value: Any, file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", refuse)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, dataclasses.replace(SNAPSHOT, step=40))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [good.name]
    monkeypatch.undo()
    assert load_checkpoint(good).step == 20


def test_a_full_disk_is_known_by_its_number() -> None:
    with pytest.raises(OSError, match="No space left") as full:
        write_sealed(
            Path("/dev"), {"full": partial(torch.save, {"w": torch.zeros(9999)})}, lambda file: None
        )
    assert full.value.errno == errno.ENOSPC


_SAVE_TWICE = """
import dataclasses, pathlib, sys, torch
from nsa.checkpoint import Snapshot, save_checkpoint
small = Snapshot(step=20, next_sequence=80, config_digest="", world_size=1,
                 model={"w": torch.ones(4)}, optimizer={}, rng=[])
save_checkpoint(pathlib.Path(sys.argv[1]), small)
large = {str(n): torch.ones(2**22) for n in range(8)}
save_checkpoint(pathlib.Path(sys.argv[1]), dataclasses.replace(small, step=40, model=large))
"""


def test_a_process_killed_while_it_writes_leaves_the_last_checkpoint_and_only_a_draft(
    tmp_path: Path,
) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _SAVE_TWICE, str(tmp_path)], cwd=ROOT)
    half = tmp_path / "checkpoints" / ".step_000040.draft" / "model.pt"
    deadline = time.monotonic() + 100
    while not (half.exists() and half.stat().st_size > 2**20):
        assert writer.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    writer.kill()
    writer.wait()
    assert half.stat().st_size < 8 * 2**24  # of some 134 MB
    assert newest_checkpoint(tmp_path).name == "step_000020"
    assert load_checkpoint(newest_checkpoint(tmp_path)).model["w"].sum() == 4
    with pytest.raises(BadConfig, match=r"cannot read checkpoint"):
        load_checkpoint(half.parent)
    sweep(tmp_path)
    assert [place.name for place in (tmp_path / "checkpoints").iterdir()] == ["step_000020"]
