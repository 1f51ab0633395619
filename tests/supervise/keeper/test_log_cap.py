"""A log that grows for ever keeps its beginning and its end, and says what it lost."""

from __future__ import annotations

from pathlib import Path

from gonogo.supervise.keeper.log_cap import LOOK_EVERY_S, LogCap

KB = 1024


def test_the_middle_of_a_long_log_is_let_go_and_everybody_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    cap = LogCap(tmp_path, cap_bytes=256 * KB, head_bytes=16 * KB, tail_bytes=64 * KB)
    with path.open("ab", buffering=0) as program:
        program.write(b"began\n" + b"a" * 100 * KB)
        cap.tend(0.0)
        assert b"gonogo" not in path.read_bytes()
        program.write(b"b" * 400 * KB)
        size = path.stat().st_size
        cap.tend(LOOK_EVERY_S - 0.1)
        assert path.stat().st_blocks * 512 > 256 * KB
        cap.tend(LOOK_EVERY_S)
        assert path.stat().st_blocks * 512 < 128 * KB
        assert path.stat().st_size == size
        program.write(b"c" * KB)
    text = path.read_bytes()
    assert text.startswith(b"began\naaa")
    assert text[-65 * KB :] == b"b" * 64 * KB + b"c" * KB
    assert b"bytes were let go here" in text
    assert text.count(b"gonogo:") == 1
    cap.tend(2 * LOOK_EVERY_S)
    assert path.read_bytes() == text
