"""The entry point: what it refuses, which backend it takes, and that it says so."""

from __future__ import annotations

import logging

import pytest
import torch

from nsa.attention import BackendUnavailableError, available_backends, nsa_attention
from nsa.attention.backends import _announce


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"w": 2.5}, "whole numbers"),
        ({"n_sel": 4.0}, "whole numbers"),
        ({"l": 10}, "d must divide l"),
        ({"l_sel": 18}, "d must divide l_sel"),
        ({"n_sel": 2}, "n_sel"),
        ({"w": 0}, "at least 1"),
        ({"d": 0}, "at least 1"),
    ],
)
def test_block_sizes_that_do_not_fit_are_refused(wrong, word, small, make_inputs):
    with pytest.raises(ValueError, match=word):
        nsa_attention(**make_inputs(20), **(small | wrong))


def test_groups_must_divide_heads(small, make_inputs):
    with pytest.raises(ValueError, match="H=5 G=2"):
        nsa_attention(**make_inputs(20, H=5), **small)


@pytest.mark.timeout(20)  # what is paid for every pair of strides of a block takes minutes
def test_blocks_far_longer_than_the_sequence_are_one_block(small, make_inputs):
    inputs = make_inputs(40, B=1, D=16, dtype=torch.float32)  # the kernel in C could serve
    whole = nsa_attention(**inputs, **(small | {"l_sel": 64}))
    far = nsa_attention(**inputs, **(small | {"l_sel": 2**20}))
    torch.testing.assert_close(far, whole)


@pytest.mark.parametrize("name", ["k_cmp", "v_sel", "k_win", "gates"])
def test_a_wrong_shape_is_named(name, small, make_inputs):
    inputs = make_inputs(20)
    with pytest.raises(ValueError, match=name):
        nsa_attention(**(inputs | {name: inputs[name][:, :-1]}), **small)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("name", ["k_cmp", "k_sel", "v_win", "gates"])
def test_a_tensor_of_another_device_is_named(name, backend, small, make_inputs):
    inputs = make_inputs(20, D=16, dtype=torch.float32)  # the kernel in C could serve
    elsewhere = inputs | {name: inputs[name].to("meta")}
    with pytest.raises(ValueError, match=rf"{name} must be on cpu as q is, got meta"):
        nsa_attention(**elsewhere, backend=backend, **small)


def test_keys_of_whole_numbers_are_refused(small, make_inputs):
    inputs = make_inputs(20)
    with pytest.raises(ValueError, match=r"k_sel must be floating point, got torch\.int64"):
        nsa_attention(**(inputs | {"k_sel": inputs["k_sel"].long()}), **small)


def test_caller_compressed_keys_of_a_wrong_length_are_refused(small, make_inputs):
    inputs = make_inputs(20)
    wrong = (inputs["k_cmp"], inputs["v_cmp"])
    with pytest.raises(ValueError, match="compressed"):
        nsa_attention(**inputs, compressed=wrong, **small)


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
