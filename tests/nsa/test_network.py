import os

import pytest

from nsa.network import choose_network, has_devices, prepare_network
from nsa.settings import load_settings

PAIR = load_settings({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
PCIE = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-31\nGPU1\tPHB\t X \t0-31\n\n  NV#  = bonded\n"
NVLINK = PCIE.replace("PHB", "NV12")


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
