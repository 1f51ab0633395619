"""The identity of files and models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gonogo.trainer.identity import count_model, digest_files


@pytest.fixture
def order(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "model.py").write_text("")
    return {"cwd": str(tmp_path), "files": ["train.py", "model.py"]}


def test_the_same_files_have_the_same_digest(order: dict[str, object]) -> None:
    assert digest_files(order) == digest_files(dict(order))
    assert str(digest_files(order)["git_sha"]).startswith("files-")
    assert len(str(digest_files(order)["git_sha"])) == 46


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "train.py").write_text("print(2)"),
        lambda folder: (folder / "model.py").write_text(" "),
    ],
)
def test_any_change_of_a_file_changes_it(order: dict[str, object], change: object) -> None:
    before = digest_files(order)
    change(Path(str(order["cwd"])))  # type: ignore[operator]
    assert digest_files(order) != before


def odd_model() -> torch.nn.Sequential:
    """195 parameters, which two ranks do not divide."""
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 3))


def test_a_model_that_fsdp_1_shards_is_not_counted() -> None:
    kind = type("FullyShardedDataParallel", (torch.nn.Sequential,), {})
    told = count_model(kind(odd_model()))
    assert (told.get("params"), told["backend"]) == (None, "FSDP")


def test_a_parameter_that_zero_3_has_emptied_counts_as_a_whole_one() -> None:
    model = odd_model()
    for row in model.parameters():
        row.ds_numel = row.numel()  # type: ignore[attr-defined]
        row.data = torch.empty(0)
    assert (count_model(model)["params"], count_model(odd_model())["params"]) == (195, 195)
