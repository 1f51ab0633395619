"""One rank from boot to done: boot, wait, step, step, leave.

Every step writes `step_start`, `progress`, `step_end`. Decisions that all ranks share are rank 0's
and travel with the collective that averages the loss.
"""

import math
import secrets
import time
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from nsa.artifacts import LOG_EVERY_S, Console, RunArtifacts, StepProfiler, memory_report
from nsa.assignment import Launch
from nsa.attention import counters
from nsa.attention.kernels import flash_share
from nsa.checkpoint import check_same_corpus
from nsa.checkpoint_writer import CheckpointWriter
from nsa.data import Batches, BatchPlan, open_source
from nsa.data.batches import NothingHeldOut
from nsa.device import prepare_network
from nsa.errors import DataFailure, Halted, NonFinite, NotSaved
from nsa.faults import fault_of, toy_instead_of
from nsa.heartbeat import Heartbeat
from nsa.identity import count_identity
from nsa.model.statistics import gate_health, gate_rows, gate_stats, selection_rows
from nsa.model.transformer import next_byte_loss
from nsa.optimizer import Update, apply_gradients, learning_rate
from nsa.rank_setup import RankSetup, set_up_rank
from nsa.run_signals import FlightRecorder, forget, told, wait_for_go
from nsa.sections import Sections, Stopwatch
from nsa.settings import Settings
from nsa.stacks import StackDumps

_ERROR_TEXT_LIMIT = 2000
_SELECTION_EVERY = 10
_SKIPPED_LIMIT, _SCALED_LIMIT = 20, 64
"""So many skipped updates in a row end the run: weights that have not moved for twenty batches will
not recover. The second limit is for fp16: from 2**32 a loss scale takes 32 halvings to 1, and a
supervisor ends the run at 40, with the cause."""


