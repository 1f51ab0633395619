"""Bits per byte, loss by position and needles are what they say."""

import json
import math
import random
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
from nsa.errors import BadConfig
from nsa.evaluate import TEXT, band_edges, bits_per_byte, by_position, main
from nsa.model import LanguageModel, build_model
from nsa.needle import build_needle, retrieve


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


@pytest.mark.parametrize("length", [1, 40, 64, 65, 150, 200])
def test_every_byte_of_a_text_counts_once_with_half_a_window_before_it(
    model: LanguageModel, length: int
) -> None:
    text = bytes(np.random.default_rng(1).integers(0, 256, length).astype(np.uint8))
    tokens = list(SEPARATOR + text)
    total, S = 0.0, 64
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


@pytest.mark.parametrize("depth", [0.0, 0.3, 0.999])
def test_a_needle_stands_once_and_is_asked_for_at_the_end(depth: float) -> None:
    text = bytes(range(97, 123)) * 20
    hidden, bare = build_needle(text, depth, random.Random(3))
    assert len(hidden) == len(bare) == len(text)
    asked = hidden[hidden.rindex(b"\nThe secret number of") :]
    assert hidden.count(asked) == 2
    assert bare.count(asked) == 1
    assert hidden.endswith(asked)
    assert asked[-5:].isdigit()
    at = hidden.index(asked) / len(text)
    assert abs(at - depth) < 0.2
    with pytest.raises(BadConfig, match="a needle needs"):
        build_needle(text[:60], depth, random.Random(3))


class Copies(torch.nn.Module):
    """Goes on as the same twelve bytes went on before; else with zero.

    Args:
        sight: How many bytes it looks back, at most.
        digits: How many of the five it knows.
    """

    def __init__(self, *, sight: int = 40_000, digits: int = 5) -> None:
        super().__init__()
        self.rotation = torch.zeros(2, 40_000, 1)
        self.sight, self.digits = sight, digits
        self.lengths: set[int] = set()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        text = bytes(tokens[0].tolist())
        self.lengths.add(len(text))
        logits = torch.zeros(1, len(text), 256)
        for at in range(len(text) - 5, len(text) - 5 + self.digits):
            begin = max(0, at - self.sight)
            found = text.find(text[at - 11 : at + 1], begin, at)
            logits[0, at, text[found + 12] if found >= 0 else 0] = 1.0
        return logits


@pytest.mark.parametrize("length", [2048, 4096, 32768])
def test_what_copies_finds_needles_and_the_control_does_not(length: int) -> None:
    copies: Any = Copies()
    told = retrieve(copies, Noise(), length, 8, seed=1)
    assert (told["found"], told["whole"], told["control"]) == (1.0, 1.0, 0.0)
    assert told["found_by_depth"] == [1.0] * 4
    assert copies.lengths == {length - 1}  # all but the byte that is asked for last


def test_what_looks_back_half_a_text_finds_what_lies_in_its_later_half() -> None:
    short_sighted: Any = Copies(sight=1024 + 64)
    told = retrieve(short_sighted, Noise(), 2048, 12, seed=1)
    assert told["found_by_depth"] == [0.0, 0.0, 1.0, 1.0]
    assert (told["found"], told["whole"], told["control"]) == (0.5, 0.5, 0.0)


def test_a_needle_of_which_a_digit_is_missing_is_not_found_whole() -> None:
    forgetful: Any = Copies(digits=4)
    told = retrieve(forgetful, Noise(), 2048, 8, seed=1)
    assert (told["found"], told["whole"]) == (0.8, 0.0)


def test_every_needle_hides_in_a_text_of_its_own() -> None:
    asked = []

    class Counted(Noise):
        def sequence(self, split: str, index: int, length: int) -> Any:
            asked.append(index)
            return super().sequence(split, index, length)

    copies: Any = Copies()
    retrieve(copies, Counted(), 256, 5, seed=1)
    assert asked == [0, 1, 2, 3, 4]


def test_what_was_taught_nothing_finds_no_needle(tiny: dict[str, Any]) -> None:
    long = {**tiny, "model": {**tiny["model"], "seq_len": 128}}
    untaught = build_model(build_config(long)).eval()
    assert retrieve(untaught, Noise(), 128, 2, seed=1)["found"] < 1.0


def test_a_checkpoint_is_evaluated_beyond_its_length_and_as_one_object(
    train_here: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(train={"data": "local_text"}, checkpoint={"every_steps": 4})
    capsys.readouterr()
    run = str(tmp_path / "run")
    assert main([run, "--sequences", "2", "--needle", "128", "256", "--count", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == 4
    assert told["text"]["bytes"] == TEXT.stat().st_size
    assert 5 < told["bits_per_byte"] < 9
    assert [row["length"] for row in told["needle"]] == [128, 256]
    assert 4 < told["by_position"][0]["loss"] < 7
    assert main([run, "--sequences", "2"]) == 0
    without = json.loads(capsys.readouterr().out)
    assert without == {name: told[name] for name in told if name != "needle"}
    assert main([run, "--count", "0"]) == 4
    assert main([run, "--text", str(tmp_path / "gone")]) == 4
    assert main([str(tmp_path / "gone")]) == 4
    assert main([run, "--data", "parquet:/no/such/folder"]) == 5
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
    assert main([run, "--needle", "128"]) == 5
