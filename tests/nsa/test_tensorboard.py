import math
import struct
from pathlib import Path

import pytest
from tensorboard.compat.proto import event_pb2

from nsa.tensorboard import TensorBoard, _masked_crc


def _records(file: Path) -> list[bytes]:
    """The records of an event file, their checksums checked."""
    data, records = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert _masked_crc(data[:8]) == data[8:12]
        records.append(data[12 : 12 + length])
        assert _masked_crc(records[-1]) == data[12 + length : 16 + length]
        data = data[16 + length :]
    return records


def _fields(message: bytes) -> list[tuple[int, bytes | int]]:
    """The (number, value) pairs of a protobuf message."""
    pairs: list[tuple[int, bytes | int]] = []
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            pairs.append((number, varint()))
            continue
        size = varint() if wire == 2 else {1: 8, 5: 4}[wire]
        pairs.append((number, message[position : position + size]))
        position += size
    return pairs


def _points(file: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, {tag: value}) of every event but the first, which names the format."""
    first, *events = _records(file)
    assert dict(_fields(first))[3] == b"brain.Event:2"
    points = []
    for event in events:
        fields = dict(_fields(event))
        assert struct.unpack("<d", fields[1])[0] > 1.7e9
        values = [dict(_fields(value)) for _, value in _fields(fields[5])]
        tags = {value[1].decode(): struct.unpack("<f", value[2])[0] for value in values}
        points.append((fields[2], tags))
    return points


def test_a_point_a_step_and_nothing_without_a_curve(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "tb", on=True)
    board.log(1, {"loss": 5.5, "lr": 2e-4, "gate_collapse_frac": 0.0})
    board.log(300, {"val_loss": math.inf})
    (file,) = (tmp_path / "tb").iterdir()
    assert file.name.startswith("events.out.tfevents.")
    assert _points(file) == [
        (1, {"train/loss": 5.5, "train/lr": pytest.approx(2e-4)}),
        (300, {"eval/loss": math.inf}),
    ]


def test_the_checksum_is_the_castagnoli_crc_of_the_published_example() -> None:
    (masked,) = struct.unpack("<I", _masked_crc(b"123456789"))
    turned = (masked - 0xA282EAD8) & 0xFFFFFFFF
    assert (turned << 15 | turned >> 17) & 0xFFFFFFFF == 0xE3069283


def test_tensorboard_itself_reads_the_file(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "tb", on=True)
    board.log(7, {"loss": 1.25})
    event = event_pb2.Event.FromString(_records(next((tmp_path / "tb").iterdir()))[1])
    assert event.step == 7
    assert [(value.tag, value.simple_value) for value in event.summary.value] == [
        ("train/loss", 1.25)
    ]


def test_switched_off_it_leaves_no_folder(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "tb", on=False)
    board.log(1, {"loss": 1.0})
    assert not list(tmp_path.iterdir())
