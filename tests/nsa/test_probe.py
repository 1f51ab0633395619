"""The probe measures what the devices compute."""

import os

import pytest
import torch

from nsa.probe import measure_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16])
def test_the_format_counts_in_which_a_cpu_is_faster(faster, monkeypatch):
    def product(a):
        return 2 * len(a) ** 3 / (8e9 if a.dtype is faster else 1e9)

    monkeypatch.setattr("nsa.probe._time_product", product)
    found = measure_device(CPU)
    assert found["dtype"] == str(faster).removeprefix("torch.")
    assert found["peak_flops"] == pytest.approx(8e9 * len(os.sched_getaffinity(0)))


def test_a_cpu_is_measured():
    found = measure_device(CPU)
    assert found["peak_flops"] > 1e8
    assert (found["device"], found["sms"], found["memory_mb"]) == ("cpu", None, None)
