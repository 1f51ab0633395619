"""How much of a log does the service look at, to say what a run ended with?"""

from __future__ import annotations

from gonogo.rundir import TAIL_BYTES
from service.told.causes import load_last_line
from tests.service.conftest import Plane

REPORT = """\
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
"""
OF_A_RANK = """\
[{rank}]:
  time      : 2026-11-22_11:19:41
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : -15 (pid: 8033)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 8033
"""


def test_a_launcher_s_long_report_hides_no_error_before_it(still: Plane) -> None:
    still.submit()
    worker = still.worker()
    order = worker.claim()
    assert order is not None
    worker.start(order)
    said = "[rank5]: Traceback (most recent call last):\n[rank5]: ValueError: a bad sample\n"
    said += REPORT + "".join(OF_A_RANK.format(rank=rank) for rank in range(64))
    said = "x" * 100 + "\n" + said
    assert len(said) < TAIL_BYTES
    log = {"name": "rank0.log", "start": 0, "end": len(said), "text": said}
    assert worker.telemetry(order, logs=[log]).status_code == 200
    line = still.context.store.read(lambda session: load_last_line(session, order.run, 0))
    assert line == "ValueError: a bad sample"
