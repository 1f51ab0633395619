"""The identity of files and models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

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


@pytest.fixture(params=[0, 1])
def one_of_two(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process that believes to be a rank of two: nothing is sent to the other."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=2)
    yield request.param
    dist.destroy_process_group()


def odd_model() -> torch.nn.Sequential:
    """195 parameters, which two ranks do not divide."""
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 3))


@pytest.mark.parametrize("original", [True, False], ids=["original parameters", "flat ones"])
@pytest.mark.parametrize("policy", [None, ModuleWrapPolicy({torch.nn.Linear})])
def test_every_rank_counts_the_whole_of_a_model_that_fsdp_1_shards(
    one_of_two: int, policy: ModuleWrapPolicy | None, original: bool
) -> None:
    whole = FullyShardedDataParallel(
        odd_model(),
        device_id=torch.device("cpu"),
        use_orig_params=original,
        auto_wrap_policy=policy,
    )
    assert sum(row.numel() for row in whole.parameters()) < 195, one_of_two
    told = count_model(whole)
    assert (told["params"], told["trainable"], told["backend"]) == (195, 195, "FSDP")


def test_a_parameter_that_zero_3_has_emptied_counts_as_a_whole_one() -> None:
    model = odd_model()
    for row in model.parameters():
        row.ds_numel = row.numel()  # type: ignore[attr-defined]
        row.data = torch.empty(0)
    assert (count_model(model)["params"], count_model(odd_model())["params"]) == (195, 195)
