"""Small training programs that know nothing of gonogo: `python programs.py NAME`. One step a line.

Each trains six steps of a model of 2 177 parameters unless its docstring says otherwise, and prints
the loss of each step as it sees it.
"""

import importlib
import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 6


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))


def data(count: int = STEPS, size: int = 8, workers: int = 0) -> DataLoader:
    torch.manual_seed(1)
    x = torch.randn(count * size, 32)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), size, num_workers=workers)


def loss_of(net: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return ((net(batch[0]) - batch[1]) ** 2).mean()


def tell(loss: torch.Tensor | float) -> None:
    number = loss if isinstance(loss, float) else loss.item()
    print(f"told {number!r}", flush=True)


def update(net: nn.Module, optimizer: torch.optim.Optimizer, batch: list[torch.Tensor]) -> None:
    loss = loss_of(net, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tell(loss)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader) -> None:
    for batch in loader:
        update(net, optimizer, batch)


def plain() -> None:
    net = model()
    train(net, torch.optim.AdamW(net.parameters(), lr=1e-2), data())


def accumulates() -> None:
    """Two batches a step; their losses are halves of the mean."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    total = 0.0
    for n, batch in enumerate(data(2 * STEPS), 1):
        loss = loss_of(net, batch) / 2
        loss.backward()
        total += loss.item()
        if n % 2 == 0:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            tell(total)
            total = 0.0


def two_optimizers() -> None:
    """A GAN: the discriminator steps first, the larger generator is the program's step."""
    small, net = nn.Linear(1, 1), model()
    of_small = torch.optim.Adam(small.parameters(), lr=1e-3)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for batch in data():
        fake = small(net(batch[0]).detach()).mean()
        fake.backward()
        of_small.step()
        of_small.zero_grad()
        loss = -small(net(batch[0])).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        tell(fake.item() + loss.item())


def folds() -> None:
    """Three folds of 12 steps, each with a model and an optimizer of its own; the first lives."""
    kept = []
    for _ in range(3):
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        kept.append(optimizer)
        train(net, optimizer, data(12))


def scaler() -> None:
    """Mixed precision: the second update overflows and is skipped."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scaling = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for n, batch in enumerate(data(), 1):
        loss = loss_of(net, batch)
        scaling.scale(loss).backward()
        if n == 2:
            next(net.parameters()).grad[0, 0] = torch.inf  # type: ignore[index]
        scaling.step(optimizer)
        scaling.update()
        optimizer.zero_grad()
        tell(loss)


def resumes() -> None:
    """The optimizer's state comes from a checkpoint of step 40; six more steps are made."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    before = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for row in net.parameters():
        row.grad = torch.zeros_like(row)
        before.state[row] = {
            "step": torch.tensor(40.0),
            "exp_avg": torch.zeros_like(row),
            "exp_avg_sq": torch.ones_like(row),
        }
    optimizer.load_state_dict(before.state_dict())
    optimizer.zero_grad()
    del before
    train(net, optimizer, data())


def evaluates_and_saves() -> None:
    """After each second step the model is evaluated and saved."""
    net, teacher = model(), model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for n, batch in enumerate(data(), 1):
        teacher.eval()
        update(net, optimizer, batch)
        if n % 2 == 0:
            net.eval()
            with torch.no_grad():
                for other in data(2):
                    loss_of(net, other)
            net.train()
            torch.save(net.state_dict(), os.environ["SAVES_TO"])


def compiled() -> None:
    """The model and the optimizer's step are compiled (by the eager backend)."""
    import torch._dynamo.utils as counters

    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
    fast = torch.compile(net, backend="eager")

    @torch.compile(backend="eager")
    def update() -> None:
        optimizer.step()

    for batch in data():
        loss = loss_of(fast, batch)
        loss.backward()
        update()
        optimizer.zero_grad()
        tell(loss)
    print("frames", counters.counters["frames"]["ok"], flush=True)


def logs() -> None:
    """Each step is logged by each tracker, of which stand-ins lie in $PACKAGES."""
    sys.path.insert(0, os.environ["PACKAGES"])
    import mlflow
    import tensorboardX
    import trackio
    import wandb

    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    board = tensorboardX.SummaryWriter()
    board.add_scalar("before", 1)
    for n, batch in enumerate(data(), 1):
        loss = loss_of(net, batch)
        loss.backward()
        mlflow.log_metric("in_backward", n)
        optimizer.step()
        optimizer.zero_grad()
        tell(loss)
        wandb.log({"wandb": {"loss": loss, "deep": {"n": n}}, "name": "x", "many": torch.ones(2)})
        board.add_scalar("board", scalar_value=n, global_step=7)
        board.add_scalars("group", {"a": n}, n)
        mlflow.log_metric("mlflow", n, step=n)
        mlflow.log_metrics({"also": n})
        trackio.log({"trackio": n})


def logs_to_tensorboard() -> None:
    """Each step is logged by torch's own writer."""
    from torch.utils.tensorboard import SummaryWriter

    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    with SummaryWriter(os.environ["FOLDER"]) as writer:
        for n, batch in enumerate(data(), 1):
            loss_of(net, batch).backward()
            optimizer.step()
            writer.add_scalar("n", n, n)


def fails() -> None:
    """The program itself ends by an error after three steps."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    train(net, optimizer, list(data())[:3])  # type: ignore[arg-type]
    raise RuntimeError("out of ideas")


def hook_fails() -> None:
    """The observer fails at the third step; the program must not notice."""
    from gonogo.observer.hooks import training

    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for n, batch in enumerate(data(), 1):
        if n == 3:
            training._count = None  # type: ignore[method-assign,assignment]
        update(net, optimizer, batch)


def attaches() -> None:
    """A program that attaches itself after an optimizer was made and its loader was read once."""
    import gonogo.trainer

    torch.optim.AdamW(model().parameters())
    list(data())
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    with gonogo.trainer.attach(model=net) as beat:
        for batch in data():
            loss = loss_of(net, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            beat.step(loss=loss, tokens=1)


def ddp() -> None:
    """Two ranks by torchrun, wrapped in DistributedDataParallel."""
    torch.distributed.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(model())
    train(net, torch.optim.AdamW(net.parameters(), lr=1e-2), data())
    torch.distributed.destroy_process_group()


def sleeps() -> None:
    """Two ranks by torchrun, of which rank 1 sleeps in step 30."""
    torch.distributed.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for n in range(1, 201):
        time.sleep(3600 if n == 30 and torch.distributed.get_rank() == 1 else 0.1)
        loss = net(torch.ones(4, 32)).mean()
        loss.backward()
        optimizer.step()


def fsdp() -> None:
    """Two ranks by torchrun, sharded by FSDP2."""
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    net = model()
    fully_shard(net)
    train(net, torch.optim.AdamW(net.parameters(), lr=1e-2), data())
    torch.distributed.destroy_process_group()


def _spawned(rank: int, port: int) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    net = nn.parallel.DistributedDataParallel(model())
    train(net, torch.optim.AdamW(net.parameters(), lr=1e-2), data())
    torch.distributed.destroy_process_group()


def spawns() -> None:
    """Two ranks by torch.multiprocessing.spawn: no launcher names them."""
    torch.multiprocessing.spawn(_spawned, (int(os.environ["PORT"]),), nprocs=2)


def accelerate() -> None:
    """Accelerate, with two batches a step."""
    from accelerate import Accelerator

    driver = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = model()
    net, optimizer, loader = driver.prepare(
        net, torch.optim.AdamW(net.parameters(), lr=1e-2), data(2 * STEPS)
    )
    for batch in loader:
        with driver.accumulate(net):
            driver.backward(loss_of(net, batch))
            driver.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def _tiny() -> object:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=32,
        )
    )


def transformers() -> None:
    """Six steps of transformers' Trainer of two batches each, saved after step 3; then resumed."""
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": [n % 64] * 8, "labels": [n % 64] * 8} for n in range(48)]
    folder = os.environ["SAVES_TO"]
    args = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_steps=3,
        eval_strategy="steps",
        eval_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(_tiny(), args, train_dataset=rows, eval_dataset=rows[:4])  # type: ignore[arg-type]
    again = os.path.join(folder, "checkpoint-3")
    trainer.train(resume_from_checkpoint=again if os.path.isdir(again) else None)


def lightning() -> None:
    """Six steps of Lightning's Trainer, with an evaluation at the end of the epoch."""
    from lightning.pytorch import LightningModule, Trainer

    class Own(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return loss_of(self.net, batch)

        def validation_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Own(), data(), data(2))


def forked() -> str:
    """Fork a child for each `{"name", "environ", "output"}` of stdin; in it, return the name."""
    importlib.import_module("torch._dynamo")  # as the first optimizer of a child would
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ.update(asked["environ"])
            output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            return str(asked["name"])
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[forked() if sys.argv[1] == "forked" else sys.argv[1]]()
