"""Generation from a cache is the model itself, byte by byte; sampling keeps to its distribution."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.config import build_config
from nsa.model import LanguageModel, build_model
from nsa.model.generation import Sampling, generate, next_probabilities

GREEDY = Sampling(temperature=0)


def _model(tiny: dict[str, Any], kind: str = "nsa") -> LanguageModel:
    tiny["attention"] |= {"kind": kind} if kind in ("nsa", "dense") else {"compression": kind}
    torch.manual_seed(0)
    model = build_model(build_config(tiny))
    with torch.no_grad():  # a fresh model is nearly indifferent: make it take sides
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and not name.startswith("embedding"):
                parameter *= 8.0
    return model.eval()


def _prompt(length: int, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["nsa", "mlp", "dense"])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 24, 41])
def test_logits_from_the_cache_are_those_of_the_whole_sequence(
    tiny: dict[str, Any], kind: str, length: int
) -> None:
    model, tokens = _model(tiny, kind), _prompt(64)
    caches = model.start_caches(2)
    with torch.no_grad():
        wanted = model(tokens)
    here = model.extend(tokens[:, :length], caches)
    torch.testing.assert_close(here, wanted[:, length - 1], rtol=1e-4, atol=1e-4)
    for t in range(length, 64):
        here = model.extend(tokens[:, t : t + 1], caches)
        torch.testing.assert_close(here, wanted[:, t], rtol=1e-4, atol=1e-4)


def test_greedy_bytes_are_the_likeliest_after_all_before_them(tiny: dict[str, Any]) -> None:
    model, tokens = _model(tiny), _prompt(20)
    for drawn in generate(model, tokens, 30, sampling=GREEDY):
        with torch.no_grad():
            assert torch.equal(drawn, model(tokens)[:, -1].argmax(-1))
        tokens = torch.cat((tokens, drawn[:, None]), dim=1)
    assert tokens.shape == (2, 50)


@pytest.mark.parametrize("kind", ["nsa", "dense"])
def test_documents_apart_are_not_seen_by_the_next(tiny: dict[str, Any], kind: str) -> None:
    model, tokens = _model(tiny | {"packing": {"documents_apart": True}}, kind), _prompt(20)
    for place, byte in ((6, 0), (19, 0)):  # a document ends within the prompt, one with it
        tokens[:, place] = byte
    for drawn in generate(model, tokens, 30, sampling=GREEDY):
        with torch.no_grad():
            assert torch.equal(drawn, model(tokens)[:, -1].argmax(-1))
        tokens = torch.cat((tokens, drawn[:, None]), dim=1)
    assert tokens.shape == (2, 50)


@pytest.mark.parametrize(("length", "count"), [(0, 4), (65, 1), (60, 5)])
def test_what_does_not_fit_the_model_is_refused(
    tiny: dict[str, Any], length: int, count: int
) -> None:
    model = _model(tiny)
    with pytest.raises(ValueError, match=r"at least one byte|exceed the 64 tokens"):
        next(generate(model, _prompt(length), count))


def test_the_cache_refuses_more_tokens_than_the_model_sees(tiny: dict[str, Any]) -> None:
    model = _model(tiny, "dense")
    caches = model.start_caches(1)
    model.extend(_prompt(64, batch=1), caches)
    with pytest.raises(ValueError, match="64 tokens at most, not 65"):
        model.extend(_prompt(1, batch=1), caches)


def test_the_same_generator_draws_the_same_bytes(tiny: dict[str, Any]) -> None:
    model, tokens = _model(tiny), _prompt(8)

    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.stack(list(generate(model, tokens, 20, generator=generator)))

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    quarters=st.lists(st.integers(-120, 120), min_size=2, max_size=12, unique=True),
    top_k=st.none() | st.integers(1, 14),
    top_p=st.none() | st.floats(0.01, 1.0),
    temperature=st.floats(0.1, 4.0),
)
def test_filters_leave_the_likeliest_bytes_in_proportion(
    quarters: list[int], top_k: int | None, top_p: float | None, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    row = torch.tensor([quarters]) / 4  # never nearer than fp32 can resolve
    drawn = next_probabilities(row, sampling)[0].double()
    whole = (row.double() / temperature).softmax(-1)[0]
    kept = drawn > 0
    assert drawn.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert kept[whole.argmax()]
    if not kept.all():
        # What is kept is at least as likely as what is not, to fp32.
        assert whole[kept].min() >= whole[~kept].max() * (1 - 1e-5)
        torch.testing.assert_close(
            drawn[kept], whole[kept] / whole[kept].sum(), rtol=1e-3, atol=1e-6
        )
    if top_k is not None:
        assert kept.sum() <= top_k
    elif top_p is not None:
        # The fewest that reach top_p: without the least likely of them it is not reached.
        assert whole[kept].sum() >= top_p - 1e-4
        assert whole[kept].sum() - whole[kept].min() < top_p + 1e-4


@pytest.mark.parametrize(
    "numbers",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(numbers))):
        Sampling(**numbers)
