import math
from typing import Any

import pytest
import torch

from nsa.attention.rotary import rotate, rotation_table
from nsa.config import build_config
from nsa.model import LanguageModel, build_model
from nsa.model.statistics import gate_health, gate_rows, gate_stats
from nsa.model.transformer import next_byte_loss


def _model(tiny: dict[str, Any], **changes: Any):
    torch.manual_seed(0)
    return build_model(build_config({**tiny, **changes}))


def _tokens(batch: int = 2, length: int = 64) -> torch.Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(1))


def test_a_rotated_score_depends_on_the_distance_only() -> None:
    table = rotation_table(64, 8, 10000.0)
    q, k = torch.randn(2, 1, 1, 2, 8).unbind()

    def score(at_q: int, at_k: int) -> torch.Tensor:
        turned_q = rotate(q, table[:, at_q : at_q + 1])
        return (turned_q * rotate(k, table[:, at_k : at_k + 1])).sum(-1)

    torch.testing.assert_close(score(40, 33), score(12, 5))
    assert not torch.allclose(score(40, 33), score(40, 30))


def test_every_head_is_rotated_by_itself() -> None:
    table = rotation_table(16, 8, 10000.0)
    heads = torch.randn(1, 16, 3, 8)
    together = rotate(heads, table)
    apart = torch.cat([rotate(heads[:, :, n : n + 1], table) for n in range(3)], dim=2)
    torch.testing.assert_close(together, apart, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["nsa", "dense"])
def test_the_future_never_moves_the_past(tiny: dict[str, Any], kind: str) -> None:
    tiny["attention"]["kind"] = kind
    model, tokens = _model(tiny), _tokens()
    with torch.no_grad():
        before = model(tokens)
        for cut in (1, 8, 31, 63):
            changed = tokens.clone()
            changed[:, cut:] = (changed[:, cut:] + 1) % 256
            after = model(changed)
            torch.testing.assert_close(after[:, :cut], before[:, :cut], rtol=0, atol=1e-6)
            assert not torch.allclose(after[:, cut:], before[:, cut:], atol=1e-4)


@pytest.mark.parametrize("attention", [{}, {"compression": "mlp"}, {"kind": "dense"}], ids=str)
def test_every_parameter_gets_a_gradient_that_is_not_small(
    tiny: dict[str, Any], attention: dict[str, str]
) -> None:
    tiny["attention"] |= attention
    model, tokens = _model(tiny), _tokens(length=65)
    next_byte_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # scores are differences of small numbers at the start: the key side is the smallest
        assert parameter.grad.abs().max() > 1e-8, name


def test_the_first_loss_is_near_ln_256(tiny: dict[str, Any]) -> None:
    model, tokens = _model(tiny), _tokens(length=65)
    loss = next_byte_loss(model(tokens[:, :-1]), tokens[:, 1:]).item()
    assert abs(loss - math.log(256)) < 0.5


def test_gradient_checkpointing_changes_no_gradient(tiny: dict[str, Any]) -> None:
    plain, tokens = _model(tiny), _tokens(length=65)
    tiny["model"]["gradient_checkpointing"] = True
    saving = _model(tiny)
    for model in (plain, saving):
        next_byte_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-8)


def test_bf16_computes_on_fp32_parameters(tiny: dict[str, Any]) -> None:
    model, tokens = _model(tiny), _tokens(length=65)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    assert logits.dtype == torch.bfloat16
    loss = next_byte_loss(logits, tokens[:, 1:])
    loss.backward()
    assert loss.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    exact = next_byte_loss(model(tokens[:, :-1]), tokens[:, 1:]).item()
    assert abs(loss.item() - exact) < 0.02


def test_equal_gates_have_entropy_one_and_a_lone_gate_counts_as_collapsed(
    tiny: dict[str, Any],
) -> None:
    model = _model(tiny)
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
    health = _health(model)
    assert health["gate_max"] > 0.99
    assert health["gate_collapse_frac"] == 0.5


@pytest.mark.parametrize("attention", [{}, {"compression": "mlp"}, {"kind": "dense"}], ids=str)
@pytest.mark.parametrize("saving", [False, True], ids=["plain", "checkpointing"])
def test_documents_apart_are_each_as_if_alone(
    tiny: dict[str, Any], attention: dict[str, str], saving: bool
) -> None:
    tiny["attention"] |= attention
    tiny["model"]["gradient_checkpointing"] = saving
    tokens = _tokens().clamp_min(1)
    tokens[0, [4, 30, 31]] = 0  # documents of 5, 26, 1 and 32 bytes
    tokens[1, 63] = 0  # one of 64
    apart = _model(tiny, packing={"documents_apart": True})
    alone = _model(tiny)
    logits = apart(tokens)
    documents = tokens[0].split([5, 26, 1, 32])
    wanted = torch.cat([alone(document[None]) for document in documents], dim=1)
    torch.testing.assert_close(logits[:1], wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[1:], alone(tokens[1:]), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits[:1], alone(tokens[:1]), atol=1e-3)
    for model in (apart, alone):
        model.zero_grad()
    logits.sum().backward()
    (wanted.sum() + alone(tokens[1:]).sum()).backward()
    for a, b in zip(apart.parameters(), alone.parameters(), strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)


def test_the_selection_of_documents_apart_counts_from_their_first_block(
    tiny: dict[str, Any],
) -> None:
    model, tokens = _model(tiny, packing={"documents_apart": True}), _tokens().clamp_min(1)
    tokens[:, 31] = 0
    model.keep_selection(True)
    with torch.no_grad():
        model(tokens)
    selection = model.layers()[0].attention.selection
    assert selection.shape == (2, 64, 2, 3)
    assert torch.equal(selection[:, 32], selection[:, 0])
    assert selection.max() == 3


def _health(model: LanguageModel) -> dict[str, float]:
    return gate_health(gate_rows(gate_stats(model).flatten().tolist()))


def test_no_more_blocks_are_listed_than_a_text_has(tiny: dict[str, Any]) -> None:
    """The list of a query is as long as `n_sel`: gigabytes where somebody means "all"."""
    tokens, losses = _tokens(), []
    for blocks in (tiny["model"]["seq_len"] // tiny["attention"]["l_sel"], 2**24):
        model = _model(tiny, attention={**tiny["attention"], "n_sel": blocks})
        losses.append(next_byte_loss(model(tokens), tokens))
    assert torch.equal(*losses)
