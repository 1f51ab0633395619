"""What the watcher reads of a heartbeat file, look by look, is what is read of it afterwards."""

from pathlib import Path

import pytest

from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.records import Tick
from gonogo.rundir import RunDir
from gonogo.supervise.watcher.journal import Tails
from gonogo.watch.offline_fold import BroughtLines

LONG = b"x" * (MAX_LINE_BYTES + 1)
WRITTEN = {
    "lines": [b"a\nb", b"c\n", b"", b"d\n"],
    "a line that is too long": [b"a\n", LONG + b"\n", b"b\n"],
    "one that is written for longer than a look": [b"a\n", LONG, LONG, b"x\nb\n", b"c\n"],
    "one whose newline comes alone": [LONG, b"\n", b"b\n"],
    "one behind lines": [b"a\n" + LONG, b"x", b"\nb\n"],
    "one of more than a look reads": [b"a\n", b"x" * (17 * 2**20) + b"\nb\n", b"c\n", b"", b"d\n"],
    "one with carriage returns": [b"\r".join([LONG, LONG]), b"\r\r\nb\n"],
    "one that never ends": [b"a\n", LONG, b"x"],
}


@pytest.mark.parametrize("parts", WRITTEN.values(), ids=WRITTEN)
def test_each_look_brings_afterwards_the_lines_that_it_brought(
    parts: list[bytes], tmp_path: Path
) -> None:
    run_dir = RunDir(tmp_path)
    tails = Tails(run_dir=run_dir, world_size=1)
    ticks: list[Tick] = []
    brought: list[list[bytes]] = []
    for part in parts:
        with run_dir.heartbeat(0).open("ab") as stream:
            stream.write(part)
        found = tails.read()
        upto = {str(rank): tails.offsets[rank] for rank in found}
        ticks.append(Tick(n=len(ticks), mono=float(len(ticks)), ts=0.0, upto=upto))
        brought.append(found.get(0, []))
    recorded = BroughtLines(run_dir)
    assert [recorded.lines_of(tick).get(0, []) for tick in ticks] == brought
