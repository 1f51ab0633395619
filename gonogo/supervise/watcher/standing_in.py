"""What if the keeper stands still? The watcher wakes it, and ends the run itself where that is due.

One that is seen stopped for `keeper_s` is told to go on (`waking`). One that does not obey `.kill`,
stopped or hung, is told so after the grace and `keeper_s` more; where the run still has no end a
moment later, every process of it is ended from here, as the keeper would have
(`gonogo.supervise.keeper.kill`). exit.json stays the keeper's to write, when it is awake.
"""

import logging
import signal

from gonogo.contract.order import Order
from gonogo.rundir import RunDir
from gonogo.supervise.durable import load_json
from gonogo.supervise.end_request import KILL_NAME, load_request
from gonogo.supervise.keeper.kill import Killer
from gonogo.supervise.keeper.living import living_keeper
from gonogo.supervise.keeper.marked import environs_of
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import ProcessRef
from gonogo.supervise.rank_record import load_rank_record, recorded_ranks
from gonogo.supervise.watcher.waking import AWAY_S, Waking, state_of

WAKE_S = 2.0
"""How long a keeper that was woken gets."""

_log = logging.getLogger("gonogo.supervise.watcher")


class StandIn:
    """Looks after the keeper of one run.

    Args:
        run_dir: the run's directory.
        order: its order.
        own: this process, whose tree stays.
    """

    def __init__(self, run_dir: RunDir, order: Order, own: int) -> None:
        self._dir, self._order, self._own = run_dir, order, own
        self._place = Place.of(order.document())
        self._keeper_s = order.watch.watcher.keeper_s
        self._waking = Waking(run_dir.path, self._place, self._keeper_s)
        self._asked_at: float | None = None
        self._woken_at: float | None = None
        self._tended = 0.0
        self._killer: Killer | None = None

    def tend(self, now: float) -> None:
        """Do what the keeper should have done by now.

        Args:
            now: monotonic seconds.
        """
        away, self._tended = now - self._tended >= AWAY_S, now
        if self._dir.exit.exists():
            return
        request = load_request(self._dir.path / KILL_NAME)
        if request is None:
            self._waking.look(now)
            return
        if self._asked_at is None or away:
            self._asked_at, self._woken_at = now, None
        if now - self._asked_at < request.grace_s + self._keeper_s:
            return
        keeper = living_keeper(self._dir.path)
        if keeper is None:
            return
        if self._woken_at is None:
            _log.error(
                "the keeper does not obey .kill (state %s): it is told to go on",
                state_of(keeper) or "gone",
                extra={"action": "keeper_hangs"},
            )
            keeper.send(signal.SIGCONT)
            self._woken_at = now
        elif now - self._woken_at >= WAKE_S:
            self._end(keeper, now)

    def _end(self, keeper: ProcessRef, now: float) -> None:
        if self._killer is None:
            _log.error("the keeper hangs: the run is ended", extra={"action": "stood_in"})
            self._killer = self._build_killer(keeper, now)
        self._killer.advance(now)

    def _build_killer(self, keeper: ProcessRef, now: float) -> Killer:
        children = load_json(self._dir.path / "keeper.json") or {}
        folder = self._dir.path
        here = [rank for rank in recorded_ranks(folder) if rank in self._place.ranks]
        records = [load_rank_record(folder, rank) for rank in here]
        others = [children.get(name) or {} for name in ("sampler", "follower")]
        spared = frozenset({self._own, keeper.pid, *(int(row.get("pid", 0)) for row in others)})
        agent = children.get("agent") or {}
        return Killer(
            token=self._order.run,
            agent=ProcessRef(pid=agent["pid"], start_ticks=agent["start_ticks"]) if agent else None,
            ranks=[record.ref for record in records if record is not None],
            spare=lambda: spared,
            grace_s=0.0,
            dump=False,
            now=now,
            root=keeper.pid,
            environs=environs_of(self._order.run, self._place, folder),
        )
