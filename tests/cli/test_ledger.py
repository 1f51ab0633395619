"""`gonogo verify` and `gonogo replay` as a person or a script meets them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.wire import Kind, new_id, short_id
from gonogo.ledger.sign import SigningKey
from gonogo.rundir import NO_SERVICE, SHIPPED_NAME, save_json
from gonogo.signing import save_public_key, save_signing_key
from tests.cli.typed import typed
from tests.ledger.chains import KEY, OTHER_KEY, chain, save_chain, save_runs


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a signed chain and the run directories beside it."""
    folder = tmp_path / "home"
    save_signing_key(folder, KEY)
    save_chain(folder / "decisions", chain())
    save_runs(folder / "runs")
    return folder


def pub(folder: Path, key: SigningKey) -> str:
    folder.mkdir(exist_ok=True)
    save_public_key(folder, key.public)
    return str(folder / "signing.pub")


def test_verify_checks_the_home_and_says_what_it_found(home: Path) -> None:
    done = typed(home, "verify", "--json")
    assert done.returncode == 0, done.stdout
    assert told(done) == {"decisions": 6, "ok": True, "problems": [], "not_verified": []}
    assert "6 decisions: nothing is wrong" in typed(home, "verify").stdout


def test_verify_names_each_problem_with_decision_and_file(home: Path) -> None:
    file = home / "decisions" / f"{chain()[1].id}.json"
    file.write_text(file.read_text().replace('"actor": "gonogo"', '"actor": "bob"'))
    done = typed(home, "verify", str(home), "--json")
    assert done.returncode == 1
    found = told(done)
    assert not found["ok"]
    assert found["problems"][0] == {
        "decision": chain()[1].id,
        "path": str(file),
        "text": found["problems"][0]["text"],
    }
    assert found["problems"][0]["text"].startswith("hash:")
    assert "1 problem" in typed(home, "verify", str(home)).stdout


def test_verify_takes_a_folder_of_exported_decisions_and_a_key(home: Path, tmp_path: Path) -> None:
    folder = save_chain(tmp_path / "exported", chain())
    own, other = pub(tmp_path / "a", KEY), pub(tmp_path / "b", OTHER_KEY)
    assert typed(tmp_path / "none", "verify", str(folder), "--key", own).returncode == 0
    assert typed(home, "verify", str(folder)).returncode == 0
    assert typed(tmp_path / "none", "verify", str(folder)).returncode == 1
    done = typed(home, "verify", str(folder), "--key", other)
    assert done.returncode == 1
    assert "not trusted" in done.stdout


@pytest.mark.parametrize("left", ["no folder", "an empty folder"])
def test_a_home_without_decisions_says_that_only_an_anchor_can_show_more(
    left: str, home: Path
) -> None:
    last = chain()[-1]
    (home / "decisions").rename(home.with_name("elsewhere"))
    if left == "an empty folder":
        (home / "decisions").mkdir()
    done = typed(home, "verify", "--anchor", last.decision.hash, "--json")
    assert done.returncode == 1
    (text,) = told(done)["not_verified"]
    assert "no decision is there" in text
    assert told(typed(home, "verify", "--json"))["not_verified"] == [text]


def ended_run(home: Path, name: str, shipped: str | None) -> None:
    folder = home / "runs" / name
    folder.mkdir()
    save_json(folder / "exit.json", {"v": 1})
    if shipped is not None:
        (folder / SHIPPED_NAME).write_text(shipped)


def test_ended_runs_of_gonogo_run_without_a_decision_are_named(home: Path) -> None:
    """Each is an experiment of its own: a decision that was taken away left no gap anywhere."""
    decided = told(typed(home, "verify", "--json"))
    about = chain()[1].decision.run
    assert about is not None
    names = [new_id(Kind.RUN) for _ in range(4)]
    ended_run(home, names[0], "{}")
    ended_run(home, names[1], None)
    (home / "runs" / about / SHIPPED_NAME).write_text(f"gonogo run: {NO_SERVICE} of it\n")
    assert told(typed(home, "verify", "--json")) == decided, "a service's, and one that was decided"
    for number in (2, 3):
        ended_run(home, names[number], f"gonogo run: {NO_SERVICE} of it\n")
        done = typed(home, "verify", "--json")
        shown = ", ".join(sorted(names[2 : number + 1]))
        assert told(done)["not_verified"] == [
            f"ended runs of gonogo run without a decision here: {shown}"
        ]
        assert done.returncode == 0
    (home / "runs" / names[2] / "exit.json").unlink()
    (text,) = told(typed(home, "verify", "--json"))["not_verified"]
    assert text.endswith(f"here: {names[3]}"), "one that continues, or was pruned"


def test_an_anchor_shows_that_the_end_was_removed(home: Path) -> None:
    last = chain()[-1]
    (home / "decisions" / f"{last.id}.json").unlink()
    assert typed(home, "verify").returncode == 0
    done = typed(home, "verify", "--anchor", last.decision.hash)
    assert done.returncode == 1
    assert "it was removed" in done.stdout


def test_the_demos_in_a_home_are_checked_with_their_own_keys(home: Path) -> None:
    demo = home / "demo" / "20260101"
    save_signing_key(demo, OTHER_KEY)
    save_chain(demo / "decisions", chain(OTHER_KEY, "exp_01M7WY6TXP5J58NAZ77ZFKP9EA"))
    assert told(typed(home, "verify", "--json"))["decisions"] == 6 + 6
    (demo / "signing.pub").unlink()
    assert typed(home, "verify", "--json").returncode == 1


