"""The smallest trainer that gonogo can supervise: docs/heartbeats.md in code, no dependencies.

    python -m torch.distributed.run --nproc-per-node 2 docs/examples/trainer.py --order …/order.json

Each rank fits a line to noisy points. It shows the protocol, not training: there is no collective
and no checkpoint, so ranks may leave one step apart when `.HALT` appears.
"""

import argparse
import hashlib
import json
import os
import random
import threading
import time
from pathlib import Path


class Heartbeat:
    """Writes the heartbeat lines of one rank, each with a single write."""

    def __init__(self, path: Path, rank: int, alive_every_s: float) -> None:
        self.file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        self.fixed = {"v": 1, "pid": os.getpid(), "rank": rank, "boot": os.urandom(8).hex()}
        self.lock = threading.Lock()
        self.seq = self.step = self.section_seq = 0
        self.section: str | None = "boot"
        self.section_since = self.last = time.monotonic()
        threading.Thread(target=self._stay_alive, args=(alive_every_s,), daemon=True).start()

    def enter(self, section: str | None) -> None:
        """Say what the rank is doing from here on; costs nothing, the next line carries it."""
        self.section, self.section_since = section, time.monotonic()
        self.section_seq += 1

    def say(self, msg: str, **fields: object) -> None:
        """Write one line; a line that cannot be written never stops training."""
        with self.lock:
            self.seq += 1
            self.last = time.monotonic()
            clock = {"ts": time.time(), "mono": self.last, "seq": self.seq, "step": self.step}
            place = {"msg": msg, "section": self.section, "section_seq": self.section_seq}
            line = json.dumps({**self.fixed, **clock, **place, **fields}) + "\n"
            try:
                os.write(self.file, line.encode())
            except OSError:
                self.seq -= 1  # nobody saw it: the numbers that are seen stay without gaps

    def _stay_alive(self, every_s: float) -> None:
        while True:
            time.sleep(every_s / 4)
            if time.monotonic() - self.last >= every_s:
                self.say("alive", section_age_s=time.monotonic() - self.section_since)


def wait_for_go(run: Path, limit_s: float = 120) -> None:
    """Return when the watcher has compared the boot lines with the order and agreed."""
    deadline = time.monotonic() + limit_s
    while not (run / ".GO").exists():
        if time.monotonic() > deadline:
            raise SystemExit(4)
        time.sleep(0.05)


def main() -> None:
    """Train as the order says; exit 0 when done, 3 when halted, 4 without a `.GO`."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--order", type=Path, required=True)
    order_path: Path = arguments.parse_args().order
    order, run = json.loads(order_path.read_text()), order_path.parent
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    path = run / f"heartbeat_rank{rank}.jsonl"
    beat = Heartbeat(path, rank, float(order["heartbeat"]["alive_every_s"]))

    # What is about to run, so that it can be compared with what was ordered. The digest is that of
    # the RFC 8785 form; json.dumps equals it as long as there are no floats and no odd characters.
    text = json.dumps(order["train"], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    beat.say("boot", backend="single", config_digest=digest, params=2, world_size=world_size)
    wait_for_go(run)

    points = random.Random(rank)
    slope = offset = 0.0
    for step in range(1, int(order["steps"]) + 1):
        started = time.monotonic()
        beat.step = step
        beat.enter("data")
        beat.say("step_start")
        xs = [points.uniform(-1, 1) for _ in range(20_000)]
        fetched = time.monotonic()
        beat.enter("forward")
        errors = [slope * x + offset - (3 * x + 1 + points.gauss(0, 0.1)) for x in xs]
        loss = sum(error * error for error in errors) / len(errors)
        beat.enter("optimizer")
        grads = [
            sum(e * x for e, x in zip(errors, xs, strict=True)) / len(xs),
            sum(errors) / len(xs),
        ]
        slope, offset = slope - grads[0], offset - 0.5 * grads[1]
        beat.enter("log")
        took = time.monotonic() - started
        norm = (grads[0] ** 2 + grads[1] ** 2) ** 0.5
        rate = world_size * len(xs) / took
        beat.say(
            "progress", loss=loss, grad_norm=norm, toks_per_s=rate, dt_fetch_s=fetched - started
        )
        beat.enter(None)
        beat.say("step_end", dt_step_s=time.monotonic() - started, tokens=world_size * len(xs))
        if (run / ".HALT").exists():
            beat.say("halt_seen")
            raise SystemExit(3)
    beat.say("done")


if __name__ == "__main__":
    main()
