"""What would `backend="auto"` take here? The proofs that it goes by, bf16 first."""

from __future__ import annotations

import functools
from dataclasses import asdict

import torch

from bench.on_gpu.rows import Context
from nsa.attention.proof import DTYPES, TRIAL_LIMIT_S, choose_by_proof, device_proof


def run(context: Context) -> None:
    """A row `proof` of each dtype; kept where `auto` looks for it."""

    def prove(name: str) -> dict[str, object]:
        limit_s = min(TRIAL_LIMIT_S, context.left_s())
        proof = device_proof(context.device, getattr(torch, name), limit_s=limit_s)
        return {"auto": choose_by_proof(proof), **asdict(proof)}

    for name in DTYPES:
        unit = functools.partial(prove, name)
        context.measure(
            "proof",
            f"proof in {name}",
            unit,
            needed_s=100.0,
            limit_s=TRIAL_LIMIT_S + 10,
            dtype=name,
        )  # fmt: skip
