"""Is a worker kept to the devices that it was given, whatever they are called?"""

from __future__ import annotations

import pytest

from gonogo.contract.errors import Rejected
from gonogo.supervise.devices.protocol import Device
from gonogo.supervise.devices.visible import visible_devices

HOST = [Device(uuid=f"GPU-{mark}", index=n, name="H100") for n, mark in enumerate(("aa1", "ab2"))]
HOST += [
    Device(uuid=f"MIG-{mark}", index=2, name="H100 MIG", parent="GPU-c3") for mark in ("x1", "y2")
]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, ["GPU-aa1", "GPU-ab2", "MIG-x1", "MIG-y2"]),
        ("", []),
        ("-1", []),
        ("GPU-ab2,GPU-aa1", ["GPU-ab2", "GPU-aa1"]),
        ("GPU-ab", ["GPU-ab2"]),
        ("GPU-a", []),  # of two
        ("GPU-c3", ["MIG-x1", "MIG-y2"]),
        ("MIG-y2", ["MIG-y2"]),
        ("GPU-aa1, GPU-zz, GPU-ab2", ["GPU-aa1"]),  # nothing from the unknown one on
        ("GPU-aa1,GPU-aa1", ["GPU-aa1"]),
        ("NoDevFiles", []),
    ],
)
def test_what_cuda_would_show_is_what_the_worker_has(said: str | None, expected: list[str]) -> None:
    environ = {} if said is None else {"CUDA_VISIBLE_DEVICES": said}
    assert [device.uuid for device in visible_devices(HOST, environ)] == expected


def test_numbers_count_only_where_their_order_is_known() -> None:
    alike = HOST[:2]
    assert visible_devices(alike, {"CUDA_VISIBLE_DEVICES": "1"}) == [alike[1]]
    with pytest.raises(Rejected, match="say UUIDs"):
        visible_devices(HOST, {"CUDA_VISIBLE_DEVICES": "1"})
    ordered = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_devices(HOST, ordered) == [HOST[1]]
