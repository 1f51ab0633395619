"""Which machine is this? An id that no other host has, whatever the hosts are called.

The operating system's own id, hashed (it is not to be shown as it is). In a container that id is
the image's or missing, so there an id is made once, in the home.
"""

import hashlib
import re
import uuid
from pathlib import Path

from gonogo.first_file import place_first

MACHINE_FILE = "machine_id"
_SYSTEM = Path("/etc/machine-id")
_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
_MOUNTS = Path("/proc/self/mountinfo")
_ID = re.compile(r"[0-9a-f]{32}")


def load_machine_id(
    home: Path,
    *,
    system: Path = _SYSTEM,
    marks: tuple[Path, ...] = _MARKS,
    mounts: Path = _MOUNTS,
) -> str:
    """Return this machine's id, 32 hexadecimal digits.

    Args:
        home: where an id is made and kept that the system does not give.
        system: the operating system's id.
        marks: files that only a container has.
        mounts: mounts of this process, in the kernel's form; a container's root is an overlay.

    Raises:
        OSError: none is there and none can be made.
    """
    found = _read_id(system)
    if found is not None and not _is_container(marks, mounts):
        return hashlib.sha256(f"gonogo {found}".encode()).hexdigest()[:32]
    return load_home_id(home)


def load_home_id(home: Path) -> str:
    """Return the id that is made once in a home, 32 hexadecimal digits.

    Raises:
        OSError: none is there and none can be made.
    """
    path = home / MACHINE_FILE
    made = _read_id(path)
    if made is not None:
        return made
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    spare = home / f".{MACHINE_FILE}.{uuid.uuid4().hex}"
    spare.write_text(f"{uuid.uuid4().hex}\n")
    try:
        first = place_first(spare, path)  # it stays, whoever else is making one now
        if not first and _read_id(path) is None:  # cut short by a full disk
            spare.replace(path)
    finally:
        spare.unlink(missing_ok=True)
    kept = _read_id(path)
    if kept is None:
        raise OSError(f"{path} does not hold a machine's id")
    return kept


def _read_id(path: Path) -> str | None:
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return None
    return text if _ID.fullmatch(text) else None


def _is_container(marks: tuple[Path, ...], mounts: Path) -> bool:
    if any(mark.exists() for mark in marks):
        return True
    try:
        rows = mounts.read_text().splitlines()
    except OSError:
        return False
    return any(_is_overlay_root(row.split()) for row in rows)


def _is_overlay_root(fields: list[str]) -> bool:
    """Say whether a row of mountinfo is `/` on an overlay (proc(5))."""
    if len(fields) < 5 or fields[4] != "/" or "-" not in fields:
        return False
    after = fields[fields.index("-") + 1 :]
    return bool(after) and after[0] == "overlay"
