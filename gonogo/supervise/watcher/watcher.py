"""The watcher's loop: look, fold, record, report, act.

It keeps nothing that the run directory cannot give back: killed at any moment, the next one
continues (`journal`). It asks nobody before it ends a run, and shipping never delays a tick. After
`exit.json` it folds the rest, and its last tick records that it saw the end.

`python -m gonogo.supervise.watcher RUNDIR [--signs FD]` watches offline; a service's worker calls
`main` with its own `Shipping`.

Guarantees: `.GO` is written only when every rank's identity equals the order. What the fold sees is
what is recorded. A record or a look that fails is counted and logged, and ends nothing.

Exit codes: 0 the end was seen · 2 no readable order.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gonogo.contract.errors import GonogoError
from gonogo.contract.finding import Finding
from gonogo.contract.observation import Kind, checkpoints_of
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.plan import hardware_profiles
from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.evidence.rounds import Evidence
from gonogo.supervise.keeper.keeper import LAST_WORDS_S
from gonogo.supervise.processes import LifeSigns, die_with_parent
from gonogo.supervise.transient_errors import TransientErrors
from gonogo.supervise.watcher.halting import Halting
from gonogo.supervise.watcher.journal import WATCHED_NAME, Journal
from gonogo.supervise.watcher.look import INTERVAL_S, Looking
from gonogo.supervise.watcher.metrics_file import Reporter, Shipping
from gonogo.watch.detectors.death import settles_s
from gonogo.watch.fold import fold, identity_ok

OWED_S = LAST_WORDS_S / 2
"""How long the watcher stays for the verification of a checkpoint after the end."""
FORESEE_TICKS = 4  # How often a near deadline is looked for.

Connect = Callable[[RunDir, Order], Shipping]

_log = logging.getLogger("gonogo.supervise.watcher")


def main(argv: Sequence[str], connect: Connect = lambda _run_dir, _order: Shipping()) -> int:
    """Watch one run, shipped by what `connect` makes; see the module's text for the exit codes."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.watcher")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--signs", type=int, default=None, metavar="FD")
    asked = parser.parse_args(argv)
    start_watching()
    run_dir = RunDir(asked.run_dir.absolute())
    try:
        order = load_record(run_dir.order, Order)
    except GonogoError as error:
        _log.error("%s", error, extra={"action": "bad_order"})
        return 2
    if order is None:
        return 2
    shipping = connect(run_dir, order)
    watcher = Watcher(run_dir, order, shipping, time.monotonic(), LifeSigns(asked.signs))
    if not (run_dir.exit.exists() and (run_dir.path / WATCHED_NAME).exists()):
        watcher.watch(time.monotonic, time.sleep)
    shipping.close(load_exit(run_dir))
    return 0


def start_watching() -> None:
    """Prepare this process: it dies with its keeper, and logs to standard error."""
    die_with_parent()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )


