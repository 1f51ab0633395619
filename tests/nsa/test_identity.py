import hashlib
import subprocess
from pathlib import Path

from nsa.identity import git_sha


def _git(folder: Path, *arguments: str) -> bytes:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout


def test_a_dirty_checkout_has_another_identity_than_its_commit(tmp_path: Path) -> None:
    assert git_sha(tmp_path) is None
    _git(tmp_path, "init", "-q")
    assert git_sha(tmp_path) is None
    (tmp_path / "a").write_text("1\n")
    _git(tmp_path, "add", "a")
    _git(tmp_path, "commit", "-qm", "one")
    clean = git_sha(tmp_path)
    assert clean == _git(tmp_path, "rev-parse", "HEAD").decode().strip()
    (tmp_path / "a").write_text("2\n")
    diff = _git(tmp_path, "diff", "HEAD")
    assert git_sha(tmp_path) == f"{clean}+{hashlib.sha256(diff).hexdigest()[:12]}"
    (tmp_path / "a").write_text("1\n")
    assert git_sha(tmp_path) == clean
