"""Parse the arguments of a command, and load the model of a checkpoint for it."""

import argparse
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


def load_trained(checkpoint: Path, device: str = "auto") -> "tuple[LanguageModel, Snapshot]":
    """The model on its device and the (newest) checkpoint; BadConfig where none is usable."""
    import torch

    from nsa.checkpoint import load_weights
    from nsa.model import build_model

    snapshot, config = open_trained(checkpoint)
    model = build_model(config)
    load_weights(model, checkpoint, snapshot.model)
    usable = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not usable:
        raise BadConfig("--device cuda: there is no GPU here")
    model.to(torch.device("cuda" if usable else "cpu")).eval()
    return model, snapshot


def open_trained(checkpoint: Path) -> "tuple[Snapshot, TrainConfig]":
    """A checkpoint and its configuration; BadConfig where none is usable."""
    from nsa.checkpoint import load_checkpoint, newest_checkpoint
    from nsa.config import build_config

    snapshot = load_checkpoint(newest_checkpoint(checkpoint))
    if not snapshot.config:
        raise BadConfig(f"checkpoint {checkpoint} does not hold its configuration")
    return snapshot, build_config(snapshot.config)
