"""D22: what runs is what was ordered."""

from typing import Any

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Identity
from gonogo.watch.fold import identity_ok
from tests.watch.streams import IDENTITY, Watched, World, order_of, watch


def booted(told: dict[str, Any] | None = None, **order: Any) -> Watched:
    return watch(World(order_of(**order)).boot(**(told or {})))


def test_the_ordered_identity_on_every_rank_is_let_go() -> None:
    found = booted()
    assert found.findings == []
    assert identity_ok(found.state) is True


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("config_digest", "d" * 64), ("params", 254_499), ("nsa_env", {}),
        ("nsa_env", {"NSA_TB_DISABLE": "0"}),
    ],
)  # fmt: skip
def test_any_difference_halts_before_the_first_step(name: str, value: Any) -> None:
    found = watch(World(order_of()).boot(**{name: value}).steps(3))
    (halt,) = found.halts
    assert (halt.detector, halt.rank, halt.step) == ("identity", None, 0)
    assert name in halt.text
    assert identity_ok(found.state) is False


@pytest.mark.parametrize("name", sorted(Identity.model_fields.keys() - {"nsa_env"}))
def test_every_field_that_an_order_names_is_held_against_what_runs(name: str) -> None:
    """Shape, batch, data, precision, code and machine (R16); what it leaves open is not checked."""
    wanted, other = _pair_for(name)
    ordered = Identity.model_validate({name: wanted})
    assert booted({name: wanted}, identity=ordered).halts == []
    (halt,) = booted({name: other}, identity=ordered).halts
    assert f"runs {name} " in halt.text
    if name not in ("config_digest", "world_size"):  # which is always ordered
        assert booted({name: other}, identity=Identity()).halts == []


def _pair_for(name: str) -> tuple[Any, Any]:
    """Two values of a field that are not the same."""
    if name == "world_size":
        return 2, 4
    if name == "config_digest":
        return "a" * 64, "b" * 64
    kinds = Identity.model_json_schema()["properties"][name]["anyOf"]
    return (64, 128) if kinds[0]["type"] == "integer" else ("one", "another")


@pytest.mark.parametrize(("params", "halts"), [(1_020_000, False), (1_020_001, True)])
def test_parameters_may_differ_by_two_percent(params: int, halts: bool) -> None:
    assert bool(booted({"params": params}).halts) is halts


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("odd", range(3))
def test_ranks_that_differ_from_each_other_halt_in_whatever_order_they_boot(
    order: tuple[int, ...], odd: int
) -> None:
    found = watch(booting(order, odd))
    (halt,) = found.halts
    assert "runs dataset" in halt.text
    assert f"rank {odd} " in halt.text
    assert identity_ok(found.state) is False


def booting(order: tuple[int, ...], odd: int | None) -> World:
    """Three ranks of which one may run something else that the order leaves open."""
    world = World(order_of(world_size=3, identity=Identity(dim=256)))
    for later, number in enumerate(order):
        rank = world.ranks[number]
        rank.spend(2.0 * later)
        dataset = "synthetic" if number == odd else "local_text"
        rank.say("boot", dim=256, world_size=3, dataset=dataset)
    return world


def test_a_field_that_is_not_told_is_unknown_and_never_let_go() -> None:
    found = booted({"params": None})
    assert found.halts == []
    assert found.named(Severity.WARN) == {"identity"}
    assert identity_ok(found.state) is None


@pytest.mark.parametrize(("allowed", "severity"), [([], "halt"), (["git_sha"], "warn")])
def test_drift_is_a_warning_only_where_it_is_allowed(allowed: list[str], severity: str) -> None:
    identity = IDENTITY.model_copy(update={"git_sha": "a"})
    found = booted({"git_sha": "b"}, identity=identity, allow_drift=allowed)
    assert {finding.severity for finding in found.findings} == {severity}
    assert identity_ok(found.state) is (severity == "warn")


def test_the_environment_of_the_process_itself_is_checked() -> None:
    world = World(order_of()).boot()
    rows = world.probes[-1][1]["ranks"]
    rows[1]["env"] = {"NSA_TB_DISABLE": "1", "NSA_USE_FA2": "1", "HOME": "/"}
    found = watch(world)
    (halt,) = found.halts
    assert "NSA_USE_FA2" in halt.text
    assert identity_ok(found.state) is False


def test_nobody_is_let_go_before_all_ranks_have_booted() -> None:
    world = World(order_of()).boot()
    world.ranks[1].lines.clear()
    assert identity_ok(watch(world).state) is None
