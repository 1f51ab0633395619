import dataclasses
import errno
import json
import re
import shutil
from functools import partial
from pathlib import Path

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

SNAPSHOT = Snapshot(
    step=20,
    next_sequence=80,
    config_digest="abc",
    world_size=2,
    model={"w": torch.arange(6.0)},
    optimizer={"state": {0: {"step": torch.tensor(20.0)}}, "param_groups": []},
    rng=[torch.get_rng_state()] * 2,
    device_rng=[torch.arange(16, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8)],
)


def _names(tmp_path):
    return [path.name for path in (tmp_path / "checkpoints").iterdir()]


def test_a_checkpoint_comes_back_as_it_was_and_its_manifest_lists_every_file(tmp_path):
    place = save_checkpoint(tmp_path, SNAPSHOT)
    assert place == checkpoint_path(tmp_path, 20) == tmp_path / "checkpoints" / "step_000020"
    loaded = load_checkpoint(place, 20)
    assert (loaded.step, loaded.next_sequence, loaded.world_size) == (20, 80, 2)
    torch.testing.assert_close(loaded.model["w"], SNAPSHOT.model["w"], rtol=0, atol=0)
    for was, now in ((SNAPSHOT.rng, loaded.rng), (SNAPSHOT.device_rng, loaded.device_rng)):
        assert all(torch.equal(x, y) for x, y in zip(was, now, strict=True))
    manifest = json.loads((place / "manifest.json").read_text())
    assert (manifest["v"], manifest["step"]) == (1, 20)
    assert set(manifest["files"]) | {"manifest.json"} == {file.name for file in place.iterdir()}
    assert all(seal == seal_of(place / name) for name, seal in manifest["files"].items())
    with pytest.raises(BadConfig, match="step 20, not 40"):
        load_checkpoint(place, 40)
    # What is there is never overwritten.
    save_checkpoint(tmp_path, dataclasses.replace(SNAPSHOT, model={"w": torch.zeros(6)}))
    assert load_checkpoint(place).model["w"][1] == 1.0


DAMAGES = {
    "truncated": lambda data: data[:-1],
    "flipped": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    "missing": None,
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [*(("model.pt", damage) for damage in DAMAGES), ("manifest.json", "missing"),
     ("manifest.json", "truncated")],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused(tmp_path, name, damage):
    file = save_checkpoint(tmp_path, SNAPSHOT) / name
    data, damaged = file.read_bytes(), DAMAGES[damage]
    file.unlink()
    if damaged is not None:
        file.write_bytes(damaged(data))
    with pytest.raises(BadConfig):
        load_checkpoint(file.parent)


@pytest.mark.parametrize("data", [b"", b"no archive", None], ids=["empty", "other", "truncated"])
@pytest.mark.parametrize("name", ["model.pt", "rng.pt"])
def test_a_file_that_holds_no_tensors_is_told_in_one_line(tmp_path, name, data):
    place = save_checkpoint(tmp_path, SNAPSHOT)
    (place / name).write_bytes((place / name).read_bytes()[:-200] if data is None else data)
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"] = {name: seal_of(place / name) for name in manifest["files"]}
    (place / "manifest.json").write_text(json.dumps(manifest))
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
def test_weights_of_another_model_are_told_by_their_first_difference(weights, said):
    model = torch.nn.Linear(3, 2, bias=False)
    before = model.weight.clone()
    with pytest.raises(BadConfig, match=re.escape(said)) as refused:
        load_weights(model, Path("there"), weights)
    assert "\n" not in str(refused.value)
    assert torch.equal(model.weight, before)
    load_weights(model, Path("there"), {"weight": torch.ones(2, 3)})
    assert bool((model.weight == 1).all())


@pytest.mark.parametrize("name", ["step_000020.bak", "step_000040 (copy)", "step_best"])
def test_what_somebody_puts_beside_the_checkpoints_is_none_of_them(tmp_path, name):
    for step in (20, 30):
        save_checkpoint(tmp_path, dataclasses.replace(SNAPSHOT, step=step))
    kept = tmp_path / "checkpoints" / name
    shutil.copytree(checkpoint_path(tmp_path, 20), kept)
    assert newest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 30)
    assert later_checkpoints(tmp_path, 20) == [checkpoint_path(tmp_path, 30)]
    keep_newest(tmp_path, 1)
    assert not checkpoint_path(tmp_path, 20).exists()
    assert (kept / "manifest.json").exists()


def test_a_refused_write_leaves_nothing_and_touches_nothing(tmp_path, monkeypatch):
    good = save_checkpoint(tmp_path, SNAPSHOT)

    def refuse(value, file):
        file.write(b"half")
        # A process killed now leaves the last checkpoint and a draft, which the next run sweeps.
        assert sorted(_names(tmp_path)) == [".step_000040.draft", good.name]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", refuse)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, dataclasses.replace(SNAPSHOT, step=40))
    assert _names(tmp_path) == [good.name]
    monkeypatch.undo()
    assert load_checkpoint(good).step == 20
    (good.parent / ".step_000040.draft").mkdir()
    sweep(tmp_path)
    assert _names(tmp_path) == [good.name]


def test_a_full_disk_is_known_by_its_number():
    full = {"full": partial(torch.save, {"w": torch.zeros(9999)})}
    with pytest.raises(OSError, match="No space left") as refused:
        write_sealed(Path("/dev"), full, lambda file: None)
    assert refused.value.errno == errno.ENOSPC
