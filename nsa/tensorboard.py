"""TensorBoard event files, `tb/events.out.tfevents.…`, one a process start.

A file is a list of records (length, CRC-32C, protobuf `Event`, CRC). Scalars need five fields, so
they are written by hand: no import, and a full disk ends nothing else (`nsa.patient_file`).
"""

import os
import platform
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsa.patient_file import PatientFile

_TAGS = {
    "loss": "train/loss",
    "val_loss": "eval/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "loss_scale": "train/loss_scale",
    "toks_per_s": "speed/toks_per_s",
    "dt_fetch_s": "speed/dt_fetch_s",
    "gpu_mem_reserved": "memory/gpu_mem_reserved_mb",
    "host_rss_mb": "memory/host_rss_mb",
    "gate_entropy": "gates/entropy",
    "gate_max": "gates/max",
}
_CRC_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _CRC_TABLE.append(_byte)


class TensorBoard:
    """The event file of one process, in a folder of a run directory."""

    def __init__(self, folder: Path, *, on: bool) -> None:
        self._file: PatientFile | None = None
        if not on:
            return
        name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            print(f"no TensorBoard files: {error}", file=sys.stderr)
            return
        self._file = PatientFile(folder / name)
        self._write(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def log(self, step: int, fields: Mapping[str, Any]) -> None:
        """One point for each field that has a curve."""
        if self._file is None:
            return
        values = b"".join(
            _bytes(1, _bytes(1, tag.encode()) + _float(2, float(fields[name])))
            for name, tag in _TAGS.items()
            if name in fields
        )
        self._write(_double(1, time.time()) + _varint(2, step) + _bytes(5, values))

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        if self._file is not None:
            self._file.append(length + _masked_crc(length) + event + _masked_crc(event))


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


# Fields of a protobuf message: a key (number and wire type), then the value.


def _varint(number: int, value: int) -> bytes:
    return _plain(number << 3) + _plain(value)


def _double(number: int, value: float) -> bytes:
    return _plain(number << 3 | 1) + struct.pack("<d", value)


def _float(number: int, value: float) -> bytes:
    return _plain(number << 3 | 5) + struct.pack("<f", value)


def _bytes(number: int, value: bytes) -> bytes:
    return _plain(number << 3 | 2) + _plain(len(value)) + value


def _plain(value: int) -> bytes:
    """A non-negative whole number, seven bits a byte."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
