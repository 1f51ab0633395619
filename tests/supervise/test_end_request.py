"""Requests to end a run: the first one stands."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.supervise.durable import save_json
from gonogo.supervise.end_request import (
    ACTORS,
    HALT_LIMIT_S,
    HALT_NAME,
    KILL_NAME,
    REASONS,
    EndRequest,
    ask_halt,
    ask_kill,
    asked_by,
    is_asked,
    load_request,
    until_after,
)


def request(reason: str, at: float = 1.0) -> EndRequest:
    return EndRequest(reason=reason, ended_by="watchdog", at=at, text="t", key="k", grace_s=2.0)


def test_request_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert ask_kill(tmp_path, request("stalled"))
    assert load_request(tmp_path / KILL_NAME) == request("stalled")
    assert load_request(tmp_path / HALT_NAME) is None


def test_second_request_of_a_kind_changes_nothing(tmp_path: Path) -> None:
    assert ask_halt(tmp_path, request("too_slow"))
    assert not ask_halt(tmp_path, request("halted"))
    found = load_request(tmp_path / HALT_NAME)
    assert found is not None
    assert found.reason == "too_slow"
    assert sorted(path.name for path in tmp_path.iterdir()) == [HALT_NAME]


def test_earlier_of_halt_and_kill_names_the_cause(tmp_path: Path) -> None:
    ask_kill(tmp_path, request("halted", at=9.0))
    ask_halt(tmp_path, request("too_slow", at=5.0))
    found = asked_by(tmp_path)
    assert found is not None
    assert found.reason == "too_slow"


@pytest.mark.parametrize(
    "said",
    [
        {"at": "now"}, {"until_mono": "x"}, {"until_mono": True}, {"leave_s": []}, {"text": 5},
        {"grace_s": None}, {"moving_s": math.inf}, {"key": 7}, {"at": math.nan},
        {"leave_s": 10**400},
    ],
    ids=lambda said: " ".join(said),
)  # fmt: skip
def test_a_request_with_a_field_of_another_type_was_made_by_hand(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    """The keeper computes with it, and is the last to go."""
    path = tmp_path / HALT_NAME
    path.write_text(json.dumps({"reason": "stalled", "ended_by": "watchdog", **said}))
    found = load_request(path)
    at, text = path.stat().st_mtime, ".HALT made by hand"
    assert found == EndRequest(reason="halted", ended_by="operator", at=at, text=text)


@pytest.mark.parametrize("kind", ["itself", "nowhere", "folder", "pipe"])
def test_what_stands_there_and_is_no_file_was_made_by_hand(tmp_path: Path, kind: str) -> None:
    """A link to itself was a traceback of the keeper, one to nowhere hid every halt after it."""
    path = tmp_path / HALT_NAME
    make: dict[str, Callable[[], object]] = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "itself": lambda: path.symlink_to(path),
        "nowhere": lambda: path.symlink_to(tmp_path / "none"),
    }
    make[kind]()
    found = load_request(path)
    assert is_asked(path)
    assert found is not None
    assert (found.reason, found.ended_by) == ("halted", "operator")
    assert not ask_halt(tmp_path, request("stalled")), "the first stands"


@pytest.mark.parametrize(
    "text",
    [
        "", "stop please", "{}", "[1]", '{"reason": "x"}',
        '{"reason": "maintenance", "ended_by": "operator"}',
        '{"reason": "halted", "ended_by": "alice"}',
    ],
)  # fmt: skip
def test_halt_made_by_hand_is_an_operators(tmp_path: Path, text: str) -> None:
    (tmp_path / HALT_NAME).write_text(text)
    found = load_request(tmp_path / HALT_NAME)
    assert found is not None
    assert (found.reason, found.ended_by) == ("halted", "operator")


def test_a_text_in_another_encoding_leaves_an_end_that_can_be_written(tmp_path: Path) -> None:
    """No file takes half a surrogate pair, and the keeper writes it into exit.json."""
    path = tmp_path / HALT_NAME
    path.write_bytes(
        b'{"reason": "cancelled", "ended_by": "operator", "text": "Gr\\udcfc\\udcdfe"}'
    )
    found = load_request(path)
    assert found is not None
    assert (found.reason, found.text) == ("cancelled", "Gr??e")
    save_json(tmp_path / "exit.json", {"text": found.text})


def test_reasons_and_actors_are_those_of_the_contract() -> None:
    assert (set(OutcomeCode), set(Actor)) == (REASONS, ACTORS)


def test_nobody_gets_more_than_the_limit_to_leave() -> None:
    assert until_after(10 * HALT_LIMIT_S) <= time.monotonic() + HALT_LIMIT_S


def test_one_of_many_writers_wins(tmp_path: Path) -> None:
    reasons = ("stalled", "deadline")
    folders = [tmp_path / str(number) for number in range(20)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        for folder in folders:
            results = list(pool.map(lambda r, f=folder: ask_halt(f, request(r)), reasons))
            assert results.count(True) == 1
            found = load_request(folder / HALT_NAME)
            assert found is not None
            assert found.reason == reasons[results.index(True)]
