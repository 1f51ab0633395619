"""The identity of what runs, counted on the live model, not copied from a configuration.

What cannot be counted (dims, data, dtype) the script reports with `attach(identity=…)`.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DRIVER_VERSION = Path("/sys/module/nvidia/version")
_FSDP_1 = "FullyShardedDataParallel"
_PARALLEL = {
    "DistributedDataParallel": "DDP",
    _FSDP_1: "FSDP",
    "FSDPModule": "FSDP",
}


def count_model(model: Any) -> dict[str, Any]:
    """Return `params`, `trainable`, `device`, `driver`, `backend` of a torch module.

    Both counts are missing for a model that FSDP 1 shards.

    Raises:
        AttributeError: no such module.
    """
    parameters = list(model.parameters())
    told: dict[str, Any] = {}
    if not _is_sharded(model):
        sizes = [(_size(row), row.requires_grad) for row in parameters]
        told["params"] = sum(size for size, _ in sizes)
        told["trainable"] = sum(size for size, trains in sizes if trains)
    if parameters:
        told |= _device(parameters[0].device)
    names = [kind.__name__ for kind in type(model).__mro__]
    backend = next((_PARALLEL[name] for name in names if name in _PARALLEL), None)
    return told if backend is None else {**told, "backend": backend}


def _size(parameter: Any) -> int:
    """Return the elements of a parameter; ZeRO stage 3 keeps its size beside it."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _is_sharded(model: Any) -> bool:
    """Whether FSDP 1 shards a part of the model."""
    kinds = (type(module).__mro__ for module in getattr(model, "modules", list)())
    return any(_FSDP_1 in (kind.__name__ for kind in mro) for mro in kinds)


def count_environment(nsa_env: Mapping[str, str], world_size: int) -> dict[str, Any]:
    """Return world size, release of torch, and `NSA_*` names."""
    told: dict[str, Any] = {"world_size": world_size, "nsa_env": dict(nsa_env)}
    told |= count_torch()
    return told if world_size > 1 else {**told, "backend": "single"}


def count_torch() -> dict[str, Any]:
    """Return the release of torch, if the script has imported it."""
    torch = sys.modules.get("torch")
    return {} if torch is None else {"torch": str(torch.__version__)}


def digest_files(order: Mapping[str, Any]) -> dict[str, Any]:
    """Return `git_sha` of the files that the order names for code identity, if all can be read.

    It is `files-` and forty hex digits of the SHA-256 over names and contents in their order.
    """
    names = order.get("files") or []
    if not names:
        return {}
    folder, found = Path(order.get("cwd") or Path.cwd()), hashlib.sha256()
    for name in names:
        try:
            content = (folder / name).read_bytes()
        except OSError:
            return {}
        found.update(os.fsencode(name) + b"\0" + hashlib.sha256(content).digest())
    return {"git_sha": f"files-{found.hexdigest()[:40]}"}


def model_device(model: Any) -> Any:
    """Return the device of a module's first parameter; None without parameters."""
    first = next(iter(model.parameters()), None)
    return None if first is None else first.device


def _device(device: Any) -> dict[str, Any]:
    if device.type != "cuda":
        return {"device": device.type, "driver": None}
    torch = sys.modules["torch"]
    return {"device": torch.cuda.get_device_name(device), "driver": _driver_version()}


def _driver_version() -> str | None:
    try:
        return _DRIVER_VERSION.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None
