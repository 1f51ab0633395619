"""Parse the arguments of a command, and load the model of a checkpoint for it."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nsa.errors import BadConfig

if TYPE_CHECKING:  # torch takes seconds: arguments are refused before it
    from nsa.checkpoint import Snapshot
    from nsa.config import TrainConfig
    from nsa.model import LanguageModel


class Arguments(argparse.ArgumentParser):
    """A parser whose summary and epilog are a module's docstring; mistakes are BadConfig."""

    def __init__(self, module: str, docstring: str | None) -> None:
        summary, _, rest = (docstring or "").partition("\n\n")
        super().__init__(
            prog=f"python -m {module}",
            description=summary.partition(": ")[2].capitalize(),
            epilog=rest,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise what ends the command with code 4."""
        raise BadConfig(message)


def load_trained(
    checkpoint: Path, device: str = "auto", *, seq_len: int | None = None
) -> "tuple[LanguageModel, TrainConfig, Snapshot]":
    """The model in evaluation mode on its device, its configuration, and the checkpoint.

    `checkpoint` is its folder, or a run's: its newest. `seq_len` makes room for more positions.

    Raises:
        BadConfig: Nothing usable there, or no GPU although one is asked for.
    """
    import torch

    from nsa.checkpoint import load_weights
    from nsa.model import build_model

    snapshot, config = open_trained(checkpoint)
    model = build_model(
        replace(
            config, model=replace(config.model, seq_len=max(config.model.seq_len, seq_len or 0))
        )
    )
    load_weights(model, checkpoint, snapshot.model)
    usable = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not usable:
        raise BadConfig("--device cuda: there is no GPU here")
    model.to(torch.device("cuda" if usable else "cpu")).eval()
    return model, config, snapshot


def open_trained(checkpoint: Path) -> "tuple[Snapshot, TrainConfig]":
    """A checkpoint and its configuration.

    Raises:
        BadConfig: Nothing usable there.
    """
    from nsa.checkpoint import load_checkpoint, newest_checkpoint
    from nsa.config import build_config

    snapshot = load_checkpoint(newest_checkpoint(checkpoint))
    if not snapshot.config:
        raise BadConfig(f"checkpoint {checkpoint} does not hold its configuration")
    return snapshot, build_config(snapshot.config)
