"""Generation from a cache is the model itself, byte by byte; sampling keeps to its distribution."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.model.generation import Sampling, generate, next_probabilities
from tests.nsa.runs import decided_model

GREEDY = Sampling(temperature=0)
KINDS = {
    "nsa": {},
    "mlp": {"attention": {"compression": "mlp"}},
    "dense": {"attention": {"kind": "dense"}},
}


def _prompt(length, batch=2):
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 8, 41])
def test_logits_from_the_cache_are_those_of_the_whole_sequence(kind, length):
    model, tokens = decided_model(**KINDS[kind]), _prompt(64)
    caches = model.start_caches(2)
    with torch.no_grad():
        wanted = model(tokens)
    for begin, end in ((0, length), *((t, t + 1) for t in range(length, 64))):
        here = model.extend(tokens[:, begin:end], caches)
        torch.testing.assert_close(here, wanted[:, end - 1], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="64 tokens at most, not 65"):
        model.extend(tokens[:, :1], caches)


@pytest.mark.parametrize("kind", ["nsa", "dense"])
@pytest.mark.parametrize("apart", [False, True], ids=["one text", "documents apart"])
def test_greedy_bytes_are_the_likeliest_after_all_before_them(kind, apart):
    packing = {"packing": {"documents_apart": True}} if apart else {}
    model, tokens = decided_model(**KINDS[kind], **packing), _prompt(20)
    if apart:
        tokens[:, [6, 19]] = 0  # a document ends within the prompt, one with it
    for drawn in generate(model, tokens, 12, sampling=GREEDY):
        with torch.no_grad():
            assert torch.equal(drawn, model(tokens)[:, -1].argmax(-1))
        tokens = torch.cat((tokens, drawn[:, None]), dim=1)
    assert tokens.shape == (2, 32)


@pytest.mark.parametrize(("length", "count"), [(0, 4), (65, 1), (60, 5)])
def test_what_does_not_fit_the_model_is_refused(length, count):
    with pytest.raises(ValueError, match=r"at least one byte|exceed the 64 tokens"):
        next(generate(decided_model(), _prompt(length), count))


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    quarters=st.lists(st.integers(-120, 120), min_size=2, max_size=12, unique=True),
    top_k=st.none() | st.integers(1, 14),
    top_p=st.none() | st.floats(0.01, 1.0),
    temperature=st.floats(0.1, 4.0),
)
def test_filters_leave_the_likeliest_bytes_in_proportion(quarters, top_k, top_p, temperature):
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
        share = whole[kept] / whole[kept].sum()
        torch.testing.assert_close(drawn[kept], share, rtol=1e-3, atol=1e-6)
    if top_k is not None:
        assert kept.sum() <= top_k
    elif top_p is not None:
        # The fewest that reach top_p: without the least likely of them it is not reached.
        assert whole[kept].sum() >= top_p - 1e-4
        assert whole[kept].sum() - whole[kept].min() < top_p + 1e-4


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1.0), ("temperature", float("nan")), ("top_k", 0), ("top_p", 0.0),
     ("top_p", 1.1)],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        Sampling(**{name: value})
