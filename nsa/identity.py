"""What really runs? Counted on the live model, not copied from the configuration.

One report celebrated the speed of a 128-dim toy that ran instead of the model (R16, R70). So
dims are read off the module tree, parameters are counted, and the digest is of what was built.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from nsa.config import TrainConfig, config_digest
from nsa.data import BatchPlan
from nsa.model.transformer import LanguageModel
from nsa.settings import Settings

_DRIVER_VERSION = Path("/sys/module/nvidia/version")
_GIT_LIMIT_S = 20.0
_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--submodule=diff")
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
"""A git hook that starts a run sets these, and git would look at the hook's checkout."""
_PACKAGES = ("gonogo", "nsa", "worker")
_SOURCES = frozenset(
    (
        *(".py", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"),
        *(".sh", ".toml", ".yaml", ".yml"),
    )
)


def count_identity(
    model: LanguageModel,
    config: TrainConfig,
    plan: BatchPlan,
    settings: Settings,
    device: torch.device,
) -> dict[str, Any]:
    """The flat identity of a run, with the names that an order uses.

    `device` is the model of the device, not its number; `driver` its driver's version.
    """
    attention = model.layers()[0].attention
    return {
        "config_digest": config_digest(config),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "dim": model.embedding.weight.shape[1],
        "layers": len(model.layers()),
        "heads": attention.heads,
        "groups": attention.groups,
        "seq_len": model.rotation.shape[1],
        "vocab": model.head.out_features,
        "dtype": config.dtype,
        "tokens_per_step": plan.tokens_per_step,
        "world_size": settings.world_size,
        "dataset": config.data,
        "parallel": config.parallel,
        "git_sha": git_sha(Path(__file__).resolve().parents[1]),
        "nsa_env": dict(settings.nsa_env),
        "torch": str(torch.__version__),
        "device": device_name(device),
        "driver": driver_version(device),
    }


def device_name(device: torch.device) -> str:
    """The model of a device ("NVIDIA H200"), `cpu` for the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def driver_version(device: torch.device, said_by: Path = _DRIVER_VERSION) -> str | None:
    """The version of a GPU's driver ("570.86.15"); None on a CPU, or if it is unknown."""
    if device.type != "cuda":
        return None
    try:
        return said_by.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None


def git_sha(root: Path) -> str | None:
    """Return which code is in a folder, by the rule of `gonogo.supervise.preflight.code`.

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


def _digest_of_tree(root: Path) -> str | None:
    paths = (path for package in _PACKAGES for path in (root / package).rglob("*"))
    names = [str(path.relative_to(root)) for path in paths if path.suffix in _SOURCES]
    return f"tree-{_digest(root, names, hashlib.sha256())[:40]}" if names else None


def _digest(folder: Path, names: Iterable[str], digest: "hashlib._Hash") -> str:
    """Return the digest with names and contents; what is no readable file counts by its name."""
    for name in sorted(names):
        digest.update(b"\0" + os.fsencode(name) + b"\0")
        try:
            if (folder / name).is_file():
                digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
        except OSError:
            continue
    return digest.hexdigest()


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Return what git prints; None if it fails or is not installed.

    Raises:
        subprocess.TimeoutExpired: git does not answer.
    """
    own = os.environ.items()  # noqa: TID251 - passed on to git
    env = {name: value for name, value in own if name not in _ELSEWHERE}
    command = ("git", *arguments)
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, timeout=_GIT_LIMIT_S, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
