"""What a text may mean is looked up alike on both databases."""

from __future__ import annotations

import pytest

from tests.service.conftest import Plane


def found(plane: Plane, text: str, **more: object) -> list[str]:
    answer = plane.get("/find", text=text, **more)
    assert answer["next_cursor"] is None
    return [row["id"] for row in answer["items"]]


def test_ids_by_their_beginning_and_experiments_by_name(plane: Plane) -> None:
    first, second = plane.submit(name="per_cent 5%"), plane.submit(name="second")
    runs = {name: plane.experiment(name)["phases"][0]["runs"][0] for name in (first, second)}
    assert found(plane, first) == [first]
    assert found(plane, first.lower(), kind="exp") == [first]
    assert found(plane, first.removeprefix("exp_")) == [first]
    assert found(plane, "per_cent 5%") == [first]
    assert found(plane, "exp_", kind="exp") == [second, first]
    assert set(found(plane, "", kind=["exp", "run"])) == {first, second, *runs.values()}
    assert found(plane, runs[first]) == [runs[first]]
    assert found(plane, runs[first], kind="exp") == []
    assert len(found(plane, "exp_", limit=1)) == 1


@pytest.mark.parametrize("text", ["per", "perXcent 5%", "per_cent 5x", "%", "_", "exp_%", "secon'"])
def test_no_sign_stands_for_others_and_a_name_is_whole(text: str, plane: Plane) -> None:
    plane.submit(name="per_cent 5%")
    assert found(plane, text) == []


def test_what_is_found_says_what_it_is(plane: Plane) -> None:
    first = plane.submit(name="mine")
    (run,) = plane.get("/find", text="run_", kind="run")["items"]
    assert (run["name"], run["experiment"], run["phase"], run["state"]) == (
        "mine",
        first,
        "sanity",
        "queued",
    )
    assert plane.call("GET", "/find", params={"text": "x" * 201}).status_code == 422
    assert plane.call("GET", "/find", params={"text": "x\x00"}).status_code in (200, 422)
    assert plane.call("GET", "/find", params={"kind": "sky"}).status_code == 422
