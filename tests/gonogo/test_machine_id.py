"""Every machine has an id of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gonogo.machine_id import load_machine_id

SYSTEM = "0123456789abcdef0123456789abcdef"
PLAIN = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
OVERLAY = "22 1 0:42 / / rw,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b\n"


@pytest.fixture
def host(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "machine-id").write_text(SYSTEM + "\n")
    (tmp_path / "mountinfo").write_text(PLAIN)
    return {"system": tmp_path / "machine-id", "mounts": tmp_path / "mountinfo"}


def test_a_host_is_its_operating_systems_id_in_every_home(
    tmp_path: Path, host: dict[str, Path]
) -> None:
    first = load_machine_id(tmp_path / "a", **host)
    assert first == load_machine_id(tmp_path / "b", **host)
    assert first != SYSTEM
    assert len(first) == 32
    host["system"].write_text("f" * 32)
    assert load_machine_id(tmp_path / "a", **host) != first


@pytest.mark.parametrize("sign", ["overlay", "missing", "uninitialized"])
def test_where_the_id_is_the_images_each_home_has_its_own(
    tmp_path: Path, host: dict[str, Path], sign: str
) -> None:
    if sign == "overlay":
        host["mounts"].write_text(OVERLAY)
    elif sign == "missing":
        host["system"].unlink()
    else:
        host["system"].write_text("uninitialized\n")
    first = load_machine_id(tmp_path / "a", **host)
    assert load_machine_id(tmp_path / "a", **host) == first
    assert load_machine_id(tmp_path / "b", **host) != first


def test_an_id_is_made_once_whoever_asks(tmp_path: Path, host: dict[str, Path]) -> None:
    host["system"].unlink()
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: load_machine_id(tmp_path / "home", **host), range(32)))
    assert len(found) == 1
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["machine_id"]
