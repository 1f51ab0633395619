"""Bits per byte, loss by position and needles are what they say."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nsa.config import SEPARATOR, build_config
from nsa.data.held_out import split_of
from nsa.data.make_parquet import write_parquet_folder
from nsa.evaluate import band_edges, bits_per_byte, by_position, main
from nsa.model import LanguageModel, build_model


class Noise:
    """Held-out text of a generator."""

    def sequence(self, split: str, index: int, length: int) -> Any:
        assert split == "val"
        return np.random.default_rng(index).integers(97, 123, length + 1).astype(np.uint8)

    def epoch(self, index: int, length: int) -> int:
        return 0

    def digest(self) -> str:
        return ""


@pytest.fixture
def model(tiny: dict[str, Any]) -> LanguageModel:
    torch.manual_seed(0)
    return build_model(build_config(tiny)).eval()


@pytest.mark.parametrize("length", [1, 16, 17, 40])
def test_every_byte_of_a_text_counts_once_with_half_a_window_before_it(
    model: LanguageModel, length: int
) -> None:
    text = bytes(np.random.default_rng(1).integers(0, 256, length).astype(np.uint8))
    tokens = list(SEPARATOR + text)
    total, S = 0.0, 16
    for at in range(length):  # byte by byte, by the windows that the docstring describes
        if at < min(S // 2, length):
            begin = 0
        else:
            begin = max(0, min((at // (S // 2) + 1) * (S // 2), length) - S)
        before = torch.tensor([tokens[begin : at + 1]])
        with torch.no_grad():
            logits = model(before)[0, -1].float()
        total += F.cross_entropy(logits, torch.tensor(tokens[at + 1])).item()
    expected = total / length / math.log(2)
    assert bits_per_byte(model, text, S) == pytest.approx(expected, rel=1e-4)


def test_a_model_that_knows_nothing_needs_eight_bits(model: LanguageModel) -> None:
    torch.nn.init.zeros_(model.head.weight)
    assert bits_per_byte(model, b"any text at all", 64) == pytest.approx(8)


def test_bands_double_and_cover_every_position(model: LanguageModel, tiny: dict[str, Any]) -> None:
    assert band_edges(64) == [0, 64]
    assert band_edges(2048) == [0, 64, 128, 256, 512, 1024, 2048]
    assert band_edges(100) == [0, 64, 100]
    torch.nn.init.zeros_(model.head.weight)
    config = build_config(tiny)
    (band,) = by_position(model, Noise(), config, 3)
    assert (band["from"], band["to"]) == (0, 64)
    assert band["loss"] == pytest.approx(math.log(256), abs=1e-5)


def test_the_loss_of_a_band_is_that_of_its_positions_over_all_sequences(
    tiny: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    longer = {**tiny, "model": {**tiny["model"], "seq_len": 150, "init_std": 0.5}}
    config = build_config(longer)
    model, source = build_model(config).eval(), Noise()
    nats: list[list[float]] = [[] for _ in range(150)]
    for index in range(3):
        tokens = torch.from_numpy(source.sequence("val", index, 150)).long()
        with torch.no_grad():
            chances = model(tokens[None, :-1])[0].double().log_softmax(-1)
        for at in range(150):
            nats[at].append(-chances[at, tokens[at + 1]].item())
    assert [
        (band["from"], band["to"], band["loss"]) for band in by_position(model, source, config, 3)
    ] == [
        (begin, end, pytest.approx(float(np.mean(nats[begin:end])), rel=1e-5))
        for begin, end in ((0, 64), (64, 128), (128, 150))
    ]


def test_a_checkpoint_is_evaluated_as_one_object(
    train_here: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(train={"data": "local_text"}, checkpoint={"every_steps": 4})
    capsys.readouterr()
    run = str(tmp_path / "run")
    text = tmp_path / "text"
    text.write_bytes(b"We hold these truths to be self-evident. " * 5)
    assert main([run, "--sequences", "2", "--text", str(text)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == 4
    assert told["text"]["bytes"] == 205
    assert 5 < told["bits_per_byte"] < 9
    assert 4 < told["by_position"][0]["loss"] < 7
    assert main([run, "--sequences", "0"]) == 4
    assert main([run, "--text", str(tmp_path / "gone")]) == 4
    assert main([str(tmp_path / "gone")]) == 4
    assert main([run, "--text", str(text), "--data", "parquet:/no/such/folder"]) == 5
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.long
def test_where_nothing_is_held_out_the_fixed_text_is_scored_all_the_same(
    train_here: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [f"document {number}, of which there are few. " * 40 for number in range(20)]
    trained_on = [text for text in documents if split_of(text.encode()) == "train"]
    write_parquet_folder(tmp_path / "corpus", trained_on, files=1, rows_per_group=20)
    train_here(train={"data": f"parquet:{tmp_path / 'corpus'}"}, checkpoint={"every_steps": 4})
    capsys.readouterr()
    run = str(tmp_path / "run")
    assert main([run]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert 5 < told["bits_per_byte"] < 9
    assert told["by_position"] is None
    assert "is held out; --data names another text" in printed.err
    assert main([run, "--data", "local_text", "--sequences", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["by_position"]