class Trainer:
    """One rank of one run; BadConfig where the fault or the batch does not fit."""

    def __init__(self, launch: Launch, settings: Settings, stacks: StackDumps) -> None:
        self.launch, self.settings, self.config = launch, settings, launch.config
        rank, world_size = settings.rank, settings.world_size
        self.fault = fault_of(launch.fault, self.config, rank=rank, world_size=world_size)
        if self.fault.kind == "wrong-config":
            self.config = toy_instead_of(self.config)
        self.last_step = launch.last_step or self.config.steps
        self.plan = BatchPlan.of(self.config, rank=rank, world_size=world_size)
        self.heart = Heartbeat(
            launch.run_dir / f"heartbeat_rank{rank}.jsonl",
            rank=rank,
            boot=secrets.token_hex(8),
            alive_every_s=launch.alive_every_s,
            shown=settings.local_world_size < world_size,
        )
        self.stacks = stacks
        self.stacks.on_dump = lambda name: self.heart.beat("stackdump", path=name)
        self.sections = Sections(self.heart, self.fault)
        self.step = 0
        self.at_end = ExitStack()
        self.halt_told = self.checkpoint_due = self.doubtful = self.hopeless = False
        self.skipped_running = self.skipped_steps = self.epoch = 0
        self.checkpoint_told = 0.0
        self.validates = True

    def run(self) -> None:
        """Train to the last step; raises the TrainerStop that names why it ended early."""
        try:
            self._boot()
            self._open_data()
            while self.step < self.last_step:
                self._train_step()
                self._between_steps()
            self.setup.ranks.leave_together()
            if not self.launch.supervised and self.writer.lacks_last(self.step):
                raise NotSaved(f"trained to step {self.step}, whose checkpoint was not written")
            self.heart.beat("done")
        except Halted:
            raise
        except Exception as error:  # reported, then it ends the process as usual
            text = str(error)[:_ERROR_TEXT_LIMIT]
            self.heart.beat("error", type=type(error).__name__, text=text)
            raise
        finally:
            self.at_end.close()
            self.stacks.close()
            self.heart.close()

    def _boot(self) -> None:
        self.heart.section = "boot"
        network = prepare_network(self.settings)
        self.setup = set_up_rank(
            self.config, self.plan, self.launch, self.settings, self.heart.count_collective
        )
        self.sections.stopwatch = Stopwatch(self.setup.device)
        self.step = self.heart.step = self.setup.resumed_step
        if self.fault.second_group:
            self.setup.ranks.open_second_group()
        identity = count_identity(
            self.setup.model, self.config, self.plan, self.settings, self.setup.device
        )
        self.heart.beat(
            "boot",
            run=self.settings.run,
            attempt=self.launch.attempt,
            **identity,
            backend=self.setup.ranks.backend,
            attention_backend=self.setup.attention_backend,
        )
        self.heart.start_thread()
        if self.setup.ranks.backend != "single":
            recorder = FlightRecorder(self.launch.run_dir, self.settings.rank)
            self.at_end.callback(recorder.close)
        self.fault.strike("boot", self.step)
        counters.clear()
        self.artifacts = RunArtifacts(self.launch.run_dir, self.settings, self.setup.device)
        self.at_end.callback(self.artifacts.close)
        engine = self.config.engine
        self.profiler = StepProfiler(
            self.launch.run_dir,
            engine.profile_steps if engine is not None and self.settings.rank == 0 else 0,
            self.setup.device,
            self.sections,
        )
        self.at_end.callback(self.profiler.close)
        self.artifacts.describe(identity, self.setup.model, network)
        self.writer = CheckpointWriter(
            self.launch.run_dir, self.launch.checkpoint, self.setup, self.heart, self.fault
        )
        self.at_end.callback(self.writer.close)
        self.console: Console | None = None
        if self.launch.supervised:
            self.console = Console(self.last_step, self.step, every_s=LOG_EVERY_S)
            wait_for_go(self.launch.run_dir, self.setup.ranks, self.heart)
        elif self.settings.rank == 0:
            forget(self.launch.run_dir, "HALT")
            self.console = Console(self.last_step, self.step)
        self.heart.section = None

    def _open_data(self) -> None:
        with self.sections.enter("data"):
            began = time.monotonic()
            try:
                config = self.config
                source = open_source(config.data, config.seed, self.plan.global_seqs, config.loader)
                self.batches = Batches(source, self.plan, self.setup.device, config.loader)
                self.at_end.callback(self.batches.close)
                self.corpus = self.batches.corpus()
                if self.setup.corpus is not None:
                    check_same_corpus(self.setup.corpus, self.corpus, config.data)
                if self.step < self.last_step:
                    self.batches.prepare(self.step + 1, self.setup.marks)
            except DataFailure as error:
                self.heart.beat("loader_error", type=type(error).__name__, text=str(error))
                raise
            self.heart.beat("loader_ready", dt=round(time.monotonic() - began, 6))

    # One step: data, forward, backward, optimizer, log.

    def _train_step(self) -> None:
        self.step += 1
        self.profiler.before_step(self.step)
        self.setup.model.keep_selection(self._selection_due())
        self.sections.begin_step(self.step)
        self.setup.ranks.begin_step()
        self.artifacts.dump_memory("pre", self.step)
        parts, fetch_s = self._fetch()
        loss = sum(self._forward_backward(parts), start=torch.zeros((), device=self.setup.device))
        rate = self.fault.rate(self.step, learning_rate(self.step, self.config.optim))
        update = self._apply(rate)
        tokens = sum(inputs.numel() for inputs, _ in parts) * self.settings.world_size
        with self.sections.enter("log"):
            self.fault.leak(self.step)
            self._report(loss, update, rate, tokens, fetch_s)
        self.sections.count_as_wait(self.setup.ranks.wait_s)
        spent_s = self.sections.spent_s()
        self.heart.beat(
            "step_end",
            dt_step_s=round(time.monotonic() - self.sections.began, 6),
            tokens=tokens,
            step_sections={name: round(s, 6) for name, s in spent_s.items()},
            collective_seq=self.heart.collective_seq,
        )
        self.sections.end_step(spent_s)
        self.profiler.after_step()
        self.artifacts.dump_memory("post", self.step)

    def _fetch(self) -> tuple[list[tuple[Tensor, Tensor]], float]:
        """The parts of this rank's batch, and how long they took to come, in s."""
        with self.sections.enter("data", first_line="step_start"):
            began = time.monotonic()
            try:
                parts = self.batches.of_step(self.fault.data_step(self.step))
            except DataFailure as error:
                self.heart.beat("loader_error", type=type(error).__name__, text=str(error))
                raise
            self.sections.suffer_delay("data")
            return parts, time.monotonic() - began

    def _forward_backward(self, parts: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Add every part's gradients; returns their shares of the mean loss."""
        setup, shares = self.setup, []
        for number, (inputs, targets) in enumerate(parts, start=1):
            with setup.ranks.part_of_step(setup.net, last=number == len(parts)):
                with self.sections.enter("forward"):
                    if self.fault.poisons(self.step):
                        setup.model.poison()
                    if self.fault.stands_apart(self.step):
                        setup.ranks.stand_apart()
                    with setup.compute_dtype():
                        loss = next_byte_loss(setup.net(inputs), targets) / len(parts)
                    self.sections.suffer_delay("forward")
                with self.sections.enter("backward"):
                    setup.loss_scale.scale(loss).backward()
                    self.sections.waited_since(setup.ranks.waits_since(), instead_of="backward")
            shares.append(loss.detach())
        return shares

    def _apply(self, rate: float) -> Update:
        setup = self.setup
        with self.sections.enter("optimizer"):
            update = apply_gradients(
                setup.model,
                setup.optimizer,
                setup.loss_scale,
                rate=rate,
                clip=self.config.optim.clip,
                on_collective=self.heart.count_collective,
                gradients_stay=setup.gradients_stay,
            )
            if self.fault.kind == "slow":
                setup.settle()
            self.fault.drag(self.step, time.monotonic() - self.sections.began)
        return update

    def _report(
        self, loss: Tensor, update: Update, rate: float, tokens: int, fetch_s: float
    ) -> None:
        """Average the loss, learn rank 0's decisions, write the progress line: one transfer."""
        setup, gates_L2 = self.setup, gate_stats(self.setup.model)
        leads = self.settings.rank == 0
        halt = leads and told(self.launch.run_dir, "HALT")
        due = leads and self.writer.due_by_time(time.monotonic())
        decided = torch.tensor([halt, due, self.writer.written()], dtype=torch.float64)
        share = loss.double().reshape(1) / self.settings.world_size
        scale = setup.loss_scale.told()
        own = torch.stack([x.double() for x in (update.grad_norm, update.skipped, *scale)])
        shared, (norm, skipped, *rest) = setup.ranks.add_up_and_read(
            torch.cat((share, decided.to(setup.device, non_blocking=True))),
            torch.cat((own, gates_L2.double().flatten())),
        )
        loss_scale, gate_numbers = rest[: len(scale)], rest[len(scale) :]
        mean_loss, halts, dues, self.checkpoint_told = shared
        self.halt_told, self.checkpoint_due = halts > 0, dues > 0
        self._judge_numbers(mean_loss, norm, bool(skipped))
        memory, gates = memory_report(setup.device), gate_rows(gate_numbers)
        tok_s = tokens / (time.monotonic() - self.sections.began)
        fields: dict[str, Any] = {
            "loss": mean_loss,
            "grad_norm": norm,
            "lr": rate,
            "toks_per_s": self.fault.told_speed(self.step, tok_s),
            "dt_fetch_s": round(fetch_s, 6),
            **{name: memory[name] for name in ("gpu_mem_alloc", "gpu_mem_reserved", "host_rss_mb")},
            **gate_health(gates),
            **self._epoch(),
            **self._skips(mean_loss, bool(skipped), loss_scale),
        }
        told_where_known = {
            "comm_mb": setup.ranks.comm_mb(),
            "flash_share": flash_share(counters.snapshot()),
        }
        fields |= {name: value for name, value in told_where_known.items() if value is not None}
        self.heart.beat("progress", **fields)
        selection = selection_rows(setup.model) if self._selection_due() else ()
        self.artifacts.log_step({"step": self.step, **fields}, gates, selection)
        if self.console is not None:
            self.console.log_step(self.step, fields)

    def _skips(self, loss: float, skipped: bool, loss_scale: list[float]) -> dict[str, Any]:
        """What the progress line says of left-out updates; outside fp16 a NaN loss is none."""
        told: dict[str, Any] = {}
        if loss_scale:
            told = {"loss_scale": loss_scale[0], "skipped": skipped}
        elif skipped and math.isfinite(loss):
            told = {"skipped": True}
        return told | ({"skipped_steps": self.skipped_steps} if self.skipped_steps else {})

    def _epoch(self) -> dict[str, int]:
        """Which pass over the corpus this rank is in; the log says when one begins."""
        epoch = self.batches.epoch
        if 1 <= self.epoch < epoch:
            self._log(f"epoch {epoch} begins: all of {self.config.data} has been trained on")
        self.epoch = epoch
        return {"epoch": epoch} if epoch else {}

    def _log(self, text: str) -> None:
        if self.console is not None:
            self.console.log(text)

    def _selection_due(self) -> bool:
        """Selection statistics are looked at now and then: all layers, under 1 % of the time."""
        off = self.settings.on("NSA_DISABLE_AUX_STATS") or self.settings.on("NSA_DISABLE_CSV_LOGS")
        return self.settings.rank == 0 and not off and self.step % _SELECTION_EVERY == 1

    def _judge_numbers(self, loss: float, norm: float, skipped: bool) -> None:
        """Are the weights still good? A step may be skipped, but not one after another for ever.

        The supervisor decides whether a loss that is not finite ends the run. An unsupervised run
        ends here. So does fp32 with a norm that is not finite, because fp32 has no overflow to
        recover from.
        """
        self.skipped_steps += skipped
        self.skipped_running = self.skipped_running + 1 if skipped else 0
        excused = skipped and (self.setup.loss_scale.on or math.isfinite(loss))
        self.doubtful = not (excused or (math.isfinite(loss) and math.isfinite(norm)))
        limit = _SCALED_LIMIT if self.setup.loss_scale.on else _SKIPPED_LIMIT
        alone = not self.launch.supervised
        bad = self.doubtful or (skipped and self.config.dtype == "fp32")
        self.hopeless = self.skipped_running >= limit or (alone and bad)

    def _between_steps(self) -> None:
        """Leave, save or evaluate, where it is time for it."""
        if self.checkpoint_told:
            with self.sections.enter("checkpoint"):
                self.writer.tell(int(self.checkpoint_told))
        if self.hopeless:
            self._wait_for_checkpoint()
            self.setup.ranks.leave_together()
            running = self.skipped_running
            skips = f", and {running} updates running were skipped" if running > 1 else ""
            raise NonFinite(f"loss or gradient norm is not finite at step {self.step}{skips}")
        if self.writer.lacks_room:
            with self.sections.enter("checkpoint"):
                self.writer.make_room()
        last = self.step == self.last_step
        halts = self.halt_told and not last
        if halts:
            self.heart.beat("halt_seen")
        if not self.doubtful and (
            halts or self.checkpoint_due or self.writer.due_by_step(self.step, last=last)
        ):
            with self.sections.enter("checkpoint"):
                self.writer.save(self.step, self.batches.marks(self.step + 1), self.corpus)
        if halts or last:
            self._wait_for_checkpoint()
        if halts:
            self.setup.ranks.leave_together()
            raise Halted(f"halted after step {self.step}")
        every_steps = self.config.eval.every_steps
        if self.validates and every_steps and self.step % every_steps == 0:
            self._evaluate()

    def _wait_for_checkpoint(self) -> None:
        """Before leaving, finish and report the checkpoint that is being written."""
        if self.writer.writing:
            with self.sections.enter("checkpoint"):
                self.writer.finish()

    def _evaluate(self) -> None:
        """Report the held-out loss; a corpus that holds nothing out is reported once."""
        with self.sections.enter("eval"):
            began = time.monotonic()
            try:
                loss = held_out_loss(self.setup, self.batches, self.config.eval.batches)
            except NothingHeldOut as nothing:  # on every rank: they read one stream
                self.validates = False
                self._log(f"no validation: {nothing}")
                return
            self.heart.beat("eval", val_loss=loss, dt=round(time.monotonic() - began, 6))
            self._log(f"validation after step {self.step}: loss {loss:.4f}")
            self.artifacts.log_evaluation(self.step, loss)


def held_out_loss(setup: RankSetup, batches: Batches, count: int) -> float:
    """Mean loss in nats per byte over `count` global validation batches, on every rank."""
    total, parts = 0.0, 0
    first = batches.held_out(0)  # `NothingHeldOut`, if there is nothing
    setup.model.eval()
    with torch.no_grad(), setup.compute_dtype():
        for number in range(count):
            for inputs, targets in batches.held_out(number) if number else first:
                total += next_byte_loss(setup.model(inputs), targets).item()
                parts += 1
    setup.model.train()
    total, all_parts = setup.ranks.add_up([total, float(parts)])
    return total / all_parts
