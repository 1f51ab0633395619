"""`python -m nsa.sanity --order order.json`: does the ordered model compute at all, here?

A miniature of it (one layer, short sequences, bytes for a vocabulary; everything else as ordered:
width, heads, attention, kernels, arithmetic) goes forward and backward once on each visible device.
One JSON object: `{v, passed, text, rows: [{device, loss, gradient}]}`. It covers neither several
ranks nor the optimizer.

Exit codes: 0 it says · 4 bad order or settings.
"""

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from nsa.config import TrainConfig, build_config
from nsa.device import prepare_torch
from nsa.errors import BadConfig
from nsa.model import build_model
from nsa.model.transformer import next_byte_loss
from nsa.probe import list_devices
from nsa.settings import Settings, load_settings

_VOCAB = 256
_BLOCKS = 2
"""Blocks of the attention's longest kind in the short sequence."""


def miniature(config: TrainConfig) -> TrainConfig:
    """The ordered configuration with one layer, short sequences and a vocabulary of bytes."""
    attention = config.attention
    shortest = _BLOCKS * max(attention.l, attention.l_sel)
    model = dataclasses.replace(
        config.model,
        layers=1,
        vocab=_VOCAB,
        seq_len=min(config.model.seq_len, shortest),
    )
    return dataclasses.replace(config, model=model)


def check_device(config: TrainConfig, device: torch.device, settings: Settings) -> dict[str, Any]:
    """One forward and backward pass; loss and the norm of all gradients."""
    prepare_torch(device, settings)
    torch.manual_seed(config.seed)
    model = build_model(config).to(device)
    tokens = torch.randint(_VOCAB, (1, config.model.seq_len + 1), device=device)
    dtype = torch.float16 if config.dtype == "fp16" else torch.bfloat16
    with torch.autocast(device.type, dtype=dtype, enabled=config.dtype != "fp32"):
        loss = next_byte_loss(model(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    gradients = [row.grad for row in model.parameters() if row.grad is not None]
    norm = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(row.float()) for row in gradients])
    )
    return {"device": str(device), "loss": loss.item(), "gradient": norm.item()}


def check(config: TrainConfig, devices: list[torch.device], settings: Settings) -> dict[str, Any]:
    """What became of the miniature on each device."""
    small, rows, failed = miniature(config), [], []
    for device in devices:
        try:
            row = check_device(small, device, settings)
        except RuntimeError as error:  # torch's word for out of memory and for a kernel that fails
            failed.append(f"{device}: {error}".splitlines()[0])
            continue
        rows.append({name: _number(value) for name, value in row.items()})
        if not (math.isfinite(row["loss"]) and math.isfinite(row["gradient"]) and row["gradient"]):
            failed.append(f"{device}: loss {row['loss']}, gradient {row['gradient']}")
    told = ", ".join(f"{row['device']}: loss {row['loss']}" for row in rows)
    return {"v": 1, "passed": not failed, "text": "; ".join(failed) or told, "rows": rows}


def _number(value: Any) -> Any:
    """A number as JSON has it."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    return value


def main() -> int:
    """Print what became of it; see the module's text for the exit codes."""
    parser = argparse.ArgumentParser(prog="python -m nsa.sanity", allow_abbrev=False)
    parser.add_argument("--order", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        settings = load_settings()
        order = json.loads(arguments.order.read_bytes())
        config = build_config(order["train"])
    except BadConfig as error:
        print(f"{error}", file=sys.stderr)
        return error.code
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"no order: {error}", file=sys.stderr)
        return BadConfig.code
    devices = [torch.device("cpu")] if order.get("profile") == "cpu" else list_devices()
    print(json.dumps(check(config, devices, settings)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
