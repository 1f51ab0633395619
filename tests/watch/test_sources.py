"""The digest of the judging sources: whatever judges is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import gonogo
from gonogo.watch.registry import made_by


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("watch/rule.py", True), ("contract/table.yaml", True), ("judge/gate/deep.py", True),
        ("cli/page.py", False), ("judge/notes.md", False),
    ],
)  # fmt: skip
def test_the_digest_covers_what_judges(
    name: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gonogo, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "a.py").write_text("a = 1\n")
    before = made_by.__wrapped__().sources
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("b = 2\n")
    assert (made_by.__wrapped__().sources != before) is counts


def test_it_is_the_same_each_time() -> None:
    assert made_by.__wrapped__().sources == made_by().sources
    assert made_by().gonogo == gonogo.__version__
