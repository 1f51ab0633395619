"""The key of a home is created once and kept private."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gonogo.contract.errors import NotFound, Rejected
from gonogo.signing import (
    create_signing_key,
    load_public_key,
    load_signing_key,
    own_signing_key,
    save_signing_key,
)


def test_a_key_is_kept_for_its_owner_alone_and_read_back(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert load_signing_key(home) is None
    key = save_signing_key(home, create_signing_key())
    assert load_signing_key(home) == key
    assert stat.S_IMODE((home / "signing.key").stat().st_mode) == 0o600
    assert load_public_key(home / "signing.pub") == key.public
    assert sorted(path.name for path in home.iterdir()) == ["signing.key", "signing.pub"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_may_read_is_refused(mode: int, tmp_path: Path) -> None:
    save_signing_key(tmp_path, create_signing_key())
    (tmp_path / "signing.key").chmod(mode)
    with pytest.raises(Rejected, match="chmod 600"):
        load_signing_key(tmp_path)


def test_a_lost_key_is_not_replaced_in_silence(tmp_path: Path) -> None:
    save_signing_key(tmp_path, create_signing_key())
    (tmp_path / "signing.key").unlink()
    with pytest.raises(Rejected, match="backup"):
        load_signing_key(tmp_path)


def test_a_public_half_of_another_key_is_seen(tmp_path: Path) -> None:
    save_signing_key(tmp_path, create_signing_key())
    (tmp_path / "signing.pub").write_bytes(create_signing_key().public.pem())
    with pytest.raises(Rejected, match="not the public half"):
        load_signing_key(tmp_path)


@pytest.mark.parametrize("raw", [b"", b"no key", b"\xff\x00"])
def test_a_file_that_is_no_key_is_refused_in_one_sentence(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "signing.key").write_bytes(raw)
    (tmp_path / "signing.key").chmod(0o600)
    with pytest.raises(Rejected, match=r"signing\.key"):
        load_signing_key(tmp_path)
    (tmp_path / "signing.pub").write_bytes(raw)
    with pytest.raises(Rejected, match=r"signing\.pub"):
        load_public_key(tmp_path / "signing.pub")


def test_a_public_key_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load_public_key(tmp_path / "signing.pub")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Rejected):
        load_public_key(tmp_path / "folder")


def test_a_home_that_lost_its_key_after_a_decision_makes_no_other(tmp_path: Path) -> None:
    first = own_signing_key(tmp_path)
    assert own_signing_key(tmp_path) == first
    (tmp_path / "decisions").mkdir()
    (tmp_path / "decisions" / "dec_1.json").write_text("{}")
    for name in ("signing.key", "signing.pub"):
        (tmp_path / name).unlink()
    with pytest.raises(Rejected, match="bring it back"):
        own_signing_key(tmp_path)
