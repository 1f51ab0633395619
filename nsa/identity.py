"""What really runs? Counted on the live model, not copied from the configuration.

One report celebrated the speed of a 128-dim toy that ran instead of the model (R16, R70). So
dims are read off the module tree, parameters are counted, and the digest is of what was built.
"""

import hashlib
import subprocess
from pathlib import Path
from typing import Any

from nsa.config import TrainConfig, config_digest
from nsa.data import BatchPlan
from nsa.model.transformer import LanguageModel
from nsa.settings import Settings

_GIT_LIMIT_S = 20


def count_identity(
    model: LanguageModel, config: TrainConfig, plan: BatchPlan, settings: Settings
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
        "git_sha": git_sha(Path(__file__).parent),
        "nsa_env": dict(settings.nsa_env),
    }


def git_sha(folder: Path) -> str | None:
    """The checkout's commit, `+` 12 hex digits of the digest of `git diff HEAD` when it is dirty.

    None where there is no git or no commit.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-color", "--binary") or b""
    dirty = f"+{hashlib.sha256(diff).hexdigest()[:12]}" if diff else ""
    return commit.decode().strip() + dirty


def _git(folder: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=folder, capture_output=True, timeout=_GIT_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