class Watcher:
    """Watches one run."""

    def __init__(
        self,
        run_dir: RunDir,
        order: Order,
        shipping: Shipping,
        now: float,
        signs: LifeSigns | None = None,
    ) -> None:
        self._dir, self._order, self._shipping = run_dir, order, shipping
        self._signs = signs or LifeSigns()
        self._transient = TransientErrors(_log)
        hardware_profiles()  # read now: the installation may be replaced under a run
        self._journal = Journal(run_dir, order)
        self._state, memory = self._journal.state, self._journal.memory
        self._found, self._pace = memory.found, memory.pace
        evidence = Evidence(run_dir)
        self._looking = Looking(run_dir, order, self._journal, evidence, now)
        self._reporter = Reporter(run_dir, shipping, self._pace)
        self._halting = Halting(
            run_dir, order, self._pace, evidence, self._looking.processes, self._step_of
        )
        self._halting.resume(list(self._found.values()), now)
        last = self._state.view.observed.get(Kind.CHECKPOINTS)
        if last is not None and any(seen.verified for seen in checkpoints_of(last.payload) or ()):
            self._halting.saved(last.ts)

    def watch(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Tick until the run has ended and every line of it has been folded."""
        look_until: float | None = None
        tried = self._transient.tried
        while True:
            now = clock()
            ended = tried("the end", self._dir.exit.exists, False)
            brought = tried("a look", partial(self.tick, now), False)
            self._signs.give(now)
            if ended:
                look_until = look_until or now + self._last_look_s()
                owes = now < look_until + OWED_S and self._looking.owes()
                if now >= look_until and not brought and not owes:
                    self._close(clock, sleep, until=look_until + OWED_S)
                    return
            else:
                tried("a request", partial(self._act, now), None)
            sleep(max(0.0, now + INTERVAL_S - clock()))

    def _close(
        self, clock: Callable[[], float], sleep: Callable[[float], None], until: float
    ) -> None:
        """Record the last tick, which seals exit.json; repeat that until then if it fails."""
        while not self._looking.closed:
            now = clock()
            self._transient.tried("a look", partial(self.tick, now, last=True), False)
            self._signs.give(now)
            if now >= until:
                break
            sleep(max(0.0, now + INTERVAL_S - clock()))
        self._journal.close()

    def _last_look_s(self) -> float:
        record = load_exit(self._dir)
        if record is not None and record.reason is OutcomeCode.COMPLETED:
            return 0.0
        return settles_s(self._order) + 2 * INTERVAL_S

    def tick(self, now: float, *, last: bool = False) -> bool:
        """Look once, the `last` time to close the watch; return whether ranks had written."""
        asked = self._halting.asked()
        look = self._looking.look(now, ending=asked, last=last)
        if look is None:
            return False
        tick, beats = look
        self._state, findings = fold(self._state, tick, beats, self._pace.take)
        kept = checkpoints_of(tick.observations.get(Kind.CHECKPOINTS)) or ()
        if any(seen.verified for seen in kept):
            self._halting.saved(tick.ts)
        if findings or self._journal.owes(tick):
            self._journal.add_tick(tick, self._state, beats)
        for finding in findings:
            self._record(finding, now)
        came = sum(map(len, beats.values()))
        self._journal.save_snapshot(now, came, self._state)
        if not asked and tick.n % FORESEE_TICKS == 0:
            foresee = partial(self._halting.foresee, self._state, now)
            self._transient.tried("evidence", foresee, None)
        if not tick.go and not asked and identity_ok(self._state):
            self._transient.tried(".GO", self._dir.go.touch, None)
        self._reporter.report(now, tick.ts, self._state, self._found.values())
        return bool(beats)

    def _record(self, finding: Finding, now: float) -> None:
        if finding.key in self._found:
            return
        if not self._transient.tried("the end", self._dir.exit.exists, False):
            observe = partial(self._halting.observe, finding, now)
            finding = self._transient.tried("evidence", observe, finding)
        self._journal.add_finding(finding)
        if self._journal.waits:
            self._shipping.tell(finding)
        self._reporter.note(finding, now)

    def _act(self, now: float) -> None:
        command = self._shipping.take_command()
        if command is not None:
            self._halting.obey(command, now)
        limit_s = self._order.limits.isolated_limit_s
        if limit_s is not None and (silent_s := self._shipping.silent_s()) >= limit_s:
            self._halting.isolate(silent_s, now)
        for node, proof in self._looking.processes.lost().items():
            self._halting.lose(node, proof)
        if self._halting.asked():
            self._halting.hurry(self._state.streams, now)
        self._halting.advance(now)

    def _step_of(self, rank: int) -> int:
        row = self._state.streams.get(rank)
        return row.step if row is not None else 0


def load_exit(run_dir: RunDir) -> ExitRecord | None:
    """Return exit.json; None while there is none that can be read."""
    try:
        return load_record(run_dir.exit, ExitRecord)
    except GonogoError as error:
        _log.error("%s", error, extra={"action": "exit_corrupt"})
        return None
