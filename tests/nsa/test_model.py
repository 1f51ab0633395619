import math

import pytest
import torch

from nsa.config import build_config
from nsa.model import build_model
from nsa.model.statistics import gate_health, gate_rows, gate_stats
from nsa.model.transformer import next_byte_loss
from tests.nsa.runs import tiny

ATTENTIONS = pytest.mark.parametrize(
    "attention", [{}, {"compression": "mlp"}, {"kind": "dense"}], ids=["nsa", "mlp", "dense"]
)


def _model(**changes):
    torch.manual_seed(0)
    return build_model(build_config(tiny(**changes)))


def _tokens(batch=2, length=64):
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(1))


def _loss(model, tokens):
    return next_byte_loss(model(tokens[:, :-1]), tokens[:, 1:])


@pytest.mark.parametrize("kind", ["nsa", "dense"])
def test_the_future_never_moves_the_past(kind):
    model, tokens = _model(attention={"kind": kind}), _tokens()
    with torch.no_grad():
        before = model(tokens)
        for cut in (1, 8, 31, 63):
            changed = tokens.clone()
            changed[:, cut:] = (changed[:, cut:] + 1) % 256
            after = model(changed)
            torch.testing.assert_close(after[:, :cut], before[:, :cut], rtol=0, atol=1e-6)
            assert not torch.allclose(after[:, cut:], before[:, cut:], atol=1e-4)


@ATTENTIONS
def test_every_parameter_gets_a_gradient_that_is_not_small(attention):
    model = _model(attention=attention)
    loss = _loss(model, _tokens(length=65))
    assert abs(loss.item() - math.log(256)) < 0.5
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # Scores are differences of small numbers at the start: the key side is the smallest.
        assert parameter.grad.abs().max() > 1e-8, name


def test_gradient_checkpointing_changes_no_gradient():
    plain, saving = _model(), _model(model={"gradient_checkpointing": True})
    for model in (plain, saving):
        _loss(model, _tokens(length=65)).backward()
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-8)


def test_bf16_computes_on_fp32_parameters():
    model, tokens = _model(), _tokens(length=65)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    loss = next_byte_loss(logits, tokens[:, 1:])
    loss.backward()
    assert (logits.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    found = [dtype for p in model.parameters() for dtype in (p.dtype, p.grad.dtype)]
    assert set(found) == {torch.float32}
    assert abs(loss.item() - _loss(model, tokens).item()) < 0.02


def _health(model):
    return gate_health(gate_rows(gate_stats(model).flatten().tolist()))


def test_equal_gates_have_entropy_one_and_a_lone_gate_counts_as_collapsed():
    model = _model()
    assert _health(model) == {}
    model.keep_gate_stats(True)
    with torch.no_grad():
        for block in model.layers():
            block.attention.gate.weight.zero_()
        model(_tokens())
        assert _health(model)["gate_entropy"] == pytest.approx(1.0, abs=1e-6)
        bias = model.layers()[0].attention.gate.bias.view(-1, 3)
        bias.copy_(torch.tensor([9.0, -9.0, -9.0]).expand_as(bias))
        model(_tokens())
    assert _health(model)["gate_max"] > 0.99
    assert _health(model)["gate_collapse_frac"] == 0.5


@ATTENTIONS
@pytest.mark.parametrize("saving", [False, True], ids=["plain", "checkpointing"])
def test_documents_apart_are_each_as_if_alone(attention, saving):
    changes = {"attention": attention, "model": {"gradient_checkpointing": saving}}
    tokens = _tokens().clamp_min(1)
    tokens[0, [4, 30, 31]] = 0  # documents of 5, 26, 1 and 32 bytes
    tokens[1, 63] = 0  # one of 64
    apart, alone = _model(**changes, packing={"documents_apart": True}), _model(**changes)
    logits = apart(tokens)
    documents = tokens[0].split([5, 26, 1, 32])
    wanted = torch.cat([alone(document[None]) for document in documents], dim=1)
    torch.testing.assert_close(logits[:1], wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[1:], alone(tokens[1:]), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits[:1], alone(tokens[:1]), atol=1e-3)
    logits.sum().backward()
    (wanted.sum() + alone(tokens[1:]).sum()).backward()
    for a, b in zip(apart.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)


def test_no_more_blocks_are_listed_than_a_text_has():
    """The list of a query is as long as `n_sel`: gigabytes where somebody means "all"."""
    few, all_of_them = (_model(attention={"n_sel": blocks}) for blocks in (8, 2**24))
    assert torch.equal(few(_tokens()), all_of_them(_tokens()))
