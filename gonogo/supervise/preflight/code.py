"""Which code is on this host: commit, changes, or a digest of the sources.

`nsa.identity` has the same rule, because the workload imports nothing of ours. A test compares
them.

Not covered: files marked `--assume-unchanged`, `git replace`, `core.worktree`, and runs that a git
hook starts.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_GIT_LIMIT_S = 20.0
_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--submodule=diff")
_PACKAGES = ("gonogo", "nsa", "worker")
_SOURCES = (
    *(".py", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"),
    *(".sh", ".toml", ".yaml", ".yml"),
)


def load_git_sha(root: Path) -> str | None:
    """Return which code is in a folder: a checkout, or the folder that holds the packages.

    A checkout has the id of its commit. Changes add `+` and 12 hex digits: the digest of `git diff
    HEAD` and of the untracked sources. Without git, or in a checkout that ignores our packages, it
    is `tree-` and a digest of the sources. None if git does not answer in time.
    """
    try:
        top, commit = _git(root, "rev-parse", "--show-toplevel"), _git(root, "rev-parse", "HEAD")
        if top is None or commit is None:
            return _digest_of_tree(root)
        ours = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", *_PACKAGES)
        if ours == b"" and (tree := _digest_of_tree(root)) is not None:
            return tree
        checkout = Path(os.fsdecode(top).rstrip("\n"))
        diff = _git(checkout, "diff", "HEAD", "--ignore-submodules=untracked", *_DIFF)
        listed = _git(checkout, "ls-files", "--others", "--exclude-standard", "-z")
    except subprocess.TimeoutExpired:
        return None
    if diff is None or listed is None:
        return None
    added = [name for name in os.fsdecode(listed).split("\0") if Path(name).suffix in _SOURCES]
    dirty = _digest(checkout, added, hashlib.sha256(diff))
    return commit.decode().strip() + (f"+{dirty[:12]}" if diff or added else "")


def load_branch(root: Path) -> str | None:
    """Return the branch that a checkout is on; None where it is on none, or there is no git."""
    try:
        said = _git(root, "symbolic-ref", "--quiet", "--short", "HEAD")
    except subprocess.TimeoutExpired:
        return None
    return None if said is None else said.decode(errors="replace").strip() or None


def _digest_of_tree(root: Path) -> str | None:
    paths = (path for package in _PACKAGES for path in (root / package).rglob("*"))
    names = [str(path.relative_to(root)) for path in paths if path.suffix in _SOURCES]
    return f"tree-{_digest(root, names, hashlib.sha256())[:40]}" if names else None


def _digest(folder: Path, names: Iterable[str], digest: "hashlib._Hash") -> str:
    """Return the digest with names and contents; what is no readable file counts by its name."""
    for name in sorted(names):
        digest.update(b"\0" + os.fsencode(name) + b"\0")
        with suppress(OSError):
            digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Return what git prints; None if it fails or is not installed."""
    command = ("git", "-C", str(folder), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_LIMIT_S, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
