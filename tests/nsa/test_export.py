"""`python -m nsa.export`: what transformers reads is the model that was trained."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa.config import build_config
from nsa.export import exported_config, main
from nsa.model import LanguageModel, build_model
from nsa.model.generation import Sampling, generate

pytest.importorskip("transformers")
from transformers import DynamicCache, Trainer, TrainingArguments

from nsa.attention.hf import NsaConfig, NsaForCausalLM

# transformers warns about itself
pytestmark = pytest.mark.filterwarnings("ignore")


def _model(tiny: dict[str, Any]) -> LanguageModel:
    torch.manual_seed(0)
    model = build_model(build_config(tiny)).eval()
    with torch.no_grad():  # a fresh model is nearly indifferent: make it take sides
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and not name.startswith("embedding"):
                parameter *= 8.0
    return model


def _exported(tiny: dict[str, Any], model: LanguageModel, folder: Path) -> NsaForCausalLM:
    other = NsaForCausalLM(NsaConfig(**exported_config(build_config(tiny))))
    other.load_state_dict(model.state_dict())
    other.save_pretrained(folder)
    return NsaForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("apart", [False, True], ids=["one text", "documents apart"])
@pytest.mark.parametrize("compression", ["mean", "mlp"])
def test_logits_and_generated_bytes_are_those_of_our_model(
    tiny: dict[str, Any], tmp_path: Path, compression: str, apart: bool
) -> None:
    tiny["attention"]["compression"] = compression
    if apart:
        tiny["packing"] = {"documents_apart": True}
    ours = _model(tiny)
    theirs = _exported(tiny, ours, tmp_path / "exported")
    tokens = torch.randint(1, 256, (2, 20), generator=torch.Generator().manual_seed(1))
    if apart:
        tokens[:, 7] = 0
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, ours(tokens))
        loss = theirs(tokens, labels=tokens).loss
        wanted = torch.nn.functional.cross_entropy(
            ours(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        )
        torch.testing.assert_close(loss, wanted)
    drawn = torch.stack(list(generate(ours, tokens, 30, sampling=Sampling(temperature=0))), dim=1)
    options = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert torch.equal(theirs.generate(tokens, **options)[:, 20:], drawn)
    assert torch.equal(theirs.generate(tokens, use_cache=False, **options)[:, 20:], drawn)


class _Int8(torch.nn.Module):
    """A layer whose weight is kept in 8 bits, as quantising libraries put it in its place."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.out_features, self.bias = layer.out_features, layer.bias
        self.scale = float(layer.weight.detach().abs().max()) / 127
        rounded = (layer.weight.detach() / self.scale).round().to(torch.int8)
        self.weight = torch.nn.Parameter(rounded, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def test_quantised_it_generates_with_a_cache_what_it_generates_without(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    theirs = _exported(tiny, _model(tiny), tmp_path / "exported")
    for block in theirs.blocks:
        attention = block.attention
        attention.w_q = _Int8(attention.w_q)
        for layers in (attention.w_k, attention.w_v):
            for name in list(layers):
                layers[name] = _Int8(layers[name])
    tokens = torch.randint(1, 256, (2, 20), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    cached, anew = (theirs.generate(tokens, use_cache=use, **options) for use in (True, False))
    assert torch.equal(cached, anew)


def test_it_trains_with_transformers_weights_and_all(tiny: dict[str, Any], tmp_path: Path) -> None:
    theirs = _exported(tiny, _model(tiny), tmp_path / "exported").train()
    tokens = torch.randint(1, 256, (2, 40), generator=torch.Generator().manual_seed(1))
    theirs(tokens, labels=tokens).loss.backward()
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None, name


def test_a_batch_in_parts_trains_as_a_whole_one_does(tiny: dict[str, Any], tmp_path: Path) -> None:
    """The Trainer leaves the dividing to models that take any keyword."""
    pytest.importorskip("accelerate")
    _exported(tiny, _model(tiny), tmp_path / "exported")
    tokens = torch.randint(1, 256, (8, 40), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in tokens]

    def told(parts: int) -> tuple[float, float]:
        arguments = TrainingArguments(
            str(tmp_path / f"of{parts}"),
            per_device_train_batch_size=8 // parts,
            gradient_accumulation_steps=parts,
            max_steps=1,
            logging_steps=1,
            max_grad_norm=1e9,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        )
        model = NsaForCausalLM.from_pretrained(tmp_path / "exported")
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train()
        first = trainer.state.log_history[0]
        return first["loss"], first["grad_norm"]

    assert told(parts=4) == pytest.approx(told(parts=1), rel=1e-2)


def test_padding_is_refused(tiny: dict[str, Any], tmp_path: Path) -> None:
    theirs = _exported(tiny, _model(tiny), tmp_path / "exported")
    tokens, mask = torch.ones(1, 8, dtype=torch.int64), torch.ones(1, 8, dtype=torch.int64)
    mask[0, 0] = 0
    with pytest.raises(ValueError, match="padding"):
        theirs(tokens, attention_mask=mask)
    with pytest.raises(ValueError, match="padding"):
        theirs.generate(tokens, attention_mask=mask, max_new_tokens=2)


def test_what_a_tokenizer_gives_is_generated_from(tiny: dict[str, Any], tmp_path: Path) -> None:
    theirs = _exported(tiny, _model(tiny), tmp_path / "exported")
    tokens = torch.randint(1, 256, (2, 8), generator=torch.Generator().manual_seed(1))
    tokens[:, 3] = 0  # equals the padding, and is none
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    wanted = theirs.generate(tokens, max_new_tokens=9, **options)
    assert torch.equal(theirs.generate(**given, max_new_tokens=9, **options), wanted)


def test_caches_of_another_kind_are_refused_by_name(tiny: dict[str, Any], tmp_path: Path) -> None:
    theirs = _exported(tiny, _model(tiny), tmp_path / "exported")
    text = torch.ones(1, 8, dtype=torch.int64)
    for call in (theirs, theirs.generate):
        with pytest.raises(ValueError, match=r"past_key_values are a DynamicCache: .*LayerCaches"):
            call(text, past_key_values=DynamicCache())


def test_what_the_page_shows_of_transformers_runs_as_it_stands(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/nsa-attention.md").read_text(encoding="utf-8")
    block, _ = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    tiny["model"]["seq_len"] = 128
    _exported(tiny, _model(tiny), tmp_path / "exported")
    monkeypatch.chdir(tmp_path)
    exec(block.replace("nsa_attention.hf", "nsa.attention.hf"), {})


def test_a_runs_newest_checkpoint_is_written_as_safetensors_and_config(
    train_here: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here("trained", checkpoint={"every_steps": 2})
    out = tmp_path / "exported"
    assert main([str(tmp_path / "trained"), str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("step 4: ")
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] == "nsa"
    assert config["architectures"] == ["NsaForCausalLM"]
    assert config["selected_blocks"] == 3
    assert (out / "model.safetensors").stat().st_size > 10_000
    assert main([str(tmp_path / "trained"), str(out)]) == 4
    assert "there already" in capsys.readouterr().err
    assert main([str(tmp_path / "trained"), str(out / "config.json" / "in a file")]) == 4
    told = capsys.readouterr().err.splitlines()
    assert "cannot write to" in told[-1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["/nowhere/at/all", "OUT"], "nowhere"), (["only one"], "required")],
    ids=["no checkpoint", "no folder"],
)
def test_what_cannot_be_exported_says_why(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = [str(tmp_path / "out") if word == "OUT" else word for word in arguments]
    assert main(told) == 4
    assert why in capsys.readouterr().err


def test_a_dense_model_is_not_exported(
    train_here: Callable[..., Any], tiny: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    attention = {**tiny["attention"], "kind": "dense"}
    train_here("dense", train={"attention": attention}, checkpoint={"every_steps": 4})
    assert main([str(tmp_path / "dense"), str(tmp_path / "out")]) == 4
    assert "attention.kind nsa" in capsys.readouterr().err
