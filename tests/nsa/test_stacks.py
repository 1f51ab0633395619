import os
import signal
import time

from nsa.stacks import StackDumps


def test_each_signal_leaves_a_named_dump_and_the_process_lives(tmp_path):
    named: list[str] = []
    stacks = StackDumps(tmp_path, 1)
    stacks.on_dump = named.append
    for count in (1, 2):
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 120
        while len(named) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGUSR1)  # the last one is named on closing
    stacks.close()
    assert len(set(named)) == 3
    assert sorted(named) == sorted(file.name for file in tmp_path.iterdir())
    for file in tmp_path.iterdir():
        assert file.name.startswith("stackdump_rank1_")
        assert "test_each_signal_leaves" in file.read_text()


def test_without_a_signal_nothing_is_left(tmp_path):
    StackDumps(tmp_path, 0).close()
    assert not list(tmp_path.iterdir())
