"""A lightning.Trainer with the callback, and nothing else of gonogo.

`python -m tests.trainer.loops.lightning JSON`:

- {"halt_at"}, {"raise_at"}: `.HALT` appears, or an exception is raised, in the training step of
  that number
- {"pair": true}: two optimizers step in every batch, by hand
- {"overflow": true}: half precision, with gradients that no loss scale makes finite
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
from lightning.pytorch.plugins import MixedPrecision
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

    def on_after_backward(self) -> None:
        if self.asked.get("overflow"):
            for parameter in self.parameters():
                parameter.grad = torch.full_like(parameter, torch.inf)

    def validation_step(self, batch: dict[str, torch.Tensor], number: int) -> None:
        self.log("val_loss", self._loss(batch), sync_dist=True)
        self.log("val_acc", 0.25)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def on_fit_end(self) -> None:
        (self.folder / f"losses{self.global_rank}.json").write_text(json.dumps(self.losses))


class Pair(Line):
    """Two models with an optimizer each, as a GAN has them; `training_step` returns nothing."""

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        super().__init__(folder, asked)
        self.automatic_optimization = False
        self.other = torch.nn.Embedding(32, 1)

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> None:  # type: ignore[override]
        if number + 1 == self.asked.get("halt_at"):
            (self.folder / ".HALT").touch()
        losses = []
        for layer, optimizer in zip((self.layer, self.other), self.optimizers(), strict=True):  # type: ignore[arg-type]
            loss = (layer(batch["input_ids"]) - 1.0).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            losses.append(float(loss))
        self.losses.append(sum(losses))

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:  # type: ignore[override]
        rates = ((self.layer, 0.25), (self.other, 0.5))
        return [torch.optim.SGD(part.parameters(), lr=rate) for part, rate in rates]


def main() -> None:
    folder = Path(os.environ["GONOGO_RUN_DIR"])
    asked = json.loads(sys.argv[1])
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    pl.seed_everything(1)
    pair = bool(asked.get("pair"))
    scaler = torch.amp.GradScaler("cpu")
    callback = GonogoCallback()
    data = [{"input_ids": row} for row in torch.randint(0, 32, (96, 16))]
    trainer = pl.Trainer(
        max_steps=12 if asked.get("pair") else 6,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        accumulate_grad_batches=1 if pair else 2,
        val_check_interval=4,
        enable_progress_bar=False,
        logger=False,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler)] if asked.get("overflow") else None,
        callbacks=[callback, ModelCheckpoint(dirpath=folder / "own", every_n_train_steps=3)],
    )
    trainer.fit(
        Pair(folder, asked) if pair else Line(folder, asked),
        DataLoader(data, batch_size=4),  # type: ignore[arg-type]
        DataLoader(data[:8], batch_size=4),  # type: ignore[arg-type]
        ckpt_path=callback.resume_from,
    )


if __name__ == "__main__":
    main()
