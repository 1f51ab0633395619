"""A run resumes unchanged, or reports what differs; weights alone are asked for by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import nsa.trainer
from nsa.checkpoint import load_checkpoint, save_checkpoint
from nsa.config import build_config, config_mapping
from nsa.data.make_parquet import write_parquet_folder
from nsa.errors import BadConfig
from nsa.model.transformer import next_byte_loss
from nsa.resume import FREE, differences
from nsa.train import main

TrainHere = Callable[..., list[dict[str, Any]]]
HALF = {"every_steps": 2}


def _documents(count: int) -> list[str]:
    return [f"<{number}>" + "text " * (number % 17) for number in range(count)]


def _resume(tmp_path: Path, step: int = 2) -> dict[str, Any]:
    return {"path": str(tmp_path / "whole" / "checkpoints" / "step_000002"), "step": step}


@pytest.mark.parametrize("change", ["same", "appended", "rewritten", "added"])
def test_a_corpus_that_has_changed_is_not_gone_on_with(
    train_here: TrainHere, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "corpus"
    write_parquet_folder(folder, _documents(80), files=2, rows_per_group=20)
    train = {"data": f"parquet:{folder}"}
    train_here("whole", train=train, checkpoint=HALF)
    if change == "appended":
        write_parquet_folder(folder, _documents(90), files=2, rows_per_group=20)
    elif change == "rewritten":
        documents = _documents(80)
        documents[3], documents[9] = documents[9], documents[3]
        write_parquet_folder(folder, documents, files=2, rows_per_group=20)
    elif change == "added":
        write_parquet_folder(folder / "more", _documents(9), files=1, rows_per_group=20)
    if change == "same":
        rest = train_here("rest", train=train, resume_from=_resume(tmp_path))
        assert rest[-1]["msg"] == "done"
        return
    with pytest.raises(BadConfig, match=r"corpus of parquet:.* is not what the checkpoint was"):
        train_here("rest", train=train, resume_from=_resume(tmp_path))
    fresh = train_here("fresh", train=train, resume_from=_resume(tmp_path, step=0))
    assert [line["step"] for line in fresh if line["msg"] == "progress"] == [1, 2, 3, 4]


def test_a_checkpoint_that_does_not_say_what_it_saw_gives_its_weights_alone(
    train_here: TrainHere, tmp_path: Path
) -> None:
    train_here("whole", checkpoint=HALF)
    saved = load_checkpoint(tmp_path / "whole" / "checkpoints" / "step_000002")
    for number, silent in enumerate((replace(saved, corpus=""), replace(saved, config={}))):
        place = save_checkpoint(tmp_path / f"silent{number}", silent)
        resume = {"path": str(place), "step": 2}
        with pytest.raises(BadConfig, match="does not say what it was trained on"):
            train_here(f"rest{number}", resume_from=resume)
        assert train_here(f"fresh{number}", resume_from={**resume, "step": 0})[-1]["msg"] == "done"


def test_by_hand_another_run_ends_with_4_and_one_line_and_takes_weights_where_told(
    tiny: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny))
    whole = ["--config", str(file), "--out", str(tmp_path / "one")]
    assert main([*whole, "--checkpoint-every", "2"]) == 0
    tiny["attention"]["n_sel"] = 5
    file.write_text(yaml.safe_dump(tiny))
    rest = [
        "--config",
        str(file),
        "--out",
        str(tmp_path / "two"),
        "--resume",
        str(tmp_path / "one"),
    ]
    capfd.readouterr()
    assert main(rest) == 4
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "attention.n_sel was 3, and is 5 now; --weights-only takes its weights alone" in said[0]
    assert main([*rest, "--weights-only"]) == 0
    assert "weights alone of" in (told := capfd.readouterr().err)
    assert "attention.n_sel 3 → 5" in told
    heartbeat = (tmp_path / "two" / "heartbeat_rank0.jsonl").read_text()
    lines = [json.loads(line) for line in heartbeat.splitlines()]
    assert [line["step"] for line in lines if line["msg"] == "progress"] == [1, 2, 3, 4]
    assert main([*whole, "--weights-only"]) == 4
    assert "--weights-only needs --resume" in capfd.readouterr().err


def test_every_key_that_decides_what_is_trained_must_be_what_it_was(tiny: dict[str, Any]) -> None:
    here = config_mapping(
        build_config(tiny | {"attention": tiny["attention"] | {"compression": "mlp"}})
    )
    free = {"model.gradient_checkpointing", "attention.backend"}
    assert free == FREE
    for section in ("model", "attention"):
        for key in here[section]:
            there = here | {section: here[section] | {key: "other"}}
            name = f"{section}.{key}"
            expected = [] if name in free else [(name, "other", here[section][key])]
            assert list(differences(there, here)) == expected
    for name, value in (
        ("data", "local_text"),
        ("seed", 7),
        ("packing", {"documents_apart": True}),
    ):
        assert [told for told, _, _ in differences(here | {name: value}, here)] == [name]


def test_the_random_state_goes_on_where_it_was(
    train_here: TrainHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def draw_and_tell(*arguments: Any) -> torch.Tensor:
        drawn.append(float(torch.rand(())))  # as dropout would
        return next_byte_loss(*arguments)

    monkeypatch.setattr(nsa.trainer, "next_byte_loss", draw_and_tell)
    train_here("whole", checkpoint=HALF)
    whole = drawn.copy()
    drawn.clear()
    train_here("rest", resume_from=_resume(tmp_path))
    assert len(set(whole)) == 4
    assert drawn == whole[2:]
