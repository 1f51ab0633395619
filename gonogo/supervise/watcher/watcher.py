"""Who looks at a run? The watcher: every tick it looks, folds, records, tells, and then acts.

It holds nothing that the run directory cannot give back: killed at any moment, the next one goes on
from a snapshot of the fold and from what was recorded since. It asks nobody before it ends a run,
and shipping never delays a tick. After `exit.json` it folds what is left and records, by its last
tick, that it saw the end.

Guarantees: a tick that brought anything is recorded before its findings, those before anything is
done; `.GO` is written only when every rank's identity equals the order; what the fold sees is what
is recorded. The first tick says which run is watched under which order, every tick how far each
rank's lines have been read and by which digest, and no QUIET_S go by without one. A record that
cannot be written (a full disk), or a look that fails, is counted and told, and ends nothing. The
keeper and this process look after each other: whichever stands still is woken or replaced, and the
run is ended all the same (`standing_in`, `keeper.watching`).
"""

import logging
import os
from collections.abc import Callable
from functools import partial

from gonogo.contract.errors import GonogoError
from gonogo.contract.finding import Finding
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.observation import Kind, checkpoints_in, checkpoints_of
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.durable import load_json
from gonogo.supervise.evidence.rounds import Evidence
from gonogo.supervise.keeper.keeper import LAST_WORDS_S
from gonogo.supervise.watcher.foresight import halt_ahead
from gonogo.supervise.watcher.halting import Halting
from gonogo.supervise.watcher.looking import INTERVAL_S, Looking
from gonogo.supervise.watcher.pace import Pace
from gonogo.supervise.watcher.recording import Recording
from gonogo.supervise.watcher.shipping import Shipping
from gonogo.supervise.watcher.signs import Signs
from gonogo.supervise.watcher.standing_in import StandIn
from gonogo.supervise.watcher.telling import Telling
from gonogo.supervise.weather import Weather
from gonogo.watch import fold, identity_ok
from gonogo.watch.detectors.death import settles_s

OWED_S = LAST_WORDS_S / 2
"""How long an ended run's watcher stays for a checkpoint that is still being verified: the keeper
ends it after LAST_WORDS_S, and what it saw has to be shipped before."""

_log = logging.getLogger("gonogo.supervise.watcher")


class Watcher:
    """Watches one run.

    Args:
        run_dir: the run's directory.
        order: its order.
        shipping: who ships the run.
        now: monotonic seconds.
        signs: how the keeper knows that this watcher goes on.
    """

    def __init__(
        self,
        run_dir: RunDir,
        order: Order,
        shipping: Shipping,
        now: float,
        signs: Signs | None = None,
    ) -> None:
        self._dir, self._order, self._shipping = run_dir, order, shipping
        self._inode = run_dir.path.stat().st_ino
        self._pace, self._signs = Pace(), signs or Signs()
        self._stand_in = StandIn(run_dir, order, os.getpid())
        self._weather = Weather(_log)
        hardware_profiles()  # read now: the release may be replaced, or removed, under a run
        self._recording = Recording(run_dir, self._pace)
        memory = self._recording.recover(order)
        self._state = memory.state
        evidence = Evidence(run_dir)
        self._looking = Looking(run_dir, order, memory, evidence, now)
        self._telling = Telling(run_dir, shipping, self._pace)
        self._halting = Halting(
            run_dir, order, self._pace, evidence, self._looking.processes, self._step_of
        )
        self._halting.resume(memory.findings, now)
        last = memory.state.view.observed.get(Kind.CHECKPOINTS)
        if last is not None and any(seen.verified for seen in checkpoints_of(last.payload) or ()):
            self._halting.saved(last.ts)

    @property
    def failures(self) -> int:
        """How many records could not be written."""
        return self._recording.failures + self._weather.failures

    def watch(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Tick until the run has ended and every line of it has been folded.

        Or until its directory was set aside for another attempt of it, in which nothing is ours.
        """
        look_until: float | None = None
        tried = self._weather.tried
        while not tried("whose directory it is", self._is_set_aside, False):
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
                tried("the keeper", partial(self._stand_in.tend, now), None)
            sleep(max(0.0, now + INTERVAL_S - clock()))

    def _is_set_aside(self) -> bool:
        """Say whether another claim's directory stands where this one did, or none."""
        try:
            inode = self._dir.path.stat().st_ino
        except FileNotFoundError:
            return False  # removed, or its file system is gone: nothing is written there
        if inode == self._inode:
            return False
        token = (load_json(self._dir.order) or {}).get("token")
        if token == self._order.token:  # a file system whose numbers change
            self._inode = inode
            return False
        _log.warning("set aside for another attempt", extra={"action": "set_aside"})
        return True

    def _close(
        self, clock: Callable[[], float], sleep: Callable[[float], None], until: float
    ) -> None:
        """Record the last tick, which seals exit.json; try until then where that fails."""
        while not self._looking.closed:
            now = clock()
            self._weather.tried("a look", partial(self.tick, now, last=True), False)
            self._signs.give(now)
            if now >= until:
                break
            sleep(max(0.0, now + INTERVAL_S - clock()))
        self._recording.close()

    def _last_look_s(self) -> float:
        """Return how long to look on after exit.json: until every kind of end is judged."""
        record = load_exit(self._dir)
        if record is not None and record.reason is OutcomeCode.COMPLETED:
            return 0.0
        return settles_s(self._order) + 2 * INTERVAL_S

    def tick(self, now: float, *, last: bool = False) -> bool:
        """Look once; True when the ranks had written something.

        Args:
            now: monotonic seconds.
            last: whether this tick is to close the watch.
        """
        asked = self._halting.asked()
        look = self._looking.look(now, ending=asked, last=last)
        if look is None:
            return False
        tick, beats = look.tick, look.beats
        self._state, findings = fold(self._state, tick, beats, self._pace.take)
        if any(seen.verified for seen in checkpoints_in(tick) or ()):
            self._halting.saved(tick.ts)
        if findings or self._recording.owes(tick):
            if self._recording.add_tick(tick, self._state, beats):
                self._looking.note_recorded()
            else:
                self._looking.note_unrecorded(tick)
        for finding in findings:
            self._record(finding, now)
        came = sum(map(len, beats.values()))
        self._recording.put_down(now, came, self._state, self._looking.progress)
        ahead = None if asked else halt_ahead(self._state, tick)
        if ahead is not None:
            self._weather.tried("evidence", partial(self._halting.foresee, ahead, now), None)
        if not tick.go and not asked and identity_ok(self._state):
            self._weather.tried(".GO", self._dir.go.touch, None)
        self._telling.tell(now, tick.ts, self._state, self._recording.found.values())
        return bool(beats)

    def _record(self, finding: Finding, now: float) -> None:
        """Write a finding down once, with the evidence that is being taken for it."""
        if finding.key in self._recording.found:
            return
        if not self._weather.tried("the end", self._dir.exit.exists, False):
            observe = partial(self._halting.observe, finding, now)
            finding = self._weather.tried("evidence", observe, finding)
        self._recording.add_finding(finding)
        if self._recording.waits:
            self._shipping.tell(finding)
        self._telling.note(finding, now)

    def _act(self, now: float) -> None:
        """Do what findings, the control plane or its silence ask for."""
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
    """Return the end, or None while there is none that can be read."""
    try:
        return load_record(run_dir.exit, ExitRecord)
    except GonogoError as error:
        _log.error("%s", error, extra={"action": "exit_corrupt"})
        return None
