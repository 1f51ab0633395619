"""A run resumes unchanged, or reports what differs; weights alone are asked for by name."""

from dataclasses import replace

import pytest
import torch
import yaml

import nsa.trainer
from nsa.checkpoint import FREE, differences, load_checkpoint, save_checkpoint
from nsa.config import build_config, config_mapping
from nsa.errors import BadConfig
from nsa.model.transformer import next_byte_loss
from nsa.train import main
from tests.nsa.parquet_folder import write_parquet_folder
from tests.nsa.runs import of, read_lines

HALF = {"every_steps": 2}


def _documents(count):
    return [f"<{number}>" + "text " * (number % 17) for number in range(count)]


def _resume(tmp_path, step=2):
    return {"path": str(tmp_path / "whole" / "checkpoints" / "step_000002"), "step": step}


def test_a_corpus_that_has_changed_is_not_gone_on_with(train_here, tmp_path):
    folder, documents = tmp_path / "corpus", _documents(80)
    train = {"data": f"parquet:{folder}"}

    def write(texts, below=folder):
        write_parquet_folder(below, texts, files=2, rows_per_group=20)

    write(documents)
    train_here("whole", train=train, checkpoint=HALF)
    assert of(train_here("same", train=train, resume_from=_resume(tmp_path)), "done")
    swapped = [documents[1], documents[0], *documents[2:]]
    for number, change in enumerate((_documents(90), swapped, None)):
        write(documents if change is None else change)
        if change is None:  # a file that came later
            write(_documents(9), folder / "more")
        with pytest.raises(BadConfig, match=r"corpus of parquet:.* is not what the checkpoint was"):
            train_here(f"rest{number}", train=train, resume_from=_resume(tmp_path))
    fresh = train_here("fresh", train=train, resume_from=_resume(tmp_path, step=0))
    assert [line["step"] for line in of(fresh, "progress")] == [1, 2, 3, 4]


def test_a_checkpoint_that_does_not_say_what_it_saw_gives_its_weights_alone(train_here, tmp_path):
    train_here("whole", checkpoint=HALF)
    saved = load_checkpoint(tmp_path / "whole" / "checkpoints" / "step_000002")
    for number, silent in enumerate((replace(saved, corpus=""), replace(saved, config={}))):
        resume = {"path": str(save_checkpoint(tmp_path / f"silent{number}", silent)), "step": 2}
        with pytest.raises(BadConfig, match="does not say what it was trained on"):
            train_here(f"rest{number}", resume_from=resume)
        assert train_here(f"fresh{number}", resume_from={**resume, "step": 0})[-1]["msg"] == "done"


def test_by_hand_another_run_ends_with_4_and_one_line_and_takes_weights_where_told(
    tiny, tmp_path, capfd
):
    file, one, two = (tmp_path / name for name in ("tiny.yaml", "one", "two"))
    file.write_text(yaml.safe_dump(tiny))
    whole = ["--config", str(file), "--out", str(one)]
    assert main([*whole, "--checkpoint-every", "2"]) == 0
    tiny["attention"]["n_sel"] = 5
    file.write_text(yaml.safe_dump(tiny))
    rest = ["--config", str(file), "--out", str(two), "--resume", str(one)]
    capfd.readouterr()
    assert main(rest) == 4
    (said,) = capfd.readouterr().err.splitlines()
    assert "attention.n_sel was 3, and is 5 now; --weights-only takes its weights alone" in said
    assert main([*rest, "--weights-only"]) == 0
    assert "weights alone of" in (told := capfd.readouterr().err)
    assert "attention.n_sel 3 → 5" in told
    assert [line["step"] for line in of(read_lines(two), "progress")] == [1, 2, 3, 4]
    assert main([*whole, "--weights-only"]) == 4
    assert "--weights-only needs --resume" in capfd.readouterr().err


def test_every_key_that_decides_what_is_trained_must_be_what_it_was(tiny):
    tiny["attention"]["compression"] = "mlp"
    here = config_mapping(build_config(tiny))
    assert {"model.gradient_checkpointing", "attention.backend"} == FREE
    for section in ("model", "attention"):
        for key in here[section]:
            there = here | {section: here[section] | {key: "other"}}
            name = f"{section}.{key}"
            expected = [] if name in FREE else [(name, "other", here[section][key])]
            assert list(differences(there, here)) == expected
    for name in ("data", "seed", "packing"):
        assert [told for told, _, _ in differences(here | {name: "other"}, here)] == [name]


def test_the_random_state_goes_on_where_it_was(train_here, tmp_path, monkeypatch):
    drawn = []

    def draw_and_tell(*arguments):
        drawn.append(float(torch.rand(())))  # as dropout would
        return next_byte_loss(*arguments)

    monkeypatch.setattr(nsa.trainer, "next_byte_loss", draw_and_tell)
    train_here("whole", checkpoint=HALF)
    whole = drawn.copy()
    drawn.clear()
    train_here("rest", resume_from=_resume(tmp_path))
    assert len(set(whole)) == 4
    assert drawn == whole[2:]
