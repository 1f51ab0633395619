"""What do many kills at seeded moments leave whole? A real small service, its worker and runs.

`make chaos SEED=7 KILLS=200` kills -9 the control plane, worker, watchers, keepers, Redis and
PostgreSQL, one or two at a time. Meanwhile experiments of several kinds run: healthy ones, one that
fails by itself, one that only prints. Moments, kinds and choices come from the seed; what there is
to choose from depends on the machine.

Then the kills stop and everything ends. Only a keeper's death may have ended a healthy run, and
that run was resumed. Every line, event and alert is there once, every decision is valid, every
ended run is judged, and nothing is left running. A keeper is killed at most twice in a phase (three
such ends are a storm, and rightly so), a watcher at most three times a minute.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gonogo.cli.client import Client
from gonogo.cli.settings import load_settings
from gonogo.cli.stack import Stack
from gonogo.contract.errors import Unavailable
from gonogo.rundir import RunDir
from tests.e2e.chaos_checks import Kind, plan_of, problems_of
from tests.e2e.lab import Lab, Receiver, clean_environ, last_step, read_json
from tests.servers import PostgresServer, find_program

AT_ONCE = 3
"""Experiments that run at the same time."""
MEAN_PAUSE_S = 3.0
DOWN_S = 2.5
"""Longest time for which a killed database stays away."""
SAY_S = 60.0
"""How often progress is printed."""
DRAIN_S = 400.0
"""How long what is under way may take to its end once the kills have stopped."""
_PARTS = ("service", "worker", "redis")


@dataclass(slots=True, kw_only=True)
class Chaos:
    """One home that things are killed in."""

    lab: Lab
    database: PostgresServer | None
    receiver: Receiver
    dice: random.Random
    scripts: Path
    kinds: dict[str, Kind] = field(default_factory=dict)
    """Experiment → what it is; only those whose submission was acknowledged."""
    keepers_killed: set[str] = field(default_factory=set)
    """Runs whose keeper was killed."""
    killed: Counter[str] = field(default_factory=Counter)
    events: list[dict[str, Any]] = field(default_factory=list)
    """What a follower of the global feed received, in its order."""
    over: set[str] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)
    """Experiments with a program that waits for no `.GO` and ran unwatched, because its watcher was
    killed before its first look. Unseen steps may pass nothing."""
    _watchers: dict[str, deque[float]] = field(default_factory=dict)
    _keepers: Counter[tuple[str, str]] = field(default_factory=Counter)
    _database_at: float | None = None
    _submitting: tuple[str, Kind] | None = None

    def go(self, kills: int, limit_s: float, say: Callable[[str], None]) -> None:
        """Kill so often, at most for so long, while experiments come and go; say how far it is."""
        began = said = time.monotonic()
        deadline = began + limit_s
        self.lab.client.meanwhile = self._tend
        next_at = began + self.dice.expovariate(1 / MEAN_PAUSE_S)
        while (done := sum(self.killed.values())) < kills and time.monotonic() < deadline:
            now = time.monotonic()
            if done and now >= said + SAY_S:
                said = now
                left_s = min((now - began) * (kills - done) / done, deadline - now)
                over = f"{len(self.over)} of {len(self.kinds)} experiments over"
                say(f"{done} of {kills} kills, {over}, about {left_s / 60:.0f} min left")
            self._tend()
            if len(self.kinds) - len(self.over) < AT_ONCE:
                self._submit()
            if time.monotonic() >= next_at:
                for _ in range(self.dice.choice((1, 1, 1, 2))):
                    self._kill()
                next_at = time.monotonic() + self.dice.expovariate(1 / MEAN_PAUSE_S)
            self._follow()
            time.sleep(0.1)

    def settle(self) -> list[str]:
        """Let everything come to its end; return what did not in time."""
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            self._tend()
            self._follow()
            if self._submitting is not None:
                self._submit()
            elif not (set(self.kinds) - self.over):
                return []
            time.sleep(0.2)
        late = self.kinds.keys() - self.over
        return [f"{name} ({self.kinds[name]}) is not over" for name in late]

    def _tend(self) -> None:
        if self._database_at is not None and time.monotonic() >= self._database_at:
            assert self.database is not None
            self.database.start()
            self._database_at = None
        self.lab.stack.tend(self.lab.said.append)

    def _submit(self) -> None:
        """Submit an experiment; one whose answer was lost is submitted again by the same key."""
        if self._submitting is None:
            kind = self.dice.choice((Kind.HEALTHY, Kind.HEALTHY, *Kind))
            self._submitting = (f"{kind}-{len(self.kinds)}-{self.dice.getrandbits(40):x}", kind)
        key, kind = self._submitting
        body = {"plan": plan_of(kind, self.scripts), "name": key}
        try:
            answer = self.lab.client.post("/experiments", body, **{"Idempotency-Key": key})
        except Unavailable:
            return
        self.kinds[answer["id"]] = kind
        self._submitting = None

    def _follow(self) -> None:
        """Take what is new in the feed, and see which experiments are over."""
        try:
            after = self.events[-1]["cursor"] if self.events else 0
            page = self.lab.client.get("/events", after=after, limit=200)
            self.events += page["items"]
            for name in set(self.kinds) - self.over:
                state = self.lab.client.get(f"/experiments/{name}")["state"]
                if state in ("finished", "awaiting_decision"):
                    self.over.add(name)
        except Unavailable:
            return

    def _kill(self) -> None:
        kinds = [*_PARTS, "watcher", "watcher", "keeper"]
        kinds += ["database"] if self.database is not None else []
        kind = self.dice.choice(kinds)
        pid: int | None = None
        if kind in _PARTS:
            process = self.lab.stack.child(kind).process
            pid = process.pid if process is not None and process.poll() is None else None
        elif kind == "database":
            if self.database is None or self.database.process is None:
                return
            self.database.kill()
            self._database_at = time.monotonic() + self.dice.uniform(0.0, DOWN_S)
            self.killed[kind] += 1
            return
        else:
            pid = self._run_part(kind)
        if pid is not None:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            self.killed[kind] += 1

    def _run_part(self, kind: str) -> int | None:
        """Return the watcher or keeper of a living run that may still lose one."""
        found = []
        for folder in sorted((self.lab.stack.home / "runs").glob("run_*")):
            run = RunDir(folder)
            try:
                keeper = read_json(folder / "keeper.json")
                order = read_json(run.order)
            except (OSError, ValueError):
                continue
            if run.exit.exists() or not Path(f"/proc/{keeper['pid']}").exists():
                continue
            found.append((run, keeper, (order["experiment"], order["phase"])))
        if not found:
            return None
        run, keeper, phase = self.dice.choice(found)
        if kind == "watcher":
            deaths = self._watchers.setdefault(run.path.name, deque(maxlen=3))
            now = time.monotonic()
            if keeper.get("watcher") is None or (len(deaths) == 3 and now - deaths[0] < 60):
                return None
            deaths.append(now)
            if not (run.path / "watch.jsonl").exists():
                self.unseen.add(phase[0])
            return int(keeper["watcher"]["pid"])
        if self._keepers[phase] == 2 or last_step(run, 0) == 0:
            return None
        self._keepers[phase] += 1
        self.keepers_killed.add(run.path.name)
        return int(keeper["pid"])


@contextmanager
def opened(seed: int) -> Iterator[Chaos]:
    """Start everything in a fresh home, which is removed in the end."""
    home = Path(tempfile.mkdtemp(prefix="gonogo-chaos-"))
    initdb = find_program("postgres")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        receiver = Receiver()
        stack.callback(receiver.close)
        more = {
            "GONOGO_WEBHOOK_URL": receiver.url,
            "GONOGO_WORKER_ALLOW": sys.executable,
            "GONOGO_WORKER_DEVICES": f"cpu:{AT_ONCE}",
        }
        database = None
        if initdb is not None:
            database = PostgresServer.create(initdb, durable=True)
            stack.callback(database.stop)
            more["GONOGO_DATABASE_URL"] = database.new_database()
        settings = load_settings({**clean_environ(home), **more})
        whole = stack.enter_context(Stack(settings=settings, port=0))
        client = stack.enter_context(Client(whole.url, settings.key()))
        scripts = home / "scripts"
        scripts.mkdir()
        yield Chaos(
            lab=Lab(stack=whole, client=client),
            database=database,
            receiver=receiver,
            dice=random.Random(seed),
            scripts=scripts,
        )


def run_chaos(
    seed: int, kills: int, limit_s: float, say: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Kill, settle, look; return what is wrong, a sentence each."""
    with opened(seed) as chaos:
        chaos.go(kills, limit_s, say)
        say(f"seed {seed}: {sum(chaos.killed.values())} kills {dict(sorted(chaos.killed.items()))}")
        left = chaos.settle()
        wrong = [*left, *problems_of(chaos)]
        say(f"{len(chaos.kinds)} experiments, {len(chaos.events)} events, {len(wrong)} problems")
        if wrong:
            kept = Path(tempfile.mkdtemp(prefix="gonogo-chaos-kept-"))
            sockets = shutil.ignore_patterns("*.sock")
            shutil.copytree(chaos.lab.stack.home, kept / "home", ignore=sockets)
            say(f"the home is kept in {kept}")
        return wrong


def main() -> int:
    """Say what is wrong after so many kills; exit code 1 where anything is."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.chaos", allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--limit-s", type=float, default=3000.0)
    asked = parser.parse_args()
    wrong = run_chaos(asked.seed, asked.kills, asked.limit_s, lambda text: print(text, flush=True))
    for text in wrong:
        print(f"- {text}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
