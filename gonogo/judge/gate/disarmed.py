"""Does an order hold what no plan may have, so that its watch or its gate is disarmed?

Planning refuses such a plan. An order that was written or edited by hand is judged all the same,
with a condition that names each such setting.
"""

from collections.abc import Iterator

from pydantic import JsonValue

from gonogo.contract.order import Order
from gonogo.contract.plan import DRIFTS

LONGEST_S = 14_400.0
"""The longest ceiling: no place has a longer limit, unless the settings of the plan give it one."""
SILENCES = 3.0
"""Lines that a living rank must have time for before it is suspected to be silent."""


def find_disarmed(order: Order) -> Iterator[tuple[str, JsonValue]]:
    """Yield the path and the value of each setting that no plan may have."""
    every_s = order.heartbeat.alive_every_s
    if every_s > order.watch.alive_lost.suspect_s / SILENCES:
        yield "heartbeat.alive_every_s", every_s
    foreign: list[JsonValue] = [*sorted(set(order.allow_drift).difference(DRIFTS))]
    if foreign:
        yield "allow_drift", foreign
    resolved = order.model_copy(update={"patience": {}}).limits_of_places()
    for place, row in order.patience.items():
        usual_s = resolved[place].seconds if place in resolved else None
        if usual_s is not None and (row.seconds is None or row.seconds > max(usual_s, LONGEST_S)):
            yield f"patience.{place}", row.seconds
