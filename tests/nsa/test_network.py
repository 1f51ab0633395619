import pytest

from nsa.network import choose_network
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
def test_two_ranks_on_one_host_use_what_it_has(
    topology: str | None, infiniband: bool, expected: dict[str, str]
) -> None:
    chosen = choose_network(PAIR, topology, infiniband=infiniband)
    assert chosen == {"GLOO_SOCKET_IFNAME": "lo", **expected}


def test_ranks_on_two_hosts_do_not_use_loopback() -> None:
    settings = load_settings({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"})
    assert choose_network(settings, None, infiniband=False) == {}


def test_one_rank_needs_no_network() -> None:
    assert choose_network(load_settings({}), PCIE, infiniband=False) == {}
