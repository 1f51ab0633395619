import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa.checkpoint import Snapshot, checkpoint_path, load_checkpoint, save_checkpoint
from nsa.errors import BadConfig

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
    place = save_checkpoint(tmp_path, SNAPSHOT)
    assert place == checkpoint_path(tmp_path, 20) == tmp_path / "checkpoints" / "step_000020"
    loaded = load_checkpoint(place, 20)
    assert (loaded.step, loaded.next_sequence, loaded.world_size) == (20, 80, 2)
    torch.testing.assert_close(loaded.model["w"], SNAPSHOT.model["w"], rtol=0, atol=0)
    assert torch.equal(loaded.rng[1], SNAPSHOT.rng[1])


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


def test_a_checkpoint_of_another_step_than_the_order_says_is_refused(tmp_path: Path) -> None:
    place = save_checkpoint(tmp_path, SNAPSHOT)
    with pytest.raises(BadConfig, match="step 20, not 40"):
        load_checkpoint(place, 40)


def test_a_checkpoint_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    place = save_checkpoint(tmp_path, SNAPSHOT)
    save_checkpoint(tmp_path, dataclasses.replace(SNAPSHOT, model={"w": torch.zeros(6)}))
    assert load_checkpoint(place).model["w"][1] == 1.0


def test_a_refused_write_leaves_nothing_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = save_checkpoint(tmp_path, SNAPSHOT)

    def refuse(value: Any, file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", refuse)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, dataclasses.replace(SNAPSHOT, step=40))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [good.name]
    monkeypatch.undo()
    assert load_checkpoint(good).step == 20
