"""Which loops are there, and when do they run? The table; a new loop is one row."""

from service.alerts.delivery import Deliveries
from service.conductor.accounts import Accounts
from service.conductor.approvals import Approvals
from service.conductor.campaigns import Campaigns
from service.conductor.deadlines import Deadlines
from service.conductor.judge import Judging
from service.conductor.leader import Leader
from service.conductor.leases import Leases
from service.conductor.loop import Loop
from service.conductor.packing import Packing
from service.conductor.upkeep import Cursors, Upkeep
from service.conductor.wake import Waker
from service.context import Context
from service.db.store import Topic
from service.report.writing import Reports

JOIN_S = 5.0
CURSORS_S = 0.1
"""How long an event may wait for its place in the order of all, so that many get theirs at once."""

WAKE_S = 0.1
"""How long a queued run may wait for its message, so that many are told of at once."""


class Conductor:
    """Runs every loop while this service leads."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._leader = Leader(context.store, context.settings.home / "conductor.lock")
        self._waker = Waker(context)
        self._deliveries = Deliveries(context)
        self._judging = Judging(context)
        leases = Leases(context)
        self.loops = [
            Loop(name="judging", run_once=self._judging.run_once, every_s=0.5, hears=Topic.ENDED),
            Loop(
                name="wake",
                run_once=self._waker.run_once,
                every_s=1.0,
                hears=Topic.QUEUED,
                pause_s=WAKE_S,
            ),
            Loop(name="leases", run_once=leases.run_once, every_s=2.0, forget=leases.forget),
            Loop(name="approvals", run_once=Approvals(context).run_once, every_s=1.0),
            Loop(name="deadlines", run_once=Deadlines(context).run_once, every_s=5.0),
            Loop(name="campaigns", run_once=Campaigns(context).run_once, every_s=1.0),
            Loop(
                name="alerts", run_once=self._deliveries.run_once, every_s=0.5, hears=Topic.ALERTS
            ),
            Loop(
                name="cursors",
                run_once=Cursors(context).run_once,
                every_s=0.5,
                hears=Topic.EVENTS,
                pause_s=CURSORS_S,
            ),
            Loop(name="reports", run_once=Reports(context).run_once, every_s=10.0),
            Loop(name="accounts", run_once=Accounts(context).run_once, every_s=15.0),
            Loop(name="packing", run_once=Packing(context).run_once, every_s=10.0),
            Loop(name="upkeep", run_once=Upkeep(context).run_once, every_s=30.0),
        ]

    def start(self) -> None:
        """Start every loop."""
        for loop in self.loops:
            loop.start(self._context, lambda: self._leader.leads(self._context.mono()))

    def close(self) -> None:
        """End every loop (the context is closing) and give the lead away."""
        for loop in self.loops:
            loop.join(JOIN_S)
        self._judging.close()
        self._deliveries.close()
        self._leader.close()
        self._waker.close()
