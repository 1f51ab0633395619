"""What code runs, where the order names files for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.trainer.identity import digest_files


@pytest.fixture
def order(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "model.py").write_text("")
    return {"cwd": str(tmp_path), "files": ["train.py", "model.py"]}


def test_the_same_files_have_the_same_digest(order: dict[str, object]) -> None:
    assert digest_files(order) == digest_files(dict(order))
    assert str(digest_files(order)["git_sha"]).startswith("files-")
    assert len(str(digest_files(order)["git_sha"])) == 46


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "train.py").write_text("print(2)"),
        lambda folder: (folder / "model.py").write_text(" "),
    ],
)
def test_any_change_of_a_file_changes_it(order: dict[str, object], change: object) -> None:
    before = digest_files(order)
    change(Path(str(order["cwd"])))  # type: ignore[operator]
    assert digest_files(order) != before


def test_names_count_too(order: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("print(1)")
    assert digest_files(order) != digest_files({**order, "files": ["other.py", "model.py"]})


def test_a_file_that_is_not_there_leaves_it_untold(order: dict[str, object]) -> None:
    assert digest_files({**order, "files": ["train.py", "none.py"]}) == {}


def test_where_no_file_is_named_nothing_is_told() -> None:
    assert digest_files({}) == digest_files({"files": []}) == {}
