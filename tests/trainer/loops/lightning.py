"""A lightning.Trainer with the callback, and nothing else of gonogo.

`python -m tests.trainer.loops.lightning JSON` with {"halt_at", "raise_at"}: `.HALT` appears, or an
exception is raised, in the training step of that number.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from gonogo.trainer.lightning import GonogoCallback


class Line(pl.LightningModule):
    """Fits a line; leaves its own losses in `losses.json`."""

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        super().__init__()
        self.layer = torch.nn.Embedding(32, 1)
        self.folder, self.asked = folder, asked
        self.losses: list[float] = []

    def _loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (self.layer(batch["input_ids"]) - 1.0).square().mean()

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        step = number // 2 + 1  # two batches a step
        if step == self.asked.get("halt_at") and self.global_rank == 0:
            (self.folder / ".HALT").touch()
        if step == self.asked.get("raise_at"):
            raise RuntimeError("raised on purpose")
        loss = self._loss(batch)
        self.losses.append(float(loss))
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], number: int) -> None:
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def on_fit_end(self) -> None:
        (self.folder / f"losses{self.global_rank}.json").write_text(json.dumps(self.losses))


def main() -> None:
    folder = Path(os.environ["GONOGO_RUN_DIR"])
    asked = json.loads(sys.argv[1])
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    pl.seed_everything(1)
    data = [{"input_ids": row} for row in torch.randint(0, 32, (96, 16))]
    trainer = pl.Trainer(
        max_steps=6,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        accumulate_grad_batches=2,
        val_check_interval=4,
        enable_progress_bar=False,
        logger=False,
        callbacks=[
            GonogoCallback(),
            ModelCheckpoint(dirpath=folder / "own", every_n_train_steps=3),
        ],
    )
    trainer.fit(
        Line(folder, asked),
        DataLoader(data, batch_size=4),  # type: ignore[arg-type]
        DataLoader(data[:8], batch_size=4),  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    main()
