"""Who looks at a run? The watcher: every tick it reads, probes, folds, records, and then acts.

`python -m worker.watcher RUNDIR`, a child of the keeper. It holds nothing that the run directory
cannot give back: killed at any moment, the next one folds watch.jsonl and the heartbeat files
again and goes on. It asks nobody before it ends a run, and telemetry never delays a tick. After
`exit.json` it folds what is left, ships what is left for at most GIVE_UP_S, and ends.

Guarantees: a tick that brought anything is recorded before its findings, those before anything is
done; `.GO` is written only when every rank's identity equals the order; what the fold sees is what
is recorded. Not covered: who watches the watcher (the keeper restarts it, `.metrics.json` tells
when it last ticked).
"""

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gonogo.contract.errors import GonogoError
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.contract.rundir import RunDir, load_record
from gonogo.contract.tick import ProcessState, Tick
from gonogo.judge.watch import armed, fold, identity_ok, snapshot
from worker.evidence import Evidence, Target
from worker.halting import Halting
from worker.journal import Journal
from worker.metrics_file import METRICS_NAME, save_metrics
from worker.pace import Pace
from worker.probes import Prober
from worker.processes import die_with_parent
from worker.settings import load_settings
from worker.shipping import Shipping

INTERVAL_S = 0.2
LATE_INTERVALS = 3
METRICS_EVERY_S = 1.0
GIVE_UP_S = 30.0
SUSPECT_S = 10.0
"""How long a run is shown as suspect after a suspicion that went no further."""

_log = logging.getLogger("worker.watcher")


