"""The table of loops that the conductor runs; a new loop is one row."""

from functools import partial

from service.alerts.delivery import Deliveries
from service.conductor.accounts import Accounts
from service.conductor.judge import Judging
from service.conductor.leader import Leader
from service.conductor.leases import Leases
from service.conductor.loop import Loop
from service.conductor.run_archive import Packing
from service.conductor.upkeep import (
    advance_campaigns,
    alert_late,
    assign_all_cursors,
    expire_approvals,
    forget_keys,
)
from service.conductor.wake import Waker
from service.context import Context
from service.db.store import Topic
from service.report.files import Reports

JOIN_S = 5.0
CURSORS_S = 0.1
"""How long an event may wait for its cursor, so that many get theirs at once."""
WAKE_S = 0.1
"""How long a queued run may wait for its message, so that many are announced at once."""


class Conductor:
    """Runs every loop while this service leads."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._leader = Leader(context.store, context.settings.home / "conductor.lock")
        self._waker = wake = Waker(context)
        self._deliveries = alerts = Deliveries(context)
        self._judging = judging = Judging(context)
        leases = Leases(context)
        campaigns, late = partial(advance_campaigns, context), partial(alert_late, context)
        approvals, cursors = (
            partial(expire_approvals, context),
            partial(assign_all_cursors, context),
        )
        self.loops = [
            Loop("judging", judging.run_once, 0.5, hears=Topic.ENDED),
            Loop("wake", wake.run_once, 1.0, hears=Topic.QUEUED, pause_s=WAKE_S),
            Loop("leases", leases.run_once, 2.0, forget=leases.forget),
            Loop("approvals", approvals, 1.0),
            Loop("deadlines", late, 5.0),
            Loop("campaigns", campaigns, 1.0),
            Loop("alerts", alerts.run_once, 0.5, hears=Topic.ALERTS),
            Loop("cursors", cursors, 0.5, hears=Topic.EVENTS, pause_s=CURSORS_S),
            Loop("reports", Reports(context).run_once, 10.0),
            Loop("accounts", Accounts(context).run_once, 15.0),
            Loop("packing", Packing(context).run_once, 10.0),
            Loop("upkeep", partial(forget_keys, context), 30.0),
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
