"""A whole home is what was recorded, or each thing that is wrong with it is named."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gonogo.contract.decision import Verdict
from gonogo.contract.errors import Corrupt, NotFound, Rejected
from gonogo.ledger.adoption import Head, adopt, heads_of
from gonogo.ledger.chain import Authority, led_to_head
from gonogo.ledger.recorded import record_of
from gonogo.ledger.seal import Place, append, by_person
from gonogo.ledger.sign import (
    PublicKey,
    Purpose,
    Trust,
    parse_public,
    parse_signing,
    trusting,
)
from gonogo.ledger.v1.document import as_recorded, content_hash
from gonogo.ledger.verify import check_anchors, verify_file, verify_folder
from gonogo.rundir import save_json
from gonogo.signing import has_signed
from tests.ledger.chains import (
    KEY,
    OTHER_KEY,
    RELEASE,
    TRUST,
    chain,
    edited,
    place,
    release,
    resealed,
    save_chain,
)


def heads() -> dict[str, Head]:
    return heads_of((r.decision.experiment, r.decision.seq, r.decision.hash) for r in release("go"))


def adopted_home(folder: Path) -> Path:
    """The decisions of a home of release 0.1, adopted, with a signed one after them."""
    decisions = Path(shutil.copytree(RELEASE / "go" / "decisions", folder / "decisions"))
    record = adopt(heads(), KEY, "2026-01-01T00:00:00Z")
    save_json(decisions / "adopted.json", record.model_dump(mode="json"))
    rows = release("go")
    entry = by_person(Verdict.NO_GO, actor="ana", reason="seen")
    last = append(entry, place(rows, "production", None, supersedes=rows[-1].id), KEY)
    document = {**last.document, "experiment": rows[0].decision.experiment}
    document["hash"] = record_of(document).content_hash()
    document["signature"] = KEY.sign(Purpose.DECISION, document["hash"])
    save_json(decisions / f"{last.id}.json", document)
    return decisions


def test_a_whole_signed_home_is_right(tmp_path: Path) -> None:
    found = verify_folder(save_chain(tmp_path, chain()), TRUST)
    assert (found.ok, found.decisions, found.problems) == (True, 6, [])


def test_an_upgraded_home_is_right(tmp_path: Path) -> None:
    found = verify_folder(adopted_home(tmp_path), TRUST)
    assert (found.ok, found.decisions) == (True, 6), found.problems


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
    ("the last one is changed and sealed again", _reseal(-1, verdict="GO"), "signature"),
    ("a signature is taken away", _edit(1, signature=None), "signature is missing"),
    ("a signature is another's", _edit(1, signature="A" * 86 + "=="), "not that of the key"),
    ("a signature is no text", _edit(1, signature=7), "not a decision"),
    ("a signature is spelt otherwise", _edit(1, signature=" "), "not that of the key"),
    ("a signature has other bits that say nothing", _respelt, "not that of the key"),
    ("the key is another's", _edit(1, key_id="00"), "hash"),
    ("one is removed", lambda folder: _at(folder, 2).unlink(), "not verified: decision 3 of"),
    ("the first is removed", lambda folder: _at(folder, 0).unlink(), "not verified: decision 1"),
    ("one is there twice", _twice, "a second decision with the number 2"),
    ("one is emptied", lambda folder: _at(folder, 1).write_bytes(b""), "not a decision"),
    ("one is cut", lambda f: _at(f, 1).write_bytes(_at(f, 1).read_bytes()[:999]), "not a decision"),
    ("one is {}", lambda folder: _at(folder, 1).write_bytes(b"{}"), "not a decision"),
    ("one stands under another's name", lambda f: _at(f, 4).replace(_at(f, 5)), "another decision"),
    ("one is a pipe", lambda f: os.mkfifo(f / "dec_x.json"), "no regular file"),
    ("one is larger than any", lambda f: os.truncate(_at(f, 1), 2**40), "it is larger than"),
    ("one is a link", lambda f: (f / "x.json").symlink_to("/dev/zero"), "symbolic link"),
    ("the adoption record is a pipe", lambda f: os.mkfifo(f / "adopted.json"), "no regular file"),
    ("another file is there", lambda f: (f / "x.json").write_text("[]"), "a JSON list"),
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


SPOILED_OLD: list[tuple[str, Spoil, str]] = [
    ("an old one is changed", _edit(1, verdict="NO_GO"), "hash"),
    ("an old one is changed and sealed again", _reseal(1, reason="x"), "prev_hash"),
    ("the adopted head is changed and sealed again", _reseal(4, reason="x"), "adopted head"),
    ("an old one gets a field", _edit(1, approved_by="ann"), "approved_by"),
    ("the adoption record is removed", lambda f: (f / "adopted.json").unlink(), "no adoption"),
    ("the adoption record is {}", lambda f: (f / "adopted.json").write_text("{}"), "not an ado"),
    ("an adopted experiment is removed", lambda f: [_at(f, 0).unlink() for _ in range(6)],
     "whose head was adopted"),
    ("the adopted head and all after it are removed", lambda f: [_at(f, 4).unlink() for _ in "ab"],
     "the adopted head, is not there"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "text"), [row[1:] for row in SPOILED_OLD], ids=[row[0] for row in SPOILED_OLD]
)
def test_what_is_wrong_in_an_upgraded_home_is_named(
    spoil: Spoil, text: str, tmp_path: Path
) -> None:
    folder = adopted_home(tmp_path)
    spoil(folder)
    found = verify_folder(folder, TRUST)
    assert not found.ok
    assert any(text in row.text for row in found.problems), found.problems


def test_an_adoption_that_another_key_signed_adopts_nothing(tmp_path: Path) -> None:
    folder = adopted_home(tmp_path)
    record = adopt(heads(), OTHER_KEY, "2026-01-01T00:00:00Z")
    save_json(folder / "adopted.json", record.model_dump(mode="json"))
    texts = [row.text for row in verify_folder(folder, TRUST).problems]
    assert any("not trusted" in text for text in texts)
    assert sum("no adoption record" in text for text in texts) == 5


def test_a_heading_changed_in_the_adoption_record_breaks_its_signature(tmp_path: Path) -> None:
    folder = adopted_home(tmp_path)
    file = folder / "adopted.json"
    document = json.loads(file.read_bytes())
    next(iter(document["heads"].values()))["seq"] = 3
    file.write_text(json.dumps(document))
    texts = [row.text for row in verify_folder(folder, TRUST).problems]
    assert any("not that of the key" in text for text in texts)


def test_an_unsigned_decision_after_the_adopted_head_is_a_problem(tmp_path: Path) -> None:
    folder = adopted_home(tmp_path)
    last = release("go")[-1]
    more = edited(last, id="dec_new", seq=7, prev_hash=None)
    save_json(folder / "dec_new.json", dict(resealed(more).document))
    texts = [row.text for row in verify_folder(folder, TRUST).problems]
    assert any("after the adopted head" in text for text in texts)


def test_decisions_of_another_home_are_not_trusted(tmp_path: Path) -> None:
    folder = save_chain(tmp_path, chain(key=OTHER_KEY))
    texts = [row.text for row in verify_folder(folder, TRUST).problems]
    assert len(texts) == 6
    assert all("not trusted" in text for text in texts)
    assert verify_folder(folder, trusting([KEY.public, OTHER_KEY.public])).ok


def test_a_key_that_is_trusted_for_another_home_goes_on_with_no_chain_of_this_one(
    tmp_path: Path,
) -> None:
    rows = chain()
    last = rows[-1]
    entry = by_person(Verdict.GO, actor="eve", reason="all is well")
    at = place(rows, "production", None, supersedes=last.id, experiment=last.decision.experiment)
    folder = save_chain(tmp_path, [*rows, append(entry, at, OTHER_KEY)])
    found = verify_folder(folder, trusting([KEY.public, OTHER_KEY.public]))
    assert [(row.decision, row.text.partition(",")[0]) for row in found.problems] == [
        (at.id, f"signed by the key {OTHER_KEY.key_id}")
    ]


def test_a_key_that_is_trusted_for_another_home_adopts_no_decision_of_this_one(
    tmp_path: Path,
) -> None:
    folder = adopted_home(tmp_path)
    record = adopt(heads(), OTHER_KEY, "2026-01-01T00:00:00Z")
    save_json(folder / "adopted.json", record.model_dump(mode="json"))
    found = verify_folder(folder, trusting([KEY.public, OTHER_KEY.public]))
    assert [row.text.partition(",")[0] for row in found.problems] == [
        f"signed by the key {KEY.key_id}"
    ]


def test_without_any_key_nothing_is_called_right(tmp_path: Path) -> None:
    found = verify_folder(save_chain(tmp_path, chain()), Trust())
    assert not found.ok
    assert all("no public key" in row.text for row in found.problems)


def test_unsigned_decisions_of_this_release_are_problems(tmp_path: Path) -> None:
    found = verify_folder(save_chain(tmp_path, chain(key=None)), TRUST)
    assert [row.text for row in found.problems] == ["the signature is missing"] * 6


def test_an_unsigned_decision_of_this_release_stands_where_the_home_adopted_it(
    tmp_path: Path,
) -> None:
    """`gonogo run` has no key in a home of release 0.1 that no service has started since."""
    rows = chain(key=None)[:2]
    folder = save_chain(tmp_path, rows)
    named = heads_of((r.decision.experiment, r.decision.seq, r.decision.hash) for r in rows)
    record = adopt(named, KEY, "2026-01-01T00:00:00Z")
    save_json(folder / "adopted.json", record.model_dump(mode="json"))
    assert verify_folder(folder, TRUST).problems == []
    changed = resealed(rows[0], verdict="NO_GO")
    save_json(folder / f"{changed.id}.json", dict(changed.document))
    texts = [row.text for row in verify_folder(folder, TRUST).problems]
    assert "the signature is missing" in texts


def test_one_file_alone_is_right_and_says_what_it_cannot_show(tmp_path: Path) -> None:
    save_chain(tmp_path, [chain()[2]])
    (file,) = tmp_path.glob("*.json")
    found = verify_file(file, TRUST)
    assert (found.ok, found.decisions) == (True, 1)
    assert "each of the decisions 1 to 2" in found.not_verified[0]
    file.write_text(file.read_text().replace('"GO"', '"NO_GO"', 1))
    assert not verify_file(file, TRUST).ok


def downgraded(folder: Path) -> Path:
    """A signed word of a person, made an unsigned one of release 0.1 and left alone."""
    signed = ("v", "key_id", "signature", "weakened")
    document = {k: row for k, row in chain()[-1].document.items() if k not in signed}
    first = release("go")[0].decision
    document |= {"verdict": "GO", "seq": 2, "experiment": first.experiment, "supersedes": None}
    document |= {"prev_hash": first.hash}
    document["hash"] = content_hash(document)
    for file in folder.glob("dec_*.json"):
        file.unlink()
    save_json(folder / "dec_forged.json", as_recorded(document))
    return folder / "dec_forged.json"


def test_a_signed_decision_made_an_old_one_does_not_stand_alone(tmp_path: Path) -> None:
    file = downgraded(adopted_home(tmp_path))
    found = verify_file(file, TRUST)
    assert ["leads from it to the adopted head" in row.text for row in found.problems] == [True]


def test_an_old_decision_stands_by_the_files_that_lead_to_the_head(tmp_path: Path) -> None:
    folder = adopted_home(tmp_path)
    assert verify_file(_at(folder, 1), TRUST).ok
    _at(folder, 3).unlink()
    assert not verify_file(_at(folder, 1), TRUST).ok


def test_a_link_that_is_not_what_its_hash_says_leads_nowhere(tmp_path: Path) -> None:
    """Who edits an old decision names it in the next one, whose hash he leaves as it was."""
    rows = release("go")
    whole = Authority(trust=TRUST, adopted=adopt(heads(), KEY, "2026-01-01T00:00:00Z"))
    assert led_to_head(rows, whole) == {row.decision.hash for row in rows}
    first = resealed(rows[0], reason="another one")
    linked = edited(rows[1], prev_hash=first.decision.hash)
    led = led_to_head([first, linked, *rows[2:]], whole)
    assert led == {row.decision.hash for row in rows[2:]}


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


def test_a_signed_decision_replaces_the_last_one_about_its_phase_and_no_other(
    tmp_path: Path,
) -> None:
    *rows, last = chain()
    first = next(row for row in rows if row.decision.phase != last.decision.phase)
    person = by_person(Verdict.NO_GO, actor="ana", reason="seen")
    for supersedes in (None, first.id):
        at = place(rows, last.decision.phase, last.decision.run, supersedes=supersedes)
        folder = save_chain(tmp_path / str(supersedes), [*rows, append(person, at, KEY)])
        (problem,) = verify_folder(folder, TRUST).problems
        assert problem.text.startswith("supersedes: ")


def test_one_id_of_two_experiments_decisions_is_a_problem(tmp_path: Path) -> None:
    folder, row = save_chain(tmp_path, chain()), chain()[0]
    entry = by_person(Verdict.NO_GO, actor="ana", reason="seen")
    other = Place(
        id=row.id, experiment="exp_01M7WY6TXP5J58NAZ77ZFKP9EA", phase=None, run=None, at=""
    )
    save_json(folder / "other.json", dict(append(entry, other, KEY).document))
    (problem,) = verify_folder(folder, TRUST).problems
    assert problem.text == f"the id stands in {row.id}.json, too"


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_chain(tmp_path, chain())

    def refuse(path: object) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    for among_others in (False, True):
        found = verify_folder(folder, TRUST, among_others=among_others)
        assert [(row.path, row.text) for row in found.problems] == [
            (str(folder), "it cannot be listed: Permission denied")
        ]
    with pytest.raises(Corrupt, match="Permission denied"):
        has_signed(folder)


@pytest.mark.parametrize("place", ["exported/dec_X.json", "dec_X.JSON", ".dec_X.json"])
@pytest.mark.parametrize("among_others", [False, True])
def test_what_looks_like_a_decision_and_is_not_read_is_said(
    place: str, among_others: bool, tmp_path: Path
) -> None:
    """A forged one lay there, and nothing was wrong."""
    save_chain(tmp_path, chain())
    (tmp_path / "runs" / "run_X").mkdir(parents=True)
    assert verify_folder(tmp_path, TRUST, among_others=among_others).not_verified == []
    forged = resealed(chain()[-1], verdict="GO")
    save_json(tmp_path / place, dict(forged.document))
    found = verify_folder(tmp_path, TRUST, among_others=among_others)
    (told,) = found.not_verified
    assert told.startswith(str(tmp_path / place.partition("/")[0]))
    assert found.ok


def test_a_folder_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        verify_folder(tmp_path / "none", TRUST)
    with pytest.raises(NotFound):
        verify_file(tmp_path / "none", TRUST)


def test_keys_are_read_back_as_written_and_nothing_else_is_a_key() -> None:
    assert parse_signing(KEY.pem()) == KEY
    assert parse_public(KEY.public.pem()) == KEY.public
    assert KEY.key_id == PublicKey(KEY.public.raw).key_id != OTHER_KEY.key_id
    assert "seed" not in repr(KEY)
    for raw in (b"", b"x", KEY.pem()):
        with pytest.raises(Rejected):
            parse_public(raw)
    for raw in (b"", b"x", KEY.public.pem()):
        with pytest.raises(Rejected):
            parse_signing(raw)


def test_a_signature_for_one_purpose_says_nothing_about_another() -> None:
    digest = chain()[0].decision.hash
    signature = KEY.sign(Purpose.DECISION, digest)
    assert KEY.public.verifies(Purpose.DECISION, digest, signature)
    assert not KEY.public.verifies(Purpose.ADOPTION, digest, signature)
    assert not KEY.public.verifies(Purpose.DECISION, "0" * 64, signature)
