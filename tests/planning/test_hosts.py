"""What does a plan say of hosts and of a cluster? Orders get it; no rule depends on it."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.canonical import digest
from gonogo.contract.errors import Rejected
from gonogo.contract.order import Order
from gonogo.contract.workload import ClusterRequest, SlurmCluster
from gonogo.judge.gate.rules import build_rules
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import ResolvedPlan, bundled_plan

DEMO = bundled_plan("demo")
SLURM = {"partition": "gpu", "time_limit": "1:00:00", "extra": {"cpus-per-task": 8}}
ON_TWO = {"workload.nodes": 2, "cluster.slurm": SLURM}
COMMAND = {
    "v": 1,
    "name": "mine",
    "profile": "cpu",
    "workload": {"command": "python train.py", "nodes": 2, "world_size": 2},
    "phases": [{"name": "smoke", "steps": 3}],
}


def order_of(resolved: ResolvedPlan) -> Order:
    return build_order(resolved, "smoke", experiment="exp", run="run", token=1)


def test_an_order_says_on_how_many_hosts_and_what_its_scheduler_is_asked_for() -> None:
    order = order_of(resolve_plan(DEMO, ON_TWO))
    asked = SlurmCluster(partition="gpu", time_limit="1:00:00", extra={"cpus-per-task": "8"})
    assert (order.nodes, order.cluster) == (2, ClusterRequest(slurm=asked))
    said = order.document()["cluster"]
    assert said == {"slurm": {**SLURM, "extra": {"cpus-per-task": "8"}}}
    assert Order.model_validate(order.document()) == order


def test_place_and_cluster_enter_neither_rules_nor_the_digest_of_the_plan() -> None:
    here, there = resolve_plan(DEMO), resolve_plan(DEMO, ON_TWO)
    assert there.plan != here.plan
    assert there.plan_digest() == here.plan_digest()
    rules = [digest(build_rules(order_of(plan), []).wire()) for plan in (here, there)]
    assert rules[0] == rules[1]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"workload.nodes": 0}, "workload.nodes", "greater than or equal to 1"),
    ({"workload.nodes": 3}, "workload.world_size", "found 2; expected a multiple of"),
    (
        {"workload.nodes": 2, "phases.smoke.workload": {"world_size": 1}},
        "phases.smoke.workload.world_size",
        "found 1; expected a multiple of workload.nodes, 2",
    ),
    (
        {"workload.nodes": 2, "remedies": {"out_of_memory": {"workload": {"world_size": 1}}}},
        "remedies.out_of_memory.workload.world_size",
        "found 1; expected a multiple of workload.nodes, 2",
    ),
    ({"phases.smoke.workload.nodes": 2}, "phases.smoke.workload.nodes", "unknown key"),
    ({"cluster.slrum": {}}, "cluster.slrum", "did you mean slurm?"),
    ({"cluster.slurm.partitoin": "gpu"}, "cluster.slurm.partitoin", "did you mean partition?"),
    ({"cluster.slurm.partition": "gpu; rm"}, "cluster.slurm.partition", "one word as sbatch"),
    ({"cluster.slurm.time_limit": "soon"}, "cluster.slurm.time_limit", "minutes, or [days-]"),
    ({"cluster.slurm.extra": {"requeue": "x"}}, "cluster.slurm.extra.requeue", "found 'requeue'; "),
    ({"cluster.slurm.extra": {"wrap": "x"}}, "cluster.slurm.extra.wrap", "reservation"),
]


@pytest.mark.parametrize(("sets", "path", "said"), REFUSED, ids=[str(row[0]) for row in REFUSED])
def test_what_no_cluster_could_do_is_refused_with_its_path(
    sets: dict[str, Any], path: str, said: str
) -> None:
    with pytest.raises(Rejected) as refused:
        resolve_plan(DEMO, sets)
    rows = {row.path: row.message for row in refused.value.problems}
    assert path in rows
    assert said in rows[path]


def test_a_command_on_several_hosts_is_started_on_each() -> None:
    order = order_of(resolve_plan(COMMAND))
    assert (order.command, order.nodes, order.entry) == (["python", "train.py"], 2, None)


def test_arguments_of_what_takes_none_are_refused() -> None:
    with pytest.raises(Rejected, match=r"workload\.args: expected none: a command has its own"):
        resolve_plan({**COMMAND, "workload": {"command": "a b", "args": ["x"]}})
    with pytest.raises(Rejected, match=r"workload\.args: expected none: nsa.train reads train"):
        resolve_plan(DEMO, {"workload.args": ["x"]})
