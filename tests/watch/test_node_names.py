"""Findings name the node and the host of a rank or a launcher."""

import pytest

from gonogo.watch import dump_state, load_state
from gonogo.watch.registry import detector_names
from tests.watch.streams import World, order_of, watch


def world_of(step_s: float) -> World:
    """Two ranks, each on its own node, that have trained for a while."""
    order = order_of({}, steps=2000, detectors=detector_names(), nodes=2)
    return World(order, alive_every_s=5.0).boot().steps(40, step_s=step_s)


@pytest.mark.parametrize("told", [True, False])
def test_who_is_named_is_so_with_its_node_and_that_ones_host(told: bool) -> None:
    """A node's number is no name: the host of node 1 may well be called node2."""
    world = world_of(1.0)
    if told:
        row = {"node": 1, "state": "heard", "host": "node2"}
        world.probes.append((world.mono, {"nodes": [row]}))
    world.open_step()
    world.hang(1, "backward", 120.0)
    seen = watch(world, interval_s=1.0)
    restored = load_state(world.order, dump_state(seen.state))
    assert restored.view.hosts == ({1: "node2"} if told else {})
    text = seen.halts[0].text
    assert text.endswith("(rank 1 is on node 1, host node2)" if told else "(rank 1 is on node 1)")
