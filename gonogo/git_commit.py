"""The commit of a checkout. Standard library only."""

import re
from pathlib import Path

_SHA = re.compile(r"[0-9a-f]{40,64}")


def load_commit(root: Path) -> str | None:
    """Return the commit of a checkout, without git; None if there is none."""
    folder = root / ".git"
    try:
        if folder.is_file():  # a worktree's
            folder = root / folder.read_text().partition("gitdir:")[2].strip()
        said = (folder / "HEAD").read_text().strip()
        if said.startswith("ref:"):
            name = said.partition("ref:")[2].strip()
            common = folder / "commondir"
            shared = (folder / common.read_text().strip()) if common.exists() else folder
            if (shared / name).exists():
                said = (shared / name).read_text().strip()
            else:
                rows = (shared / "packed-refs").read_text().splitlines()
                said = next((row for row in rows if row.endswith(f" {name}")), "")
    except OSError:
        return None
    found = _SHA.match(said)
    return found[0] if found else None
