"""`python -m nsa.export`: what transformers reads is the model that was trained."""

import json
import re
from importlib.util import find_spec

import pytest
import torch

from nsa.config import build_config
from nsa.export import exported_config, main
from nsa.model.generation import Sampling, generate
from tests.nsa.runs import ROOT, build_trainer, decided_model, tiny, write_order

pytestmark = [
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # transformers warns about itself
]
OPTIONS = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def _exported(folder, **changes):
    """Our model, and the folder that holds it as transformers keeps it."""
    from nsa.attention.hf import NsaConfig, NsaForCausalLM  # seconds, for all who collect tests

    model = decided_model(**changes)
    other = NsaForCausalLM(NsaConfig(**exported_config(build_config(tiny(**changes)))))
    other.load_state_dict(model.state_dict())
    other.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model as transformers keeps it; room for 128 tokens."""
    folder = tmp_path_factory.mktemp("export") / "exported"
    _exported(folder, model={"seq_len": 128})
    return folder


@pytest.fixture
def theirs(folder):
    return _loaded(folder).eval()


def _loaded(folder):
    from nsa.attention.hf import NsaForCausalLM

    return NsaForCausalLM.from_pretrained(folder)


def _tokens(*shape):
    return torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "changes",
    [{}, {"attention": {"compression": "mlp"}, "packing": {"documents_apart": True}}],
    ids=["mean", "mlp, documents apart"],
)
def test_logits_and_generated_bytes_are_those_of_our_model(tmp_path, changes):
    ours = _exported(tmp_path / "exported", **changes)
    theirs = _loaded(tmp_path / "exported").eval()
    tokens = _tokens(2, 20)
    tokens[:, 7] = 0  # equals the padding, and is none
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, ours(tokens))
        loss = theirs(tokens, labels=tokens).loss
        pairs = ours(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(*pairs))
    drawn = torch.stack(list(generate(ours, tokens, 12, sampling=Sampling(temperature=0))), dim=1)
    mask = torch.ones_like(tokens)  # as a tokenizer gives it
    for given in ({"attention_mask": mask}, {"use_cache": False}):
        got = theirs.generate(tokens, max_new_tokens=12, **given, **OPTIONS)
        assert torch.equal(got[:, 20:], drawn)


def test_a_batch_in_parts_trains_as_a_whole_one_does(folder, tmp_path):
    """The Trainer leaves the dividing to models that take any keyword."""
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in _tokens(4, 40)]

    def told(parts):
        arguments = TrainingArguments(
            str(tmp_path / f"of{parts}"), per_device_train_batch_size=4 // parts,
            gradient_accumulation_steps=parts, max_steps=1, logging_steps=1, max_grad_norm=1e9,
            save_strategy="no", report_to=[], use_cpu=True,
        )  # fmt: skip
        model = _loaded(folder)
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train()
        first = trainer.state.log_history[0]
        return first["loss"], first["grad_norm"]

    assert told(parts=2) == pytest.approx(told(parts=1), rel=1e-2)


def test_padding_and_caches_of_another_kind_are_refused(theirs):
    from transformers import DynamicCache

    tokens = torch.ones(1, 8, dtype=torch.int64)
    mask = tokens.clone()
    mask[0, 0] = 0
    for call in (theirs, theirs.generate):
        with pytest.raises(ValueError, match="padding"):
            call(tokens, attention_mask=mask)
        with pytest.raises(ValueError, match=r"past_key_values are a DynamicCache: .*LayerCaches"):
            call(tokens, past_key_values=DynamicCache())


def test_what_the_page_shows_of_transformers_runs_as_it_stands(folder, monkeypatch):
    page = (ROOT / "docs/how-to/nsa-attention.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(folder.parent)
    exec(block.replace("nsa_attention.hf", "nsa.attention.hf"), {})


def _ends_with_4(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 4
    return capsys.readouterr().err.splitlines()[-1]


def test_a_runs_newest_checkpoint_is_written_as_safetensors_and_config(
    train_here, tmp_path, capsys
):
    train_here("trained", checkpoint={"every_steps": 2})
    trained, out = tmp_path / "trained", tmp_path / "exported"
    assert main([str(trained), str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("step 4: ")
    config = json.loads((out / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("nsa", ["NsaForCausalLM"])
    assert config["selected_blocks"] == 3
    assert (out / "model.safetensors").stat().st_size > 10_000
    assert "there already" in _ends_with_4(capsys, trained, out)
    assert "cannot write to" in _ends_with_4(capsys, trained, out / "config.json" / "in a file")
    assert "nowhere" in _ends_with_4(capsys, "/nowhere/at/all", tmp_path / "other")
    assert "required" in _ends_with_4(capsys, "only one")


def test_a_dense_model_is_not_exported(tmp_path, capsys):
    train = {"attention": {"kind": "dense"}, "steps": 1}
    order = write_order(tmp_path, "dense", train=train, checkpoint={"every_steps": 1})
    build_trainer(order).run()
    assert "attention.kind nsa" in _ends_with_4(capsys, order.parent, tmp_path / "out")
