"""A keeper without torch: real processes, locks and files, in milliseconds.

`python -m tests.worker.light_keeper RUNDIR --lock FILE …` keeps the contract that the worker relies
on. It takes the locks of the run and its devices, writes keeper.json, and has one child with the
run's token. It writes heartbeats until `.finish` or `.HALT` is there, then exit.json and the
telemetry. Each start leaves a line in `starts.log`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir, save_json
from gonogo.supervise.end_request import load_request
from gonogo.supervise.processes import boot_id, die_with_parent, load_stat
from worker.client import ControlPlane
from worker.host.home import ClaimSecrets
from worker.shipping.shipper import Shipper

LIMIT_S = 120.0
"""No light keeper outlives its test for longer."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--lock", type=Path, action="append", default=[])
    parser.add_argument("--home", type=Path)
    asked = parser.parse_args()
    path: Path = asked.run_dir
    own = lock(path / ".keeper.lock", wait_s=0.0)
    devices = [lock(device, wait_s=5.0) for device in asked.lock]
    if own is None or None in devices:
        return 75
    order = Order.model_validate_json((path / "order.json").read_bytes())
    with (path / "starts.log").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    trainer = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={"PATH": os.environ["PATH"], "GONOGO_RUN": order.run},
        preexec_fn=die_with_parent,
        start_new_session=True,
    )
    stat = load_stat(os.getpid())
    assert stat is not None
    state = {"pid": os.getpid(), "start_ticks": stat.start_ticks, "boot_id": boot_id()}
    save_json(path / "keeper.json", {"v": 1, **state, "trainer": trainer.pid})
    reason = train(path, order)
    trainer.kill()
    trainer.wait()
    record = ExitRecord(code=0, ended_at=time.time(), ended_by=reason[1], reason=reason[0])
    save_json(path / "exit.json", record.wire())
    for device in devices:
        os.close(device)  # type: ignore[arg-type]
    book = ClaimSecrets(Path(os.environ["GONOGO_HOME"]))
    url, key = os.environ["GONOGO_URL"], os.environ["GONOGO_API_KEY"]
    client = ControlPlane(url, key, secret_of=book.load)
    shipper = Shipper(RunDir(path), order.run, order.token, client)
    deadline = time.monotonic() + float(order.train.get("ship_s", 5.0))
    while time.monotonic() < deadline and not shipper.finish(record):
        time.sleep(0.05)
    return 0


def train(path: Path, order: Order) -> tuple[str, str]:
    """Write heartbeats until the run is over; return reason and actor."""
    seq = 0
    give_up = time.monotonic() + LIMIT_S
    with (path / "heartbeat_rank0.jsonl").open("a") as stream:
        while not (path / ".finish").exists() and time.monotonic() < give_up:
            if (asked := load_request(path / ".HALT")) is not None:
                return asked.reason, asked.ended_by
            seq += 1
            beat = {"rank": 0, "boot": "b", "seq": seq, "step": seq, "msg": "step_end"}
            beat |= {"ts": time.time(), "mono": time.monotonic(), "pid": os.getpid(), "v": 1}
            stream.write(json.dumps(beat) + "\n")
            stream.flush()
            time.sleep(0.01)
    return "completed", "trainer"


def lock(path: Path, wait_s: float) -> int | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.01)
        else:
            return descriptor


if __name__ == "__main__":
    sys.exit(main())
