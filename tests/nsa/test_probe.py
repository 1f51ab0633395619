"""Does the probe say what the devices do, and does one product always give the same bits?"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from nsa.node import _all_reduce, check_node
from nsa.probe import measure_device

CPU = torch.device("cpu")


def test_devices_are_measured_together_and_compute_the_same() -> None:
    found = check_node([CPU, CPU], load_s=0.05)
    assert [row["device"] for row in found["devices"]] == ["cpu", "cpu"]
    assert all(row["flops"] > 0 for row in found["devices"])
    sums = {one for row in found["devices"] for one in row["checksums"]}
    assert len(sums) == 1
    assert found["all_reduce_gb_s"] is None
    assert found["p2p_gb_s"] == [[None, None], [None, None]]


def test_other_bits_give_another_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    before = check_node([CPU], load_s=0.01)["devices"][0]["checksums"][0]
    product = torch.mm

    def sick(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        product(a, b, out=out)
        out.view(torch.int32)[3, 4] ^= 1  # the last bit of one number
        return out

    monkeypatch.setattr(torch, "mm", sick)
    assert check_node([CPU], load_s=0.01)["devices"][0]["checksums"][0] != before


def test_without_nccl_no_all_reduce_is_measured() -> None:
    if torch.distributed.is_nccl_available():
        pytest.skip("this PyTorch has NCCL")
    assert _all_reduce([torch.device("cuda", 0), torch.device("cuda", 1)]) is None


def test_a_kernel_that_fails_on_one_device_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr("nsa.node._Work.sustain", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        check_node([CPU, CPU], load_s=0.01)


@pytest.mark.long
def test_the_longer_probe_is_one_json_object() -> None:
    command = [sys.executable, "-m", "nsa.probe", "--node"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)["node"]["devices"]
    assert row["checksums"][0] == row["checksums"][1]


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16])
def test_the_format_counts_in_which_a_cpu_is_faster(
    faster: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def product(a: torch.Tensor) -> float:
        return 2 * len(a) ** 3 / (8e9 if a.dtype is faster else 1e9)

    monkeypatch.setattr("nsa.probe._time_product", product)
    found = measure_device(CPU)
    assert found["dtype"] == str(faster).removeprefix("torch.")
    assert found["peak_flops"] == pytest.approx(8e9 * len(os.sched_getaffinity(0)))


def test_a_cpu_is_measured() -> None:
    found = measure_device(CPU)
    assert found["peak_flops"] > 1e8
    assert (found["device"], found["sms"], found["memory_mb"]) == ("cpu", None, None)
