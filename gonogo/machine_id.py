"""The id of this machine: 32 hexadecimal digits that no other host has.

It is the hashed id of the operating system. In a container that id is missing or belongs to the
image, so there an id is created once in the home.
"""

import hashlib
import re
import uuid
from pathlib import Path

from gonogo.files import place_first

MACHINE_FILE = "machine_id"
_SYSTEM = Path("/etc/machine-id")
_MOUNTS = Path("/proc/self/mountinfo")
_ID = re.compile(r"[0-9a-f]{32}")
_OVERLAY_ROOT = re.compile(r"^(?:\S+ ){4}/ .* - overlay ", re.MULTILINE)
"""A row of mountinfo (proc(5)): the root of a container."""


def load_machine_id(home: Path, *, system: Path = _SYSTEM, mounts: Path = _MOUNTS) -> str:
    """Return this machine's id.

    Args:
        home: where an id is created that the system does not give.
        system: the operating system's id.
        mounts: mounts of this process, in the kernel's form.

    Raises:
        OSError: there is no id, and none can be created.
    """
    found = _read_id(system)
    if found is not None and _OVERLAY_ROOT.search(_read(mounts)) is None:
        return hashlib.sha256(f"gonogo {found}".encode()).hexdigest()[:32]
    return load_home_id(home)


def load_home_id(home: Path) -> str:
    """Return the id that is created once in a home.

    Raises:
        OSError: there is no id, and none can be created.
    """
    path = home / MACHINE_FILE
    made = _read_id(path)
    if made is not None:
        return made
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    spare = home / f".{MACHINE_FILE}.{uuid.uuid4().hex}"
    spare.write_text(f"{uuid.uuid4().hex}\n")
    try:
        place_first(spare, path)
    finally:
        spare.unlink(missing_ok=True)
    kept = _read_id(path)
    if kept is None:
        raise OSError(f"{path} does not hold a machine's id: remove it")
    return kept


def _read_id(path: Path) -> str | None:
    text = _read(path).strip()
    return text if _ID.fullmatch(text) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
