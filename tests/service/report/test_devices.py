"""What do the devices' lines come to, by device and by step?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gonogo.contract.device import DeviceSample
from service.report.devices import build_devices, read_samples
from service.report.gates import not_observed
from service.report.numbers import build_numbers
from service.report.phases import device_table, memory_table
from tests.service.fake_worker import beats
from tests.service.report.views import order_of, rank_beats, run_report


def sample(uuid: str, mono: float, **more: Any) -> DeviceSample:
    return DeviceSample(ts=mono, mono=mono, uuid=uuid, **more)


def test_a_device_is_told_over_the_whole_run() -> None:
    rows = [
        sample("GPU-b", 2.0, rank=1, index=1, util=10.0),
        sample(
            "GPU-a", 3.0, rank=0, index=0, util=90.0, mem_used_mb=60_000.0,
            mem_total_mb=80_000.0, temp_c=71.0, power_w=300.0, throttle=["sw_power_cap"], xids=[79],
        ),
        sample("GPU-a", 1.0, rank=0, index=0, util=70.0, mem_used_mb=61_000.0, ecc_uncorrected=1),
        sample("GPU-a", 2.0, rank=0, index=0, throttle=[], xids=[], ecc_uncorrected=2),
    ]  # fmt: skip
    first, second = build_devices(rows)
    assert (first.uuid, first.rank, first.samples, first.median_util) == ("GPU-a", 0, 3, 80.0)
    assert (first.peak_used_mb, first.total_mb, first.peak_temp_c) == (61_000.0, 80_000.0, 71.0)
    assert (first.throttled, first.xids, first.ecc_uncorrected) == (("sw_power_cap",), (79,), None)
    assert (second.uuid, second.median_util, second.peak_used_mb) == ("GPU-b", 10.0, None)
    table = device_table([first, second]) or ""
    reads = "0 | 3 | 80 % | 61.00 GB | 80.00 GB | 71 °C | 300 W | sw_power_cap | **79** | –"
    assert f"| `0 GPU-a` | {reads} |" in table
    assert "| `1 GPU-b` | 1 | 1 | 10 % | – | – | – | – | nothing | none | – |" in table
    assert device_table([]) is None


def test_lines_that_are_no_samples_are_left_out() -> None:
    good = sample("GPU-a", 1.0, util=5.0).model_dump_json().encode()
    assert (
        len(list(read_samples([good, b"", b"{", b"[]", b"[" * 9_000, b'{"uuid": 1}', good]))) == 2
    )


def test_of_a_large_file_stretches_of_neighbouring_lines_are_read() -> None:
    lines = [sample(f"GPU-{n % 8}", float(n)).model_dump_json().encode() for n in range(512)]
    found = list(read_samples(lines, 4))
    assert len(found) == 128
    assert len({row.uuid for row in found}) == 8


def test_steps_have_the_utilisation_and_the_memory_of_their_devices() -> None:
    order = order_of()
    said = {rank: rank_beats(beats(order, rank)) for rank in range(2)}
    begins = json.loads(beats(order, 0)[2])["mono"]
    samples = [
        sample(f"GPU-{rank}", begins + step, rank=rank, util=50.0 + rank, mem_used_mb=1000.0 + step)
        for rank in range(2)
        for step in range(9)
    ]
    ranks = build_numbers(order, said, samples)
    assert [rank.median_util for rank in ranks] == [50.0, 51.0]
    assert ranks[1].util[0] == (1, 51.0)
    assert [step for step, _ in ranks[0].util] == list(range(1, 41))
    assert ranks[0].device_mb[-1] == (40, 1008.0)
    assert [rank.peak_used_mb for rank in ranks] == [1008.0, 1008.0]
    run = run_report(ranks=ranks)
    assert memory_table(run) == (
        "| rank | in use on its device, peak | device utilisation, median |\n|---|---|---|\n"
        "| 0 | 1.01 GB | 50 % |\n| 1 | 1.01 GB | 51 % |"
    )
    unseen = "; ".join(not_observed(run))
    assert "device utilisation" not in unseen
    assert "device memory" not in unseen
    assert "host memory: no rank reports any" in unseen


@pytest.mark.parametrize("samples", [[], [sample("GPU-a", 100.1, rank=0)]], ids=["none", "unknown"])
def test_what_devices_do_not_say_is_not_zero(samples: list[DeviceSample]) -> None:
    order = order_of()
    said = {0: rank_beats(beats(order, 0))}
    (rank,) = build_numbers(order, said, samples)
    assert (rank.util, rank.median_util, rank.device_mb, rank.peak_used_mb) == ((), None, (), None)
    assert memory_table(run_report(ranks=(rank,))) is None


def test_gates_are_taken_from_the_lines_and_the_later_process_counts() -> None:
    order = order_of()
    lines = []
    for number, boot in enumerate(("a", "b")):
        for row in map(json.loads, beats(order, 0, upto=3 - number, done=False)):
            told = {"gate_entropy": 0.9, "gate_max": 0.4 + number / 10, "gate_collapse_frac": 0.0}
            if row["msg"] == "progress":
                row |= told
            row["ts"] += 100 * number
            lines.append(json.dumps({**row, "boot": boot}))
    (rank,) = build_numbers(order, {0: rank_beats(reversed(lines))})
    assert rank.gate_max == ((1, 0.5), (2, 0.5), (3, 0.4))
    assert rank.gate_entropy[-1] == (3, 0.9)