class Watcher:
    """Watches one run.

    Args:
        run_dir: the run's directory.
        order: its order.
        shipping: the thread that ships, or None offline.
        now: monotonic seconds.
    """

    def __init__(
        self, run_dir: RunDir, order: Order, shipping: Shipping | None, now: float
    ) -> None:
        self._dir, self._order, self._shipping = run_dir, order, shipping
        self._journal = Journal(run_dir)
        self._pace = Pace()
        memory = self._journal.recover(order, self._pace.observe)
        self._state, self._tails = memory.state, memory.tails
        self._number = memory.ticks
        self._due = now if memory.mono is None else memory.mono + INTERVAL_S
        self._prober = Prober(run_dir=run_dir, world_size=order.world_size)
        self._evidence = Evidence(run_dir)
        self._halting = Halting(
            run_dir, order, self._pace, self._evidence, self._targets, self._step_of
        )
        self._counts: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._metrics_at = self._suspect_until = float("-inf")
        for finding in memory.findings:
            self._count(finding)
        for finding in memory.unrecorded:
            self._journal.add_finding(finding)
        self._halting.resume(memory.findings, now)

    def watch(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Tick until the run has ended and every line of it has been folded."""
        look_until: float | None = None
        while True:
            now = clock()
            ended = self._dir.exit.exists()
            brought = self.tick(now)
            if ended:
                look_until = look_until or now + self._last_look_s()
                if now >= look_until and not brought:
                    return
            else:
                self._act(now)
            sleep(max(0.0, now + INTERVAL_S - clock()))

    def _last_look_s(self) -> float:
        """Return how long to look on after exit.json: until every kind of end is judged."""
        record = load_record(self._dir.exit, ExitRecord)
        if record is not None and record.reason is OutcomeCode.COMPLETED:
            return 0.0
        return self._order.watch.process_death.settle_s + 2 * INTERVAL_S

    def tick(self, now: float) -> bool:
        """Look once; True when the ranks had written something.

        Args:
            now: monotonic seconds.
        """
        late_s = max(0.0, now - self._due)
        self._due = now + INTERVAL_S
        asked = self._halting.asked()
        probes = self._prober.look(now, ending=asked)
        beats = self._tails.read()
        if asked and not beats and self._prober.all_gone():
            return False  # nobody is left whose silence could mean anything
        for lines in beats.values():
            self._pace.observe(lines)
        tick = Tick(
            n=self._number,
            mono=now,
            ts=time.time(),
            interval_s=INTERVAL_S,
            late_s=late_s if late_s > LATE_INTERVALS * INTERVAL_S else 0.0,
            upto={str(rank): self._tails.offsets[rank] for rank in beats},
            ranks=probes.ranks,
            agent=probes.agent,
            stacks=self._evidence.take_probes(),
            go=self._dir.go.exists(),
        )
        self._number += 1
        self._state, findings = fold(self._state, tick, beats)
        brought = bool(beats or probes.ranks or probes.agent or tick.stacks or tick.late_s)
        if brought or findings:
            self._journal.add_tick(tick)
        for finding in findings:
            self._record(finding, now)
        if not tick.go and not asked and identity_ok(self._state):
            self._dir.go.touch()
        if self._shipping is not None:
            self._shipping.suspect = now < self._suspect_until
        if now >= self._metrics_at:
            self._metrics_at = now + METRICS_EVERY_S
            self._save_metrics(tick.ts)
        return bool(beats)

    def _act(self, now: float) -> None:
        """Do what findings, the control plane or its silence ask for."""
        shipping = self._shipping
        if shipping is not None:
            command = shipping.take_command()
            if command is not None:
                self._halting.obey(command, now)
            limit_s = self._order.limits.isolated_limit_s
            if limit_s is not None and (silent_s := shipping.silent_s()) >= limit_s:
                self._halting.isolate(silent_s, now)
        self._halting.advance(now)

    def _record(self, finding: Finding, now: float) -> None:
        """Write a finding down once, with the evidence that is being taken for it."""
        if finding.key in self._seen:
            return
        if not self._dir.exit.exists():
            finding = self._halting.observe(finding, now)
        self._journal.add_finding(finding)
        self._count(finding)
        _log.warning("%s: %s", finding.severity, finding.text, extra={"action": "finding"})
        if finding.severity is Severity.SUSPECT:
            self._suspect_until = now + SUSPECT_S

    def _count(self, finding: Finding) -> None:
        self._seen.add(finding.key)
        self._counts[f"{finding.detector.value}/{finding.severity.value}"] += 1

    def _step_of(self, rank: int) -> int:
        row = snapshot(self._state).ranks.get(rank)
        return row.step if row is not None else 0

    def _targets(self) -> dict[int, Target]:
        """Return every rank's process for a round of evidence."""
        found = {}
        for rank in range(self._order.world_size):
            ref = self._prober.pids.get(rank)
            state = self._prober.state_of(rank)
            gone = ref is None or state is ProcessState.DEAD
            found[rank] = Target(
                rank=rank,
                pid=None if gone or ref is None else ref.pid,
                stopped=state is ProcessState.STOPPED,
            )
        return found

    def _save_metrics(self, now: float) -> None:
        """Tell the worker's exporter; a disk that refuses costs a gap in a chart."""
        try:
            save_metrics(self._dir.path / METRICS_NAME, self._metrics(now))
        except OSError as error:
            _log.warning("metrics: %s", error, extra={"action": "metrics_unwritten"})

    def _metrics(self, now: float) -> dict[str, Any]:
        view = snapshot(self._state)
        return {
            "tick": now,
            "backlog": self._shipping.backlog_lines if self._shipping is not None else 0,
            "ranks": {
                str(row.rank): {"step": row.step, "last": row.heard_ts, "loss": row.loss}
                for row in view.ranks.values()
            },
            "armed": {detector.value: on for detector, on in armed(self._state).items()},
            "findings": dict(self._counts),
            "step_s": self._pace.histogram,
        }


def ship_the_rest(run_dir: RunDir, shipping: Shipping) -> None:
    """Ship until everything arrived, for at most GIVE_UP_S; the worker's reaper does the rest."""
    record = load_record(run_dir.exit, ExitRecord)
    if record is None:
        return
    shipping.finish(record)
    if not shipping.finished.wait(GIVE_UP_S):
        _log.warning("left unshipped", extra={"action": "left_unshipped"})
    shipping.stop()


def main(argv: Sequence[str]) -> int:
    """Watch one run from the environment's control plane."""
    parser = argparse.ArgumentParser(prog="worker.watcher")
    parser.add_argument("run_dir", type=Path)
    run_dir = RunDir(parser.parse_args(argv).run_dir.absolute())
    die_with_parent()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        order = load_record(run_dir.order, Order)
    except GonogoError as error:
        _log.error("%s", error, extra={"action": "bad_order"})
        return 2
    if order is None:
        return 2
    shipping = _start_shipping(run_dir, order)
    watcher = Watcher(run_dir, order, shipping, time.monotonic())
    watcher.watch(time.monotonic, time.sleep)
    if shipping is not None:
        ship_the_rest(run_dir, shipping)
    return 0


def _start_shipping(run_dir: RunDir, order: Order) -> Shipping | None:
    """Start the thread that ships; None without a key."""
    settings = load_settings()
    key = settings.api_key
    if key is None:
        return None

    def connect() -> Any:
        from worker.client import ControlPlane
        from worker.telemetry import Shipper

        return Shipper(run_dir, order.run, order.token, ControlPlane(settings.url, key))

    shipping = Shipping(connect)
    shipping.start()
    return shipping


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
