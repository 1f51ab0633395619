import os

import pytest
import torch

from nsa.attention.kernels import Kernels, asked_kernels, use_kernels
from nsa.attention.precision import exact_products
from nsa.device import (
    choose_device,
    choose_network,
    driver_version,
    has_devices,
    prepare_network,
    prepare_torch,
)
from nsa.errors import BadConfig
from nsa.settings import load_settings

PAIR = load_settings({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
PCIE = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-31\nGPU1\tPHB\t X \t0-31\n\n  NV#  = bonded\n"
NVLINK = PCIE.replace("PHB", "NV12")
RANK_1 = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


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
    settings = load_settings(RANK_1)
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
        prepare_torch(device, load_settings(RANK_1))
        assert (chosen, products.allow_tf32, convolutions.allow_tf32) == ([device], True, True)
        # Attention's own products are exact meanwhile, and the compiler can ask before and after.
        assert torch.get_float32_matmul_precision() == "high"
        with exact_products(device):
            assert products.fp32_precision == "ieee"
        assert products.fp32_precision == "tf32"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


@pytest.mark.parametrize(
    ("topology", "infiniband", "expected"),
    [
        (None, False, {}),
        (PCIE, False, {"NCCL_IB_DISABLE": "1", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}),
        (PCIE, True, {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}),
        (NVLINK, False, {"NCCL_IB_DISABLE": "1"}),
        (NVLINK, True, {}),
    ],
    ids=["cpu", "pcie", "pcie+ib", "nvlink", "nvlink+ib"],
)
def test_two_ranks_on_one_host_use_what_it_has(topology, infiniband, expected):
    chosen = choose_network(PAIR, topology, infiniband=infiniband)
    assert chosen == {"GLOO_SOCKET_IFNAME": "lo", **expected}


def test_a_driver_without_a_device_is_no_infiniband(tmp_path):
    assert not has_devices(tmp_path / "infiniband")
    (tmp_path / "infiniband").mkdir()
    assert not has_devices(tmp_path / "infiniband")
    (tmp_path / "infiniband" / "mlx5_0").mkdir()
    assert has_devices(tmp_path / "infiniband")


def test_one_launch_reads_the_topology_and_records_what_it_has_set(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n[ \"$*\" = 'topo -m' ] && printf '{PCIE}'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    for name in ("NCCL_PROTO", "NCCL_IB_DISABLE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    chosen = prepare_network(PAIR)
    assert chosen["NCCL_PROTO"] == os.environ["NCCL_PROTO"] == "Simple"
    assert "NCCL_ALGO" not in chosen
    assert os.environ["NCCL_ALGO"] == "Tree"


def test_ranks_on_two_hosts_do_not_use_loopback_and_one_rank_needs_no_network():
    apart = load_settings({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"})
    assert choose_network(apart, None, infiniband=False) == {}
    assert choose_network(load_settings({}), PCIE, infiniband=False) == {}


def test_a_driver_is_named_by_its_version_where_there_is_one(tmp_path, monkeypatch):
    gpu, said_by = torch.device("cuda", 0), tmp_path / "version"
    monkeypatch.setattr("nsa.device._DRIVER_VERSION", said_by)
    assert driver_version(gpu) is None
    said_by.write_text("570.86.15\n")
    assert driver_version(gpu) == "570.86.15"
    assert driver_version(torch.device("cpu")) is None
