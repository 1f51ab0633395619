"""Count what really runs on the live model; nothing is copied from the configuration (R16, R70)."""

import hashlib
import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from nsa.config import TrainConfig, config_digest
from nsa.data import BatchPlan
from nsa.device import driver_version
from nsa.model.transformer import LanguageModel
from nsa.settings import Settings

_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--submodule=diff")
_PACKAGES = ("gonogo", "nsa", "worker")
_SOURCES = (
    *(".py", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"),
    *(".sh", ".toml", ".yaml", ".yml"),
)


def count_identity(
    model: LanguageModel,
    config: TrainConfig,
    plan: BatchPlan,
    settings: Settings,
    device: torch.device,
) -> dict[str, Any]:
    """The flat identity of a run, with the names that an order uses."""
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
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "driver": driver_version(device),
    }


def git_sha(root: Path) -> str | None:
    """Return which code is in a folder, by the rule of `gonogo.supervise.preflight.code`."""
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
        with suppress(OSError):
            digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Return what git prints, if it is there."""
    try:
        done = subprocess.run(("git", "-C", folder, *arguments), capture_output=True, timeout=20.0)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
