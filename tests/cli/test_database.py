"""`gonogo keys` and `gonogo db` as a person meets them: no chatter, no database by accident."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Gonogo


def test_whoever_only_looks_makes_no_database(tmp_path: Path, gonogo: Gonogo) -> None:
    assert "`gonogo up` makes the local ones" in gonogo("keys").out
    said = gonogo("db", "status")
    assert (said.code, said.err) == (0, "")
    assert "revision none" in said.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_keys_are_a_table_and_nothing_else_is_said(
    tmp_path: Path, migrated: Path, gonogo: Gonogo
) -> None:
    shutil.copy(migrated, tmp_path / "gonogo.db")
    made = gonogo("keys", "create", "ann", "--role", "viewer")
    assert made.code == 0
    assert made.out.startswith("gonogo_")
    assert len(made.out.split()) == 1
    assert "INFO" not in made.err
    assert gonogo("keys", "create", "bob", "--json").json()["role"] == "operator"
    assert gonogo("keys", "revoke", "bob").code == 0
    said = gonogo("keys")
    assert said.err == ""
    head, *rows = [line.split() for line in said.out.splitlines()]
    assert head == ["name", "role", "state", "created"]
    assert [row[:3] for row in rows] == [["ann", "viewer", "valid"], ["bob", "operator", "revoked"]]
    assert [row["name"] for row in gonogo("keys", "--json").json()["items"]] == ["ann", "bob"]


def test_a_new_database_is_made_without_a_word_of_a_library(tmp_path: Path, gonogo: Gonogo) -> None:
    said = gonogo("db", "upgrade")
    assert (said.code, said.err) == (0, "")
    assert "the newest" in said.out
    assert (tmp_path / "gonogo.db").exists()


@pytest.mark.long
def test_a_home_is_kept_and_brought_back(tmp_path: Path, migrated: Path, gonogo: Gonogo) -> None:
    shutil.copy(migrated, tmp_path / "gonogo.db")
    file = tmp_path / "kept.tar"
    made = gonogo("backup", str(file), "--json").json()
    assert made["files"] == 1
    (tmp_path / "gonogo.db").unlink()
    said = gonogo("restore", str(file))
    assert (said.code, said.err) == (0, "")
    assert "continue with `gonogo up`" in said.out
    assert (tmp_path / "gonogo.db").exists()
    again = gonogo("restore", str(file))
    assert again.code == 2
    assert "has gonogo.db" in again.err


def test_what_cannot_be_done_is_one_line(gonogo: Gonogo) -> None:
    for arguments, code, says in (
        (("db", "statsu"), 2, "'statsu' is not one of"),
        (("keys", "create"), 2, "give the name of the key"),
        (("keys", "create", "x", "--role", "king"), 2, "'king' is not one of"),
        (("keys", "revoke", "nobody"), 3, "no key called nobody"),
    ):
        said = gonogo(*arguments)
        assert (said.code, said.out) == (code, "")
        (line,) = said.err.splitlines()
        assert line.startswith("gonogo")
        assert says in line
        assert "python -m" not in line
