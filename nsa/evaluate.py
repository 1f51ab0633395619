"""`python -m nsa.evaluate CHECKPOINT`: how good is a model, and does it look far back?

    python -m nsa.evaluate RUN_DIR
    python -m nsa.evaluate RUN_DIR/checkpoints/step_000040 --data local_text --sequences 16

Prints one JSON object. `bits_per_byte` is that of a text that never changes
(`nsa/texts/declaration.txt`, or `--text FILE`). `by_position` is the held-out loss in nats per byte
in bands of positions, each twice as long as the one before. It is null if nothing is held out
(`--data` names another text).
Exit codes: 0 done, 4 bad arguments or a checkpoint that cannot be used, 5 data failure.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsa.command_line import Arguments, load_trained
from nsa.config import SEPARATOR
from nsa.errors import BadConfig, TrainerStop

if TYPE_CHECKING:
    from torch import Tensor

    from nsa.config import TrainConfig
    from nsa.data import Source
    from nsa.model import LanguageModel

TEXT = Path(__file__).parent / "texts" / "declaration.txt"
_FIRST_BAND = 64


def main(arguments: list[str] | None = None) -> int:
    """Evaluate; returns the exit code."""
    try:
        told = evaluate(_parse(arguments))
    except TrainerStop as stop:
        print(f"{type(stop).__name__}: {stop}", file=sys.stderr)
        return stop.code
    print(json.dumps(told, indent=1))
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Arguments("nsa.evaluate", __doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint's folder, or a run's")
    parser.add_argument("--text", type=Path, default=TEXT, help="a text for bits per byte")
    parser.add_argument("--data", help="whose held-out text (default: what it was trained on)")
    parser.add_argument("--sequences", type=int, default=8, help="held-out sequences (default 8)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return parser.parse_args(arguments)


def evaluate(given: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for.

    Raises:
        BadConfig: nothing usable there.
        DataFailure: the held-out text cannot be read.
    """
    if given.sequences < 1:
        raise BadConfig("--sequences must be at least 1")
    # torch takes seconds: arguments are refused before it.
    from nsa.data import open_source
    from nsa.data.held_out import NothingHeldOut

    model, config, snapshot = load_trained(given.checkpoint, given.device)
    text = _read(given.text)
    source = open_source(given.data or config.data, config.seed, loader=config.loader)
    told: dict[str, Any] = {
        "checkpoint": str(given.checkpoint),
        "step": snapshot.step,
        "text": {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()},
        "bits_per_byte": round(bits_per_byte(model, text, config.model.seq_len), 6),
        "by_position": None,
    }
    try:
        told["by_position"] = by_position(model, source, config, given.sequences)
    except NothingHeldOut as nothing:
        print(f"no loss by position: {nothing}; --data names another text", file=sys.stderr)
    return told


def losses(model: LanguageModel, tokens_BS: Tensor) -> Tensor:
    """Nats that each byte but the first costs after those before it, fp32 `[B, S - 1]`."""
    import torch
    from torch.nn import functional as F

    with torch.no_grad():
        logits_BSV = model(tokens_BS[:, :-1]).float()
    return F.cross_entropy(logits_BSV.transpose(1, 2), tokens_BS[:, 1:], reduction="none")


def bits_per_byte(model: LanguageModel, text: bytes, seq_len: int) -> float:
    """Mean bits for each byte of a text, after a document's end.

    Windows of `seq_len` overlap by half, so that every byte but those of the first half window has
    at least half a window before it; each is counted once.
    """
    import torch

    device = model.rotation.device
    tokens = torch.tensor(list(SEPARATOR + text), device=device)
    step = max(1, seq_len // 2)
    total, counted = 0.0, 0
    while counted < len(text):
        begin = max(0, min(counted + step, len(text)) - seq_len)
        end = min(begin + seq_len, len(text))
        window = losses(model, tokens[None, begin : end + 1])[0]
        total += float(window[counted - begin :].double().sum())
        counted = end
    return total / counted / math.log(2)


def by_position(
    model: LanguageModel, source: Source, config: TrainConfig, sequences: int
) -> list[dict[str, Any]]:
    """Held-out loss of bands of positions: `from`, `to` (positions, the end not included), `loss`.

    A model that uses what lies far back is better at late positions.
    """
    import torch

    length = config.model.seq_len
    rows = []
    for index in range(sequences):
        data = torch.from_numpy(source.sequence("val", index, length).copy())
        rows.append(losses(model, data.to(model.rotation.device, torch.int64)[None])[0])
    mean = torch.stack(rows).double().mean(0)
    edges = band_edges(length)
    return [
        {"from": begin, "to": end, "loss": round(float(mean[begin:end].mean()), 6)}
        for begin, end in pairwise(edges)
    ]


def band_edges(length: int) -> Sequence[int]:
    """0, 64, 128, 256, … and the length."""
    edges = [0]
    while (edge := max(_FIRST_BAND, 2 * edges[-1])) < length:
        edges.append(edge)
    return [*edges, length]


def _read(file: Path) -> bytes:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise BadConfig(f"cannot read {file}: {error}") from error
    if not text:
        raise BadConfig(f"{file} is empty")
    return text


if __name__ == "__main__":
    raise SystemExit(main())
