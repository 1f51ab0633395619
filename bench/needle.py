"""Does selection retrieve? A tiny model finds a byte pattern far beyond its window.

Run from the repository root:

    python -m bench.needle --steps 700 --save tests/data/needle.pt

A sequence is noise in which a marker byte and a pattern of three secret bytes stand once; at its
end the marker comes again, and the model has to continue with the pattern. The first occurrence
lies beyond the window, so only the compressed and the selected branch can reach it. After training,
the same model is asked again with one branch's gate closed: what a closed branch costs is what it
had carried. `retrieved` is the share of sequences whose three bytes are all right; guessing gets 1
/ 4096.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsa.attention.module import BRANCHES
from nsa.config import TrainConfig, build_config, load_config
from nsa.model import LanguageModel, build_model
from nsa.model.transformer import next_byte_loss
from nsa.optimizer import build_optimizer, learning_rate

CPU = torch.device("cpu")
MARKER, SECRETS, NOISE, PATTERN = 255, range(128, 144), 64, 3
REPEATS = 3


def build_needle_config(steps: int, seed: int) -> TrainConfig:
    """Two layers, 32 dims a head; a query selects 5 of 32 blocks and sees a window of 16 bytes."""
    config = build_config(load_config(Path("demo")))
    model = replace(
        config.model,
        dim=64,
        layers=2,
        heads=4,
        groups=2,
        head_dim=16,
        ffn_width=128,
        seq_len=160,
        init_std=0.1,
    )
    attention = replace(config.attention, l=8, d=4, l_sel=8, n_sel=5, w=16)
    optim = replace(config.optim, lr=3e-3, warmup_steps=20, decay_steps=steps, weight_decay=0.0)
    return replace(config, model=model, attention=attention, optim=optim, seed=seed, steps=steps)


def needles(count: int, config: TrainConfig, random: torch.Generator, repeats: int) -> Tensor:
    """`[count, seq_len]` bytes; the pattern stands once early, `repeats` times in the middle, and
    at the end. Without repeats only the early pattern determines the end.
    """
    tokens = torch.randint(NOISE, (count, config.model.seq_len), generator=random)
    secret = torch.randint(SECRETS.start, SECRETS.stop, (count, PATTERN), generator=random)
    needle = torch.cat((torch.full((count, 1), MARKER), secret), dim=1)
    rows = torch.arange(count)[:, None]
    span = torch.arange(PATTERN + 1)
    slot = _slot(config, repeats)
    for number in range(repeats + 1):
        start = number * slot + torch.randint(slot - PATTERN, (count, 1), generator=random)
        tokens[rows, start + span] = needle
    tokens[:, -PATTERN - 1 :] = needle
    return tokens


def _slot(config: TrainConfig, repeats: int) -> int:
    """How many bytes each occurrence but the last may stand in; two windows end the sequence."""
    return (config.model.seq_len - 2 * config.attention.w) // (repeats + 1)


def train_on_needles(config: TrainConfig, batch: int, *, show: bool = False) -> LanguageModel:
    """Train on the bytes that follow a marker seen before."""
    torch.manual_seed(config.seed)
    model = build_model(config)
    optimizer = build_optimizer(model, config.optim, CPU)
    random = torch.Generator().manual_seed(config.seed)
    for step in range(1, config.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config.optim)
        repeats = REPEATS if 2 * step <= config.steps else 1  # many lessons first, then far ones
        tokens = needles(batch, config, random, repeats=repeats)
        targets = tokens[:, 1:].where(tokens[:, 1:] >= SECRETS.start, -100)
        targets = targets.where(targets != MARKER, -100)
        targets[:, : _slot(config, repeats)] = -100  # what the text has not shown yet
        loss = next_byte_loss(model(tokens[:, :-1]), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if show and step % 50 == 0:
            print(f"  step {step} loss {loss.item():.3f}", flush=True)
    return model.eval()


@torch.no_grad()
def retrieved(model: LanguageModel, config: TrainConfig, count: int) -> float:
    """Share of fresh sequences whose pattern the model completes without a mistake."""
    random = torch.Generator().manual_seed(config.seed + 1)
    tokens = needles(count, config, random, repeats=0)
    guesses = model(tokens[:, :-1])[:, -PATTERN:].argmax(dim=-1)
    return (guesses == tokens[:, -PATTERN:]).all(dim=-1).double().mean().item()


@contextmanager
def closed(model: LanguageModel, branch: str) -> Iterator[None]:
    """Close the gate of one branch in every layer and head."""
    number = BRANCHES.index(branch)
    kept = [block.attention.gate.bias.detach().clone() for block in model.layers()]
    with torch.no_grad():
        for block in model.layers():
            block.attention.gate.bias[number :: len(BRANCHES)] = -math.inf
    try:
        yield
    finally:
        with torch.no_grad():
            for block, bias in zip(model.layers(), kept, strict=True):
                block.attention.gate.bias.copy_(bias)


def load_trained(file: Path) -> tuple[LanguageModel, TrainConfig]:
    """A model that `--save` wrote, and its configuration."""
    config = build_needle_config(steps=1, seed=1337)
    model = build_model(config)
    model.load_state_dict(torch.load(file, weights_only=True))
    return model.eval(), config


def study(model: LanguageModel, config: TrainConfig, count: int) -> dict[str, Any]:
    """What is retrieved with all branches and with each one closed."""
    told: dict[str, Any] = {"retrieved": retrieved(model, config, count)}
    for branch in BRANCHES:
        with closed(model, branch):
            told[f"without_{branch}"] = retrieved(model, config, count)
    return {**told, "attention": asdict(config.attention)}


def main() -> None:
    """Train one model and print what it retrieves."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--save", type=Path, help="where the weights go, in half precision")
    given = parser.parse_args()
    torch.set_num_threads(1)
    config = build_needle_config(given.steps, given.seed)
    model = train_on_needles(config, given.batch, show=True)
    if given.save is not None:
        halves = {name: tensor.half() for name, tensor in model.state_dict().items()}
        torch.save(halves, given.save)
    print(json.dumps(study(model, config, given.count)))


if __name__ == "__main__":
    main()
