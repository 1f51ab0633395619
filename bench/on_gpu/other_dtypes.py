"""What would `backend="auto"` take here? The proofs that it goes by, bf16 first."""

from __future__ import annotations

from dataclasses import asdict

import torch

from bench.on_gpu.rows import Context
from nsa.attention.choice import choose_by_proof
from nsa.attention.proof import DTYPES, device_proof


def run(context: Context) -> None:
    """A row `proof` of each dtype; kept where `auto` looks for it."""
    for name in DTYPES:
        if context.has_time(f"proof in {name}", needed_s=40.0):
            proof = device_proof(context.device, getattr(torch, name))
            context.tell("proof", auto=choose_by_proof(proof), **asdict(proof))
