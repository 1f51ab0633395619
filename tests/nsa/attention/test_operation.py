"""The entry point: what it refuses, which backend it takes, and that it says so."""

import logging

import pytest
import torch

from nsa.attention import BackendUnavailableError, available_backends, nsa_attention
from nsa.attention.backends import _announce


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"w": 2.5}, "whole numbers"), ({"l": 10}, "d must divide l"),
        ({"l_sel": 18}, "d must divide l_sel"), ({"n_sel": 2}, "n_sel"), ({"w": 0}, "at least 1"),
        ({"d": 0}, "at least 1"),
    ],
)  # fmt: skip
def test_block_sizes_that_do_not_fit_are_refused(wrong, word, small, make_inputs):
    with pytest.raises(ValueError, match=word):
        nsa_attention(**make_inputs(20), **(small | wrong))


@pytest.mark.timeout(20)  # what is paid for every pair of strides of a block takes minutes
def test_blocks_far_longer_than_the_sequence_are_one_block(small, make_inputs):
    inputs = make_inputs(40, B=1, D=16, dtype=torch.float32)  # the kernel in C could serve
    whole, far = (nsa_attention(**inputs, **(small | {"l_sel": x})) for x in (64, 2**20))
    torch.testing.assert_close(far, whole)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("name", ["k_cmp", "v_sel", "k_win", "gates"])
def test_a_wrong_tensor_is_named(name, backend, small, make_inputs):
    inputs = make_inputs(20, D=16, dtype=torch.float32)  # the kernel in C could serve
    for wrong, why in (
        (inputs[name][:, :-1], "must be"),
        (inputs[name].to("meta"), "must be on cpu as q is, got meta"),
        (inputs[name].long(), r"must be floating point, got torch\.int64"),
    ):
        with pytest.raises(ValueError, match=f"{name} {why}"):
            nsa_attention(**inputs | {name: wrong}, backend=backend, **small)
    with pytest.raises(ValueError, match="H=5 G=2"):
        nsa_attention(**make_inputs(20, H=5), backend=backend, **small)
    blocks = (inputs["k_cmp"], inputs["v_cmp"])
    with pytest.raises(ValueError, match="compressed"):
        nsa_attention(**inputs, compressed=blocks, backend=backend, **small)


@pytest.mark.parametrize("backend", ["triton", "nothing"])
def test_a_backend_that_cannot_serve_says_why_and_what_can(backend, small, make_inputs):
    with pytest.raises(BackendUnavailableError, match=r"(?s)triton|nothing.*available here.*torch"):
        nsa_attention(**make_inputs(20), backend=backend, **small)


def test_available_backends_give_a_reason_for_each_that_cannot_serve():
    reasons = available_backends("cpu")
    assert reasons["reference"] is None
    assert reasons["torch"] is None
    assert reasons["triton"]
    assert available_backends("meta")["torch"]


def test_auto_takes_the_fast_backend_and_says_so_once(small, make_inputs, caplog):
    _announce.cache_clear()
    inputs = make_inputs(90)
    with caplog.at_level(logging.INFO, logger="nsa.attention.backends"):
        outs = [
            nsa_attention(**inputs, backend=name, **small) for name in ("auto", "auto", "torch")
        ]
    assert torch.equal(outs[0], outs[2])
    assert [record.message for record in caplog.records] == ["attention backend for cpu: torch"]


def test_the_result_is_the_output_alone_unless_the_selection_is_asked_for(small, make_inputs):
    inputs = make_inputs(33)
    out = nsa_attention(**inputs, **small)
    pair = nsa_attention(**inputs, return_selection=True, **small)
    assert torch.equal(out, pair[0])
    assert pair[1].shape == (2, 33, 2, small["n_sel"])
    assert not pair[1].requires_grad
