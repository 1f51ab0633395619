import pytest
import torch

from nsa.attention.kernels import Kernels, asked_kernels, use_kernels
from nsa.attention.precision import exact_products
from nsa.device import choose_device, prepare_torch
from nsa.errors import BadConfig
from nsa.settings import load_settings

PAIR = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("asked", "gpus", "expected"),
    [
        ("auto", 0, "cpu"), ("auto", 2, "cuda:1"), ("cpu", 2, "cpu"), ("cuda", 2, "cuda:1"),
        ("auto", 1, None), ("cuda", 0, None),
    ],
)  # fmt: skip
def test_every_local_rank_has_a_device_of_its_own_or_none_trains(
    monkeypatch, asked, gpus, expected
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    settings = load_settings(PAIR)
    if expected is None:
        with pytest.raises(BadConfig, match="2 ranks on this host"):
            choose_device(asked, settings)
    else:
        assert choose_device(asked, settings) == torch.device(expected)


@pytest.mark.parametrize(
    ("environ", "flash", "math"),
    [
        ({}, True, True),
        ({"NSA_SDPA_NO_FLASH": "1"}, False, True),
        ({"NSA_SDPA_FLASH_ONLY": "1"}, True, False),
    ],
    ids=["default", "no-flash", "flash-only"],
)
def test_the_toggles_choose_the_sdpa_kernels(environ, flash, math):
    cuda = torch.backends.cuda
    before = cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()
    try:
        prepare_torch(torch.device("cpu"), load_settings(environ))
        assert (cuda.flash_sdp_enabled(), cuda.math_sdp_enabled()) == (flash, math)
        assert asked_kernels().asked_by == "".join(environ)
        assert torch.get_num_threads() == 1
    finally:
        use_kernels(Kernels())
        cuda.enable_flash_sdp(before[0])
        cuda.enable_math_sdp(before[1])
        cuda.enable_mem_efficient_sdp(before[2])


def test_tf32_is_on_for_products_and_convolutions_of_a_gpu(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    device = torch.device("cuda", 1)
    try:
        products.allow_tf32 = convolutions.allow_tf32 = False
        prepare_torch(device, load_settings(PAIR))
        assert (chosen, products.allow_tf32, convolutions.allow_tf32) == ([device], True, True)
        # Attention's own products are exact meanwhile, and the compiler can ask before and after.
        assert torch.get_float32_matmul_precision() == "high"
        with exact_products(device):
            assert products.fp32_precision == "ieee"
        assert products.fp32_precision == "tf32"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
