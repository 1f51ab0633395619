"""The held-out loss of a run, bits per byte and loss by position are what they say."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nsa.config import SEPARATOR, build_config
from nsa.data import open_source
from nsa.data.held_out import split_of
from nsa.evaluate import band_edges, bits_per_byte, by_position, main
from nsa.model import build_model
from tests.nsa.parquet_folder import write_parquet_folder
from tests.nsa.runs import build_trainer, of, read_lines


class Noise:
    """Held-out text of a generator."""

    def sequence(self, split, index, length):
        assert split == "val"
        return np.random.default_rng(index).integers(97, 123, length + 1).astype(np.uint8)


@pytest.fixture
def model(tiny):
    torch.manual_seed(0)
    return build_model(build_config(tiny)).eval()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_held_out_loss_is_the_mean_over_every_byte_of_all_its_batches(dtype, make_order):
    train = {"data": "local_text", "dtype": dtype, "batch": {"accumulate": 2}, "steps": 1}
    order = make_order(train={**train, "eval": {"every_steps": 1, "batches": 2}})
    trainer = build_trainer(order)
    trainer.run()
    (told,) = of(read_lines(order.parent), "eval")
    source = open_source("local_text", trainer.config.seed, 4)
    rows = np.stack([source.sequence("val", number, 64) for number in range(8)])
    tokens_NS = torch.from_numpy(rows.astype(np.int64))
    with torch.no_grad(), trainer.rig.compute_dtype():
        logits_NSV = trainer.rig.model(tokens_NS[:, :-1]).float()
    expected = F.cross_entropy(logits_NSV.transpose(1, 2), tokens_NS[:, 1:]).item()
    assert told["val_loss"] == pytest.approx(expected, rel=1e-6)
    assert trainer.rig.model.training


@pytest.mark.parametrize("length", [1, 16, 17, 40])
def test_every_byte_of_a_text_counts_once_with_half_a_window_before_it(model, length):
    text = bytes(np.random.default_rng(1).integers(0, 256, length).astype(np.uint8))
    tokens = list(SEPARATOR + text)
    total, S = 0.0, 16
    for at in range(length):  # byte by byte, by the windows that the docstring describes
        begin = max(0, min((at // (S // 2) + 1) * (S // 2), length) - S)
        begin = 0 if at < min(S // 2, length) else begin
        with torch.no_grad():
            logits = model(torch.tensor([tokens[begin : at + 1]]))[0, -1].float()
        total += F.cross_entropy(logits, torch.tensor(tokens[at + 1])).item()
    assert bits_per_byte(model, text, S) == pytest.approx(total / length / math.log(2), rel=1e-4)


def test_a_model_that_knows_nothing_needs_eight_bits(model):
    torch.nn.init.zeros_(model.head.weight)
    assert bits_per_byte(model, b"any text at all", 64) == pytest.approx(8)


def test_the_loss_of_a_band_is_that_of_its_positions_over_all_sequences(tiny):
    assert band_edges(64) == [0, 64]
    assert band_edges(2048) == [0, 64, 128, 256, 512, 1024, 2048]
    torch.manual_seed(0)
    tiny["model"] |= {"seq_len": 150, "init_std": 0.5}
    config = build_config(tiny)
    model, source = build_model(config).eval(), Noise()
    tokens = torch.stack([torch.from_numpy(source.sequence("val", n, 150)).long() for n in (0, 1)])
    with torch.no_grad():
        chances = model(tokens[:, :-1]).double().log_softmax(-1)
    nats = -chances.gather(-1, tokens[:, 1:, None]).mean((0, 2))
    found = [
        (band["from"], band["to"], band["loss"]) for band in by_position(model, source, config, 2)
    ]
    assert found == [
        (begin, end, pytest.approx(float(nats[begin:end].mean()), rel=1e-5))
        for begin, end in ((0, 64), (64, 128), (128, 150))
    ]


def test_a_checkpoint_is_evaluated_as_one_object(train_here, tmp_path, capsys):
    documents = [f"document {number}, of which there are few. " * 40 for number in range(20)]
    trained_on = [text for text in documents if split_of(text.encode()) == "train"]
    write_parquet_folder(tmp_path / "corpus", trained_on, files=1, rows_per_group=20)
    data = f"parquet:{tmp_path / 'corpus'}"
    train_here(train={"data": data, "steps": 1}, checkpoint={"every_steps": 1})
    capsys.readouterr()
    run, text = str(tmp_path / "run"), tmp_path / "text"
    text.write_bytes(b"We hold these truths to be self-evident. " * 5)
    known = [run, "--text", str(text), "--sequences", "2"]
    assert main([*known, "--data", "local_text"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["text"]["bytes"]) == (1, 205)
    assert 5 < told["bits_per_byte"] < 9
    assert 4 < told["by_position"][0]["loss"] < 7
    assert main(known) == 0  # this corpus holds nothing out
    printed = capsys.readouterr()
    assert json.loads(printed.out)["by_position"] is None
    assert "is held out; --data names another text" in printed.err
    assert main([run, "--sequences", "0"]) == 4
    assert main([run, "--text", str(tmp_path / "gone")]) == 4
    assert main([str(tmp_path / "gone")]) == 4
    assert main([*known, "--data", "parquet:/no/such/folder"]) == 5
    assert "Traceback" not in capsys.readouterr().err
