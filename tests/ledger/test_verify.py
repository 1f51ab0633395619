"""A whole home is what was recorded, or each thing that is wrong with it is named."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gonogo.contract.errors import Rejected
from gonogo.ledger.recorded import record_of
from gonogo.ledger.sign import Trust, trusting
from gonogo.ledger.verify import check_anchors, verify_file, verify_folder
from tests.ledger.chains import KEY, OTHER_KEY, TRUST, chain, resealed, save_chain


def test_a_whole_signed_home_is_right(tmp_path: Path) -> None:
    found = verify_folder(save_chain(tmp_path, chain()), TRUST)
    assert (found.ok, found.decisions, found.problems) == (True, 6, [])


Spoil = Callable[[Path], object]


def _at(folder: Path, number: int) -> Path:
    files = folder.glob("dec_*.json")
    return sorted(files, key=lambda file: json.loads(file.read_bytes())["seq"])[number]


def _edit(number: int, **fields: object) -> Spoil:
    def spoil(folder: Path) -> None:
        file = _at(folder, number)
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **fields}))

    return spoil


def _reseal(number: int, **fields: object) -> Spoil:
    def spoil(folder: Path) -> None:
        file = _at(folder, number)
        document = record_of(json.loads(file.read_bytes()))
        file.write_text(json.dumps(dict(resealed(document, **fields).document)))

    return spoil


def _twice(folder: Path) -> None:
    shutil.copy(_at(folder, 1), folder / "dec_copy.json")


def _respelt(folder: Path) -> None:
    """Change bits of the last base64 sign that no byte of the signature takes."""
    file = _at(folder, 1)
    document = json.loads(file.read_bytes())
    said = document["signature"]
    document["signature"] = next(
        text
        for sign in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        if (text := f"{said[:85]}{sign}==") != said
        and base64.b64decode(text) == base64.b64decode(said)
    )
    file.write_text(json.dumps(document))


SPOILED: list[tuple[str, Spoil, str]] = [
    ("a verdict is changed", _edit(1, verdict="NO_GO"), "hash"),
    ("a verdict is changed and sealed again", _reseal(1, verdict="NO_GO"), "signature"),
    ("a signature is taken away", _edit(1, signature=None), "signature is missing"),
    ("a signature is another's", _edit(1, signature="A" * 86 + "=="), "not that of the key"),
    ("a signature has other bits that say nothing", _respelt, "not that of the key"),
    ("one is removed", lambda folder: _at(folder, 2).unlink(), "not verified: decision 3 of"),
    ("the first is removed", lambda folder: _at(folder, 0).unlink(), "not verified: decision 1"),
    ("one is there twice", _twice, "a second decision with the number 2"),
    ("one is emptied", lambda folder: _at(folder, 1).write_bytes(b""), "not a decision"),
    ("one stands under another's name", lambda f: _at(f, 4).replace(_at(f, 5)), "another decision"),
    ("one is a pipe", lambda f: os.mkfifo(f / "dec_x.json"), "no regular file"),
    ("one is larger than any", lambda f: os.truncate(_at(f, 1), 2**40), "it is larger than"),
    ("one is a link", lambda f: (f / "x.json").symlink_to("/dev/zero"), "symbolic link"),
    ("a field is added", _edit(1, approved_by="ann"), "hash"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "text"), [row[1:] for row in SPOILED], ids=[r[0] for r in SPOILED]
)
def test_what_is_wrong_in_a_home_is_named(spoil: Spoil, text: str, tmp_path: Path) -> None:
    folder = save_chain(tmp_path, chain())
    spoil(folder)
    found = verify_folder(folder, TRUST)
    assert not found.ok
    assert any(text in row.text for row in found.problems), found.problems
    assert all(row.path.startswith(str(folder)) for row in found.problems)


def test_decisions_of_another_home_are_not_trusted(tmp_path: Path) -> None:
    folder = save_chain(tmp_path, chain(key=OTHER_KEY))
    texts = [row.text for row in verify_folder(folder, TRUST).problems]
    assert len(texts) == 6
    assert all("not trusted" in text for text in texts)
    assert verify_folder(folder, trusting([KEY.public, OTHER_KEY.public])).ok


def test_without_any_key_nothing_is_called_right(tmp_path: Path) -> None:
    found = verify_folder(save_chain(tmp_path, chain()), Trust())
    assert not found.ok
    assert all("no public key" in row.text for row in found.problems)


def test_unsigned_decisions_are_problems(tmp_path: Path) -> None:
    found = verify_folder(save_chain(tmp_path, chain(key=None)), TRUST)
    assert [row.text for row in found.problems] == ["the signature is missing"] * 6


def test_one_file_alone_is_right_and_says_what_it_cannot_show(tmp_path: Path) -> None:
    save_chain(tmp_path, [chain()[2]])
    (file,) = tmp_path.glob("*.json")
    found = verify_file(file, TRUST)
    assert (found.ok, found.decisions) == (True, 1)
    assert found.not_verified[0].found == "1 to 2"
    file.write_text(file.read_text().replace('"gonogo"', '"bob"', 1))
    assert not verify_file(file, TRUST).ok


def test_a_removed_end_shows_only_against_an_anchor_outside(tmp_path: Path) -> None:
    rows = chain()
    folder = save_chain(tmp_path, rows)
    (folder / f"{rows[-1].id}.json").unlink()
    found = verify_folder(folder, TRUST)
    assert found.ok
    anchor = rows[-1].decision.hash
    (problem,) = check_anchors(found, [anchor[:16]], folder).problems
    assert anchor[:16] in problem.text
    assert check_anchors(found, [rows[-2].decision.hash], folder).ok
    for bad in ("", "abc", "g" * 64, "a" * 65):
        with pytest.raises(Rejected):
            check_anchors(found, [bad], folder)
