import math
import struct

import pytest
from tensorboard.compat.proto import event_pb2

from nsa.artifacts import TensorBoard, _masked_crc


def events(file):
    """The events of a file as TensorBoard itself reads them, their checksums checked."""
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        assert (_masked_crc(data[:8]), _masked_crc(record)) == (data[8:12], data[12 + length :][:4])
        found.append(event_pb2.Event.FromString(record))
        data = data[16 + length :]
    return found


def test_a_point_a_step_and_nothing_without_a_curve(tmp_path):
    board = TensorBoard(tmp_path / "tb", on=True)
    board.log(1, {"loss": 5.5, "lr": 2e-4, "gate_collapse_frac": 0.0})
    board.log(300, {"val_loss": math.inf})
    (file,) = (tmp_path / "tb").iterdir()
    assert file.name.startswith("events.out.tfevents.")
    first, *points = events(file)
    assert first.file_version == "brain.Event:2"
    assert all(event.wall_time > 1.7e9 for event in points)
    assert [
        (event.step, {value.tag: value.simple_value for value in event.summary.value})
        for event in points
    ] == [(1, {"train/loss": 5.5, "train/lr": pytest.approx(2e-4)}), (300, {"eval/loss": math.inf})]


def test_the_checksum_is_the_castagnoli_crc_of_the_published_example():
    (masked,) = struct.unpack("<I", _masked_crc(b"123456789"))
    turned = (masked - 0xA282EAD8) & 0xFFFFFFFF
    assert (turned << 15 | turned >> 17) & 0xFFFFFFFF == 0xE3069283


def test_switched_off_it_leaves_no_folder(tmp_path):
    TensorBoard(tmp_path / "tb", on=False).log(1, {"loss": 1.0})
    assert not list(tmp_path.iterdir())
