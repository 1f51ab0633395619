"""A transformers.Trainer with the callback, and nothing else of gonogo.

`python -m tests.trainer.loops.hf JSON` takes `halt_at`, `raise_at`, `args` and `own`. At the end
of a step `.HALT` appears, or an exception is raised. `own`: the Trainer makes another loss of the
model's output. Rank 0 writes the Trainer's log to `log.json`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from gonogo.trainer.hf import GonogoCallback


class Break(TrainerCallback):
    """Does what was asked for at the end of a step."""

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self.folder, self.asked = folder, asked

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.asked.get("halt_at") and args.process_index == 0:
            (self.folder / ".HALT").touch()
        if state.global_step == self.asked.get("raise_at"):
            raise RuntimeError("raised on purpose")


class Own(Trainer):
    """Trains by another loss than the model's own, which it has made as well."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        outputs = model(**inputs)
        loss = outputs.logits.square().mean()
        return (loss, outputs) if return_outputs else loss


def main() -> None:
    folder = Path(os.environ["GONOGO_RUN_DIR"])
    asked = json.loads(sys.argv[1])
    torch.manual_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=32,
            n_positions=16,
            n_embd=16,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    ids = torch.randint(1, 32, (64, 16))
    data = [{"input_ids": row, "labels": row} for row in ids]
    args = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_steps=6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{"logging_steps": 1, **asked.get("args", {})},
    )
    trainer = (Own if asked.get("own") else Trainer)(
        model=model,
        args=args,
        train_dataset=data,  # type: ignore[arg-type]
        eval_dataset=data[:4],  # type: ignore[arg-type]
        compute_metrics=lambda _: {"accuracy": 0.25},
        callbacks=[Break(folder, asked), GonogoCallback()],
    )
    trainer.train()
    if args.process_index == 0:
        (folder / "log.json").write_text(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    main()