@pytest.mark.parametrize("what", ["decision", "decisions"])
def test_trust_is_taken_from_the_home_that_was_asked_not_from_where_a_link_leads(
    what: str, home: Path, tmp_path: Path
) -> None:
    evil, name = tmp_path / "evil", f"{chain()[3].id}.json"
    save_signing_key(evil, OTHER_KEY)
    save_chain(evil / "decisions", chain(key=OTHER_KEY))
    shutil.copytree(home / "runs", evil / "runs")
    if what == "decision":
        (home / "decisions" / name).unlink()
        (home / "decisions" / name).symlink_to(evil / "decisions" / name)
        why = "it is a symbolic link"
    else:
        shutil.rmtree(home / "decisions")
        (home / "decisions").symlink_to(evil / "decisions")
        why = f"signed by the key {OTHER_KEY.key_id}, which is not trusted"
    file = str(home / "decisions" / name)
    for command in (
        ["verify"], ["verify", file], ["verify", str(home / "decisions")],
        ["replay", chain()[3].id], ["replay", file],
    ):  # fmt: skip
        done = typed(home, *command)
        assert done.returncode == 1, command
        assert why in " ".join((done.stdout + done.stderr).split()), command
        assert "Traceback" not in done.stderr


BAD = [
    (["verify", "/no/such/home"], 3),
    (["verify", "--key", "/no/such/key"], 3),
    (["verify", "--key", "/etc/hostname"], 2),
    (["verify", "--anchor", "soon"], 2),
]


@pytest.mark.parametrize(("arguments", "code"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input_is_one_line_and_its_own_exit_code(
    arguments: list[str], code: int, home: Path
) -> None:
    done = typed(home, *arguments)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_replay_of_a_home_checks_signature_chain_and_both_halves(home: Path) -> None:
    done = typed(home, "replay", chain()[3].id, "--json")
    assert done.returncode == 0, done.stdout
    assert {"signature", "chain", "order", "run_directory"} <= set(told(done)["checked"])
    assert told(done)["not_verified"] == []


def test_a_decision_is_replayed_by_the_beginning_of_its_id(home: Path) -> None:
    ids = [row.id for row in chain()]
    name = ids[3]
    count = next(n for n in range(8, 31) if sum(i.startswith(name[:n]) for i in ids) == 1)
    for text in (name[:count], name[4:count].lower(), short_id(name)):
        assert told(typed(home, "replay", text, "--json"))["id"] == name
    done = typed(home, "replay", name[:8])
    assert (done.returncode, done.stdout) == (2, "")
    assert f"may mean {len(ids)} decisions" in done.stderr
    assert all(row in done.stderr for row in ids)
    assert typed(home, "replay", "dec_*").returncode == 3


def test_the_newest_decision_is_found_as_last(home: Path) -> None:
    assert told(typed(home, "replay", "last", "--json"))["id"] == chain()[-1].id
    torn = home / "decisions" / "dec_01K0000000000000000000000Z.json"
    torn.write_text("{torn")
    done = typed(home, "replay", "last")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    done = typed(home, "replay", f"dec_{'0' * 26}")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no such decision" in done.stderr


def test_replay_of_a_broken_chain_or_a_wrong_signature_differs(home: Path) -> None:
    file = home / "decisions" / f"{chain()[1].id}.json"
    file.write_text(file.read_text().replace('"actor": "gonogo"', '"actor": "bob"'))
    done = typed(home, "replay", chain()[2].id, "--json")
    assert done.returncode == 1
    assert told(done)["path"] == f"chain.{chain()[1].id}.hash"
    done = typed(home, "replay", chain()[3].id, "--key", pub(home.parent / "b", OTHER_KEY))
    assert done.returncode == 1
    assert "not trusted" in done.stdout


@pytest.mark.parametrize("raw", [b"{", b'{"v": 9}'])
def test_a_decision_that_cannot_be_read_is_one_line(raw: bytes, home: Path) -> None:
    file = home / "decisions" / "x.json"
    file.write_bytes(raw)
    done = typed(home, "replay", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "not a decision" in done.stderr


@pytest.mark.parametrize("left", ["nothing", "a link to nothing"])
def test_replay_of_a_signed_decision_without_a_public_key_is_never_equal(
    left: str, home: Path
) -> None:
    (home / "signing.pub").unlink()
    if left != "nothing":
        (home / "signing.pub").symlink_to(home / "nowhere")
    done = typed(home, "replay", chain()[3].id, "--json")
    assert (done.returncode, told(done)["path"]) == (1, "signature")
    assert typed(home, "replay", chain()[3].id, "--facts-only").returncode == 1


def test_an_unsigned_decision_beside_a_key_is_never_equal(home: Path) -> None:
    shutil.rmtree(home / "decisions")
    save_chain(home / "decisions", chain(key=None))
    name = chain()[3].id
    for key in ("signing.pub", "signing.key"):
        done = typed(home, "replay", name, "--json")
        assert (done.returncode, told(done)["path"]) == (1, "signature")
        (home / key).unlink()
    assert typed(home, "replay", name).returncode == 0
