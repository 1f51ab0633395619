"""Which code runs on this host? The same words as the trainer's boot line, which must agree.

The workload imports nothing of ours, so the rule stands twice: here and in `nsa.identity`, and a
test holds them against each other.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

_GIT_LIMIT_S = 20.0
_DIFF = (
    "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative", "--binary",
    "--ignore-submodules=untracked", "--submodule=diff",
)  # fmt: skip
_LOOKS = ("core.fsmonitor=false", "core.trustctime=true", "core.checkStat=default")
"""What a checkout may be told otherwise, and then look at no file that was written over."""
_ELSEWHERE = frozenset(
    (
        "GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_DIFF_OPTS",
        "GIT_REPLACE_REF_BASE", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE",
    )
)  # fmt: skip
"""By these git is sent to another checkout, as each hook of one does that starts a run."""
_PACKAGES = ("gonogo", "nsa", "worker")
_SOURCES = frozenset(
    (
        ".py",
        ".pyx",
        ".c",
        ".cc",
        ".cpp",
        ".cu",
        ".cuh",
        ".h",
        ".hpp",
        ".sh",
        ".toml",
        ".yaml",
        ".yml",
    )
)


def load_git_sha(root: Path) -> str | None:
    """Return the commit, `+` 12 hex digits where the checkout is not clean.

    Those are of the digest of `git diff HEAD`, of the untracked, not ignored sources, and of what
    was changed of files that git was told to take for unchanged. Where there is no git (a
    container's image), or a checkout that ignores our packages (an environment in somebody's
    project), the sources themselves are digested. None where nothing can be known.

    Args:
        root: the checkout, or the folder that holds the packages.
    """
    try:
        return _code_of(root)
    except subprocess.TimeoutExpired:
        return None  # a disk that hangs for a while makes no other code of it


def _code_of(root: Path) -> str | None:
    top = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "HEAD")
    checkout = None if top is None else Path(os.fsdecode(top).rstrip("\n"))
    if checkout is None or commit is None or not root.resolve().is_relative_to(checkout.resolve()):
        return _digest_of_tree(root)  # none, or it was told that its files lie elsewhere
    theirs = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", *_PACKAGES)
    tree = _digest_of_tree(root) if theirs == b"" else None
    if tree is not None:
        return tree
    diff = _git(checkout, "diff", "HEAD", *_DIFF)
    listed = _git(checkout, "ls-files", "--others", "--exclude-standard", "-z")
    passed_over = _passed_over(checkout)
    if diff is None or listed is None or passed_over is None:
        return None
    added = (name for name in os.fsdecode(listed).split("\0") if _is_source(name))
    names = sorted({*added, *passed_over})
    dirty = hashlib.sha256(diff)
    _add_files(dirty, checkout, names)
    mark = f"+{dirty.hexdigest()[:12]}" if diff or names else ""
    return commit.decode().strip() + mark


def load_branch(root: Path) -> str | None:
    """Return the branch that a checkout is on; None where it is on none, or there is no git."""
    try:
        said = _git(root, "symbolic-ref", "--quiet", "--short", "HEAD")
    except subprocess.TimeoutExpired:
        return None
    return None if said is None else said.decode(errors="replace").strip() or None


def _passed_over(checkout: Path) -> list[str] | None:
    """Return the files that differ and that `git diff` says nothing of; None: nobody can know.

    Git was told to take them for unchanged (`--assume-unchanged`, `--skip-worktree`). Of the latter
    those that are not there are none: so a sparse checkout leaves them out.
    """
    listed = _git(checkout, "ls-files", "-v", "-s", "-z")
    if listed is None:
        return None
    found: list[str] = []
    held: dict[str, str] = {}
    for row in os.fsdecode(listed).split("\0"):
        about, _, name = row.partition("\t")
        tag, mode, blob = [*about.split(" "), "", "", ""][:3]
        if not tag.islower() and tag != "S":
            continue
        path = checkout / name
        if not os.path.lexists(path):
            found += [name] if tag == "h" else []
        elif path.is_file() and not path.is_symlink() and mode.startswith("100"):
            held[name] = blob
        else:
            found.append(name)
    if not held:
        return found
    asked = os.fsencode("".join(f"{name}\n" for name in held))
    hashed = _git(checkout, "hash-object", "--stdin-paths", said=asked)
    blobs = [] if hashed is None else hashed.decode().split()
    if len(blobs) != len(held):
        return None
    pairs = zip(held.items(), blobs, strict=True)
    return found + [name for (name, blob), now in pairs if now != blob]


def _digest_of_tree(root: Path) -> str | None:
    """Return `tree-` and the digest of the sources of our packages, where there is no git."""
    found = (path for package in _PACKAGES for path in (root / package).rglob("*"))
    names = sorted(
        str(path.relative_to(root)) for path in found if path.is_file() and _is_source(path.name)
    )
    if not names:
        return None
    digest = hashlib.sha256()
    _add_files(digest, root, names)
    return f"tree-{digest.hexdigest()[:40]}"


def _is_source(name: str) -> bool:
    return Path(name).suffix in _SOURCES


def _add_files(digest: "hashlib._Hash", folder: Path, names: Iterable[str]) -> None:
    """Add names and contents; what cannot be read, or is no file, counts by its name alone.

    A link may lead to a pipe, for whose writer one would wait, or to a device without an end.
    """
    for name in names:
        digest.update(b"\0" + os.fsencode(name) + b"\0")
        try:
            if (folder / name).is_file():
                digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
        except OSError:
            continue


def _git(folder: Path, *arguments: str, said: bytes = b"") -> bytes | None:
    """Return what git answers to `said`; None where it fails, or there is none.

    Raises:
        subprocess.TimeoutExpired: it does not answer.
    """
    looks = (part for each in _LOOKS for part in ("-c", each))
    command = ("git", "--no-replace-objects", *looks, *arguments)
    own = os.environ.items()  # noqa: TID251 - handed on to git
    environ = {name: value for name, value in own if name not in _ELSEWHERE}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            input=said,
            capture_output=True,
            timeout=_GIT_LIMIT_S,
            check=False,
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
