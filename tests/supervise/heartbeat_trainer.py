"""A trainer without torch that speaks the heartbeat protocol, and can be broken on demand.

`python -m tests.supervise.heartbeat_trainer --order ORDER` under torchrun. Ranks meet in files: a
collective is a file that says how far a rank has come, and waiting for those of the others.
`order["train"]` is `{"step_s": seconds}`; `order["fault"]` is `KIND:key=value,…`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import secrets
import signal
import sys
import threading
import time
from pathlib import Path

GO_LIMIT_S = 60.0


class Rank:
    """One rank of one run."""

    def __init__(self, order_path: Path) -> None:
        self.dir = order_path.parent
        self.order = json.loads(order_path.read_text())
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        fault: str = self.order.get("fault") or "none"
        self.kind, _, rest = fault.partition(":")
        self.values = dict(pair.split("=") for pair in rest.split(",") if pair)
        self.step_s = float(self.order["train"]["step_s"])
        self.alive_every_s = float(self.order["heartbeat"]["alive_every_s"])
        self.sync = self.dir / ".sync"
        self.sync.mkdir(exist_ok=True)
        self.boot = secrets.token_hex(8)
        self.seq = self.step = self.section_seq = self.collective_seq = 0
        self.section: str | None = "boot"
        self.since = self.wrote = time.monotonic()
        self.lock = threading.Lock()
        self.dump = (self.dir / f"stackdump_rank{self.rank}_0.txt").open("w")
        if self.kind != "plain":
            faulthandler.register(signal.SIGUSR1, file=self.dump, all_threads=True)
        path = self.dir / f"heartbeat_rank{self.rank}.jsonl"
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def beat(self, msg: str, **fields: object) -> None:
        with self.lock:
            self.seq += 1
            now = time.time()
            self.wrote = time.monotonic()
            line = {
                "v": 1, "ts": now, "mono": self.wrote, "pid": os.getpid(),
                "rank": self.rank, "boot": self.boot, "seq": self.seq, "step": self.step,
                "msg": msg, "section": self.section, "section_seq": self.section_seq, **fields,
            }  # fmt: skip
            os.write(self.file, json.dumps(line).encode() + b"\n")

    def enter(self, section: str | None) -> None:
        self.section, self.since = section, time.monotonic()
        self.section_seq += 1
        if section is not None:
            self.strike(section)

    def speak(self) -> None:
        while True:
            time.sleep(0.05)
            if time.monotonic() - self.wrote > self.alive_every_s:
                age = time.monotonic() - self.since
                self.beat("alive", section_age_s=age, collective_seq=self.collective_seq)

    def collective(self) -> None:
        self.collective_seq += 1
        own = self.sync / str(self.rank)
        temporary = self.sync / f".{self.rank}"
        temporary.write_text(str(self.collective_seq))
        temporary.replace(own)
        for peer in range(self.world):
            while self._came(peer) < self.collective_seq:
                time.sleep(0.005)

    def _came(self, peer: int) -> int:
        try:
            return int((self.sync / str(peer)).read_text())
        except FileNotFoundError:
            return 0

    def is_struck(self) -> bool:
        rank = self.values.get("rank", "all")
        at_step = self.step == int(self.values.get("step", -1))
        return at_step and rank in ("all", str(self.rank))

    def strike(self, section: str) -> None:
        """Break, when this is the place and the moment."""
        if section != self.values.get("section", "backward") or not self.is_struck():
            return
        if self.kind in ("hang", "plain"):
            while True:
                time.sleep(0.1)
        if self.kind == "deaf":  # ignores SIGTERM, and forks for ever (at most 60 s)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            fork_on(time.monotonic() + 60.0)
        if self.kind == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.kind == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "exit":
            os._exit(int(self.values["code"]))

    def boot_up(self) -> None:
        identity = {name: v for name, v in self.order["identity"].items() if v is not None}
        identity["nsa_env"] = {k: v for k, v in os.environ.items() if k.startswith("NSA_")}
        whose = {"run": os.environ.get("GONOGO_RUN"), "attempt": self.order["attempt"]}
        self.beat("boot", **whose, **identity, backend="DDP")
        threading.Thread(target=self.speak, daemon=True).start()
        give_up = time.monotonic() + GO_LIMIT_S
        while not (self.dir / ".GO").exists():
            if (self.dir / ".HALT").exists():
                self.beat("halt_seen")
                sys.exit(3)
            if time.monotonic() > give_up:
                sys.exit(4)
            time.sleep(0.02)

    def train(self) -> None:
        self.boot_up()
        self.section = None
        start = (self.order.get("resume_from") or {}).get("step", 0)
        for step in range(start + 1, int(self.order["steps"]) + 1):
            self.one_step(step)
            if self.leave_after == step:
                self.beat("halt_seen")
                self.checkpoint()
                self.collective()
                sys.exit(3)
        self.collective()
        self.beat("done")

    def one_step(self, step: int) -> None:
        began = time.monotonic()
        self.step = step
        self.enter("data")
        self.beat("step_start")
        self.enter("forward")
        time.sleep(self.step_s / 2)
        self.enter("backward")
        time.sleep(self.step_s / 2)
        slowed = self.kind == "slow" and step >= int(self.values["from"])
        if slowed:
            time.sleep(self.step_s * (float(self.values["factor"]) - 1.0))
        if self.rank == 0 and (self.dir / ".HALT").exists():
            (self.sync / "leave").write_text(str(step))
        self.collective()
        self.enter("log")
        loss: float | str = 5.5 - 0.01 * step
        if self.kind == "nan" and step >= int(self.values["step"]):
            loss = "NaN"
        self.poisoned = loss == "NaN"
        rate = 2048 / (time.monotonic() - began)
        self.beat("progress", loss=loss, grad_norm=1.0, lr=1e-3, toks_per_s=rate, dt_fetch_s=0.0)
        took_s = time.monotonic() - began
        self.beat("step_end", dt_step_s=took_s, tokens=2048, collective_seq=self.collective_seq)
        self.section = None

    @property
    def leave_after(self) -> int | None:
        try:
            return int((self.sync / "leave").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def checkpoint(self) -> None:
        if self.poisoned:
            return
        self.enter("checkpoint")
        folder = self.dir / "checkpoints" / f"step_{self.step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        if self.rank == 0:
            manifest = {"v": 1, "step": self.step, "files": {}}
            (folder / "manifest.json").write_text(json.dumps(manifest))
        self.beat("checkpoint", path=f"checkpoints/{folder.name}", dt=0.01)


def fork_on(until: float) -> None:
    """Live on in one short-lived child after the other."""
    while time.monotonic() < until:
        if os.fork() == 0:
            time.sleep(0.002)
        else:
            os._exit(0)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", type=Path, required=True)
    Rank(parser.parse_args().order).train()


if __name__ == "__main__":
    main()
