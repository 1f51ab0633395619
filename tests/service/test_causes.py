"""How much of a log does the service look at, to say what a run ended with?"""

from __future__ import annotations

from gonogo.rundir import TAIL_BYTES
from service.db.schema import RunRow
from service.experiments.overview import load_last_line
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
    order = still.next_order(worker)
    worker.start(order)
    said = "[rank5]: Traceback (most recent call last):\n[rank5]: ValueError: a bad sample\n"
    said += REPORT + "".join(OF_A_RANK.format(rank=rank) for rank in range(64))
    said = "x" * 100 + "\n" + said
    assert len(said) < TAIL_BYTES
    log = {"name": "rank0.log", "start": 0, "end": len(said), "text": said}
    assert worker.telemetry(order, logs=[log]).status_code == 200
    said_so_far = still.context.store.read(
        lambda session: load_last_line(session, session.get_one(RunRow, order.run), 0)
    )
    assert said_so_far == ("rank0.log", "ValueError: a bad sample")


def test_a_halt_of_a_command_quotes_the_rank_in_the_log_that_all_write_into(still: Plane) -> None:
    plan = {
        "v": 1,
        "name": "mine",
        "profile": "cpu",
        "workload": {"command": "torchrun train.py", "world_size": 2},
        "phases": [{"name": "try", "steps": 10}],
    }
    experiment = still.submit(plan, name="mine")
    worker = still.worker()
    order = still.next_order(worker, allow=["any"])
    worker.start(order)
    said = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: a bad sample\n"
    log = {"name": "rank0.log", "start": 0, "end": len(said), "text": said}
    assert worker.telemetry(order, logs=[log]).status_code == 200
    found = {
        "detector": "process_death", "severity": "halt", "rank": 1, "at": 1.0,
        "key": f"{order.run}:1", "text": "rank 1 ended with exit code 1",
    }  # fmt: skip
    worker.post(f"/runs/{order.run}/findings", {"token": order.token, "findings": [found]})
    (alert,) = still.get("/alerts")["items"]
    assert alert["text"] == (
        "mine, try: rank 1 ended with exit code 1; last line of rank0.log so far:"
        f" ValueError: a bad sample. Next: gonogo show {experiment}"
    )
