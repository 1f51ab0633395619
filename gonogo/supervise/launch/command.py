"""How are the ranks of an order started: which program, which environment? Standard library only.

`torchrun` starts them, each behind the rank wrapper. One rank needs no torchrun: where torch is not
installed the wrapper is started by itself. Only allow-listed entry points start, with allow-listed
names in their environment; the keeper's own settings (keys, URLs) never reach a rank.
"""

import importlib.util
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gonogo.supervise.processes import TOKEN_NAME

ENTRIES = frozenset({"nsa.train"})
"""Modules that an order may start; `--allow-entry` of the keeper adds more on this host."""

_PASSED_ON = (
    "PATH", "PYTHONPATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "VIRTUAL_ENV", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "HF_HOME", "SSL_CERT_FILE",
)  # fmt: skip
_ORDERED = re.compile(
    r"NSA_[A-Z0-9_]+|NCCL_[A-Z0-9_]+|TORCH_NCCL_[A-Z0-9_]+|GLOO_[A-Z0-9_]+|OMP_NUM_THREADS"
    r"|MKL_NUM_THREADS|CUDA_VISIBLE_DEVICES|PYTORCH_CUDA_ALLOC_CONF|CONFIG"
    r"|TOKENIZERS_PARALLELISM|HF_HOME|HF_TOKEN"
)
_BEYOND_OUR_DEADLINES_S = 7200


class LaunchRefused(ValueError):
    """The order asks for something that this host does not start."""


def build_command(
    order: Mapping[str, Any], run_dir: Path, entries: Collection[str] = ENTRIES
) -> list[str]:
    """Return the command line of the agent: torchrun, or the wrapper of the only rank.

    The rendezvous takes a free port of the loopback interface and ranks share its store, so runs
    beside each other cannot meet on a port.

    Raises:
        LaunchRefused: the entry point is not on the list, or several ranks need torchrun, which is
            not here.
    """
    entry = order.get("entry", "nsa.train")
    if entry not in entries:
        raise LaunchRefused(f"entry {entry!r} is not allowed here ({', '.join(sorted(entries))})")
    python, world_size = sys.executable, int(order["world_size"])
    rank = [
        python, "-m", "gonogo.supervise.launch.rank", "--dir", str(run_dir), "--",
        python, "-m", entry, "--order", str(run_dir / "order.json"),
    ]  # fmt: skip
    if importlib.util.find_spec("torch") is None:
        if world_size > 1:
            raise LaunchRefused(
                f"{world_size} ranks need torchrun, and torch is not installed here"
            )
        return rank
    return [
        python, "-m", "torch.distributed.run",
        "--standalone", "--local-addr", "127.0.0.1",
        "--nproc-per-node", str(world_size),
        "--max-restarts", "0",
        "--monitor-interval", "0.1",
        "--log-dir", str(run_dir / ".torchrun"),
        "--no-python", *rank,
    ]  # fmt: skip


def build_environment(
    order: Mapping[str, Any], run_dir: Path, environ: Mapping[str, str], devices: Collection[str]
) -> dict[str, str]:
    """Return the environment of the agent and its ranks.

    Args:
        order: the order as data.
        run_dir: where the flight recorder dumps.
        environ: the keeper's own environment, of which a few names are passed on.
        devices: device names of the run's locks, such as `cuda:1`.

    Raises:
        LaunchRefused: the order sets a name that is not allowed.
    """
    chosen = {name: environ[name] for name in _PASSED_ON if name in environ}
    indexes = sorted(int(name[5:]) for name in devices if name.startswith("cuda:"))
    if indexes:
        chosen["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, indexes))
        chosen["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order in which the driver counts, too
    chosen.update(
        {
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(run_dir / "nccl_trace_rank_"),
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(run_dir / ".nccl_dump_rank_"),
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(_BEYOND_OUR_DEADLINES_S),
        }
    )
    for name, value in dict(order.get("env") or {}).items():
        if not _ORDERED.fullmatch(name):
            raise LaunchRefused(f"environment name {name!r} is not allowed")
        chosen[name] = str(value)
    chosen[TOKEN_NAME] = str(order["run"])
    chosen["GONOGO_RUN_DIR"] = str(run_dir)
    return chosen
