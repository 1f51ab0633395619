"""Lines of programs and the steps that they show: tables, and properties of any stream of lines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.patterns import PATTERNS, guessed_patterns
from gonogo.supervise.launch.printed_steps import Doubt, PrintedSteps, float_number

STEP = r"step (?P<step>\d+)(?:/\d+)?(?: loss (?P<loss>\S+))?"


class Reading:
    """What was read of a program, as the heartbeats of rank 0 would show it."""

    def __init__(self, steps: int | None, *patterns: str) -> None:
        given_ = patterns or guessed_patterns(steps)
        self.printed = PrintedSteps(given_, steps, guessed=not patterns)
        self.steps: list[int] = []
        self.losses: dict[int, Any] = {}
        self.begun_anew = 0
        self.now = 0.0

    def read(self, lines: Iterable[str]) -> Reading:
        for line in lines:
            for shown in self.printed.take(line, self.now):
                if shown.anew:
                    self.begun_anew += 1
                    self.steps, self.losses = [], {}
                if shown.step is not None:
                    self.steps.append(shown.step)
                if "loss" in shown.fields and self.steps:
                    self.losses.setdefault(self.steps[-1], shown.fields["loss"])
        return self

    @property
    def doubt(self) -> Doubt | None:
        return self.printed.doubt(0)

    def is_whole(self, steps: int) -> bool:
        return self.doubt is None and bool(self.steps) and self.steps[-1] >= steps


def bar(done: int, of: int, shown: str = "", lead: str = "") -> str:
    return f"{lead}{done * 100 // of:3d}%|##  | {done}/{of} [00:01<00:09,  3.2it/s{shown}]"


Line = Callable[[int, float], str]
SHAPES: dict[str, Line] = {
    "detectron2": lambda n, x: (
        f"[d2.utils.events]:  eta: 0:39:15  iter: {n}  total_loss: {x}  loss_cls: 0.1  lr: 0.01"
    ),
    "lightgbm": lambda n, x: f"[{n}]\ttraining's binary_logloss: {x}\tvalid_1's binary_logloss: 9",
    "xgboost": lambda n, x: f"[{n - 1}]\ttrain-logloss:{x}\teval-logloss:9",
    "composer": lambda n, x: (
        f"[batch={n}/30]:\n\t Train time/batch: 7\n\t Train loss/train/total: {x}"
    ),
    "olmo-core": lambda n, x: (
        f"INFO\t[step={n}/30,epoch=1]\n    optim/norm=0.5\n    train/CE loss={x}"
    ),
    "nemo-rl": lambda n, x: f"===== Step {n}/30 =====\n\n  • Loss: {x}\n  • Avg Reward: 0.4",
    "gpt-neox": lambda n, x: f" iteration {n:8d}/      30 | lm_loss: {x:.6E} | skipped",
    "litgpt": lambda n, x: f"Epoch 1 | iter {n} step {n // 4} | loss train: {x}, val: n/a | 12 ms",
    "tinyllama": lambda n, x: f"iter {n} step {n // 4}: loss {x}, iter time: 12.40ms",
    "deepspeed": lambda n, x: f"Epoch: 0, Step: {n}, Rank: 0, loss = {x}",
    "paddle": lambda n, x: f"[    INFO] - loss: {x}, learning_rate: 1.0e-05, global_step: {n}",
    "automodel": lambda n, x: f"INFO | train_ft | step {n} | epoch 0 | loss {x} | grad_norm 0.15",
    "swift": lambda n, x: str({"lm loss": x, "lr": 1e-5, "global_step/max_steps": f"{n}/30"}),
    "rnnt": lambda n, x: f"Epoch: 0, Batch: {n}, Global Step: {n}, Step Time: 1.6160, Loss: {x}",
    "eagle": lambda n, x: f"train_eagle1 | epoch=0 step={n} loss={x} acc=0.32 hidden_loss=1.805",
    "mmcv": lambda n, x: (
        f"mmdet - INFO - Epoch [1][{n}/30]\tlr: 1.000e-02, eta: 5:02:49, loss_cls: 0.8, loss: {x}"
    ),
    "mmengine": lambda n, x: (
        f"mmengine - INFO - Iter(train) [{n:5d}/30]  lr: 9.9e-03  loss: {x}  decode.acc_seg: 60.1"
    ),
    "nanochat": lambda n, x: (
        f"step {n:05d}/00030 ({n / 0.3:.2f}%) | loss: {x} | dt: 512.31ms | tok/sec: 1,023,411"
    ),
    "diffusers": lambda n, x: bar(n, 30, f", lr=1e-5, step_loss={x}", "Steps: "),
    "speechbrain": lambda n, x: bar(n, 30, f", train_loss={x}"),
    "json": lambda n, x: json.dumps({"ts": 1.7e9 + n, "step": n, "loss": x, "lr": 1e-4}),
    "jsonl": lambda n, x: json.dumps({"ts": 1.7e9, "_step": n, "train/loss": x}),
    "llama-factory": lambda n, x: json.dumps({"current_steps": n, "total_steps": 30, "loss": x}),
    "flair": lambda n, x: f"epoch 1 - iter {n}/30 - loss {x} - time (sec): 1.21",
    "torchtune": lambda n, x: (
        bar(n, 30, lead=f"1|{n}|Loss: {x}: ") + f"Step {n} | loss:{x} lr:2e-05 "
    ),
    "kohya": lambda n, x: bar(n, 30, f", avr_loss={x}", "steps: "),
    "openrlhf": lambda n, x: bar(n, 30, f", gpt_loss={x}, lr=5e-7", "Train step of epoch 0: "),
    "lightning": lambda n, x: bar(n, 30, f", v_num=0, train_loss={x}", "Epoch 0: "),
    "unsloth": lambda n, x: bar(n, 30) + str({"loss": x, "grad_norm": 0.5, "epoch": 0.01}),
    "transformers": lambda n, x: bar(n, 30) + "\n" + str({"loss": x, "epoch": 0.01}),
    "trainer with text": lambda n, x: bar(n, 30) + "\n" + str({"loss": str(x), "epoch": "0.01"}),
    "boosting without a loss": lambda n, x: f"[{n}]\tvalidation_0-auc:0.75",
    "bar without a loss": lambda n, x: bar(n, 30, lead="Train: "),
    "fraction without a loss": lambda n, x: f"[{n}/30] done in 0.4 s",
    "ultralytics": lambda n, x: (
        f"      {n}/30      2.31G     {x}      2.345         24        640: "
        "100%|██████████| 8/8 [00:01<00:00,  5.21it/s]"
    ),
    "of": lambda n, x: f"finished step {n} of 30",
}  # fmt: skip
UNLIKE = {"boosting without a loss", "bar without a loss", "of"} | {
    "fraction without a loss",
    "ultralytics",
}
"""Shapes of which no loss is read."""


def lines_of(shape: str, last: int) -> list[str]:
    return "\n".join(SHAPES[shape](n, 3 - n / 50) for n in range(1, last + 1)).split("\n")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("last", [27, 30])
def test_each_shape_shows_all_steps_and_an_early_end(shape: str, last: int) -> None:
    reading = Reading(30).read(lines_of(shape, last))
    assert reading.steps == list(range(1, last + 1))
    assert reading.doubt is None
    assert reading.is_whole(30) == (last == 30)
    losses = {} if shape in UNLIKE else {n: pytest.approx(3 - n / 50) for n in reading.steps}
    assert reading.losses == losses


PARTS: dict[str, tuple[int, list[str], list[int], float]] = {
    "olmo": (
        739328,
        [
            f"INFO [olmo.train:816, rank=0] [step={n}/739328,epoch=0]\n"
            f"    optim/total_grad_norm=7.7\n    train/CrossEntropyLoss={12 - n / 10}\n"
            "    train/Perplexity=1,664\n    throughput/total_tokens=4,194,304"
            for n in range(1, 31)
        ],
        list(range(1, 31)),
        9.0,
    ),
    "fairseq": (
        900,
        [
            f"train_inner | epoch 003: {n - 695:6d} / 356 loss={n / 100}, nll_loss=8.44,"
            f" num_updates={n}, lr=0.000175, gnorm=156.036, loss_scale=0.5\n"
            "NOTE: overflow detected, setting loss scale to: 0.25"
            for n in range(700, 901, 5)
        ],
        list(range(700, 901, 5)),
        9.0,
    ),
    "paddle": (
        300000,
        [
            f"ppocr INFO: epoch: [{1 + n // 250}/1200], global_step: {n}, lr: 0.001000, loss:"
            f" {3 - n / 400}, loss_cbn: 0.000000, avg_samples: 4.0, eta: 15:13:26"
            for n in range(10, 401, 10)
        ],
        list(range(10, 401, 10)),
        2.0,
    ),
    "axolotl": (
        873,
        [
            f"{bar(n, 873)}\n{ {'loss': 1.6 - n / 100, 'learning_rate': 0.1, 'epoch': 0.2} }"
            for n in range(2, 61, 2)
        ]
        + ["[INFO] [axolotl.utils.dataloader._len_est:264] [PID:42] total_num_tokens: 26000"],
        list(range(2, 61, 2)),
        1.0,
    ),
    "aanet": (30, [f"[2031-02-08 08:52:{n:02d},978] cur_loss: {n}" for n in range(30)], [], 0.0),
}  # fmt: skip
"""Total, records, the steps that they show, and the last loss."""


@pytest.mark.parametrize("shape", PARTS)
def test_records_of_several_lines_and_other_numbers_show_their_steps(shape: str) -> None:
    total, records, steps, loss = PARTS[shape]
    reading = Reading(total).read("\n".join(records).split("\n"))
    assert reading.steps == steps
    assert reading.losses.get(steps[-1] if steps else 0, 0.0) == pytest.approx(loss)
    assert not reading.is_whole(total) or shape == "fairseq"


@pytest.mark.parametrize("made", [38, 40])
@pytest.mark.parametrize("every", [1, 3, 10])
@pytest.mark.parametrize("bars", [1, 2])
@pytest.mark.parametrize(
    "word",
    [
        "Step {n} | loss:{x} lr:2e-05", "step {n}: loss {x}", "global_step={n} loss={x}",
        "iter {n}: loss {x}, time 10ms", "Iteration {n}, Loss = {x}", "Step {n} | train_loss {x}",
        "[{n}/40] loss: {x}", "{{'loss': {x}, 'step': {n}}}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", [0, 1])
def test_a_bar_and_a_line_of_the_same_step_are_one_count(
    made: int, every: int, bars: int, word: str, first: int
) -> None:
    """A program that left at step 38 of 40 was `all ranks reached step 40`."""
    lines = []
    for n in range(1, made + 1):
        lines += [bar(n, 40, f", loss={3 - n / 50}")] * bars
        if n % every == 0:
            lines.append(word.format(n=n - 1 + first, x=3 - n / 50))
    reading = Reading(40).read(lines)
    assert reading.steps[-1] == made
    assert reading.doubt is None
    assert Reading(None).read(lines).steps[-1] <= made


@pytest.mark.parametrize("name", [None, "tqdm"])
def test_the_bar_of_the_ordered_total_is_the_run_and_no_other(name: str | None) -> None:
    """As the Trainer of transformers shows them: its evaluations' bars have no name."""
    lines = [bar(n, 7) for n in range(8)]
    for first in (0, 10, 20):
        lines += [bar(n, 40) for n in range(first, first + 11)] + [bar(n, 4) for n in range(5)]
    reading = Reading(40, PATTERNS[name]) if name else Reading(40)
    assert reading.read(lines).steps == list(range(1, 31))
    assert reading.doubt is None
    assert not reading.is_whole(40)


@pytest.mark.parametrize(
    ("lines", "steps", "doubt"),
    [
        (["step 1 loss 1", "step 2 loss 1", "step 3 loss 1"] * 3, 6, Doubt.WENT_BACK),
        ([f"epoch {e} step {n} loss {e}.{n}" for e in (1, 2) for n in (1, 2, 3)], 6,
         Doubt.WENT_BACK),
        ([f"step {n} loss 2" for n in (*range(1, 9), *range(3, 31))], 30, Doubt.WENT_BACK),
        ([f"step {n}/20 loss 2" for n in range(1, 21)], 10, Doubt.OTHER_TOTAL),
        ([f"step {n}/20 loss 2" for n in range(1, 21)], 40, Doubt.OTHER_TOTAL),
        ([f"{{'loss': 2.{n}}}" for n in range(10, 40)], 30, Doubt.NO_NUMBER),
        ([f"Epoch {n}: loss 2.{n}" for n in range(1, 31)], 30, Doubt.NO_NUMBER),
        ([f"step {n} loss 2" for n in range(0, 290, 20)], 290, Doubt.UNCLEAR_LAST),
        ([f"step {n} loss 2" for n in range(0, 290, 20)], 310, None),
        ([f"step {n} loss 2" for n in range(1, 31)], 20, Doubt.UNCLEAR_LAST),
        ([*(f"step {n} loss 2" for n in range(1, 9)), "will save at step 300, loss 2"], 300,
         Doubt.UNCLEAR_LAST),
        (["resuming: step 300, loss 2"], 300, Doubt.UNCLEAR_LAST),
        ([f"step {n} loss 2" for n in range(50, 101, 50)], 100, None),
        ([f"step {n} loss 2" for n in (1, *range(100, 1001, 100))], 1000, None),
        ([f"step {n} loss 2" for n in range(30)], 30, None),
        (["nothing"], 30, Doubt.UNCLEAR_LAST),
    ],
)  # fmt: skip
def test_an_end_is_known_only_where_one_count_shows_it(
    lines: list[str], steps: int, doubt: Doubt | None
) -> None:
    assert Reading(steps).read(lines).doubt is doubt


def test_what_begins_anew_still_shows_movement_at_the_same_pace() -> None:
    """Else a program of epochs would be halted in its second one."""
    lines = [
        f"Epoch [{epoch}] Step [{n}/350], Loss: {3 - n / 999 - epoch / 10:.4f}"
        for epoch in range(1, 4)
        for n in range(50, 351, 50)
    ]
    reading = Reading(1050).read(lines)
    assert reading.steps == sorted(set(reading.steps))
    assert len(reading.steps) >= len(lines) - 1
    assert {b - a for a, b in zip(reading.steps, reading.steps[1:], strict=False)} == {50}
    assert len(reading.losses) == len(reading.steps)
    assert reading.doubt is not None


def test_several_ranks_that_print_the_same_steps_are_one_count() -> None:
    lines = [f"step {n} loss {2 + r / 10}" for n in range(1, 31) for r in range(8)]
    for late in range(8, 240, 16):
        lines[late], lines[late - 1] = lines[late - 1], lines[late]
    reading = Reading(30).read(lines)
    assert reading.steps == list(range(1, 31))
    assert reading.is_whole(30)


def test_ranks_that_name_themselves_are_counted_each() -> None:
    pattern = r"\[(?P<rank>\d+)\] step (?P<step>\d+)"
    printed = PrintedSteps([pattern], 2, guessed=False)
    found = [
        (shown.rank, shown.step)
        for n in (1, 2)
        for rank in (0, 1, 9999)
        for shown in printed.take(f"[{rank}] step {n}", 0.0)
    ]
    assert found == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert (printed.doubt(0), printed.doubt(1)) == (None, None)


@pytest.mark.parametrize("zeros", [2, 3])
def test_a_loss_of_zero_with_a_norm_that_is_none_is_not_finite_on_the_third_line(
    zeros: int,
) -> None:
    good = "{'loss': 2.5, 'grad_norm': 1.5, 'learning_rate': 0.1}"
    bad = "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 0.1}"
    lines = [line for n in range(1, 9) for line in (bar(n, 60), good if n < 4 else bad)]
    reading = Reading(60).read(lines[: 6 + 2 * zeros])
    assert any(math.isnan(loss) for loss in reading.losses.values()) == (zeros == 3)


@pytest.mark.parametrize(
    "lines",
    [
        ["step 1 loss 2.5", "step 2 loss 2.4", "step 2 loss nan"],
        ["step 1 loss 2.5", "step 2 loss 2.4", "step 3 loss 2.4", "step 2 loss nan"],
        [bar(1, 30), bar(2, 30), "{'loss': 2.5}", "{'loss': nan}"],
        [bar(1, 30), "{'loss': 2.5}", bar(2, 30), "step 2: loss nan"],
    ],
    ids=["another rank", "a late rank", "beside a bar", "a logger beside a bar"],
)
def test_a_loss_that_is_not_finite_is_shown_whichever_line_has_it(lines: list[str]) -> None:
    printed = PrintedSteps(guessed_patterns(30), 30, guessed=True)
    shown = [row for line in lines for row in printed.take(line, 0.0)]
    assert any(math.isnan(row.fields.get("loss", 0.0)) for row in shown)
    assert all(math.isfinite(row.fields.get("loss", 0.0)) for row in shown[:-1])


@pytest.mark.parametrize(
    "line",
    [
        "step {n}: val loss 9.5",
        "[eval] step {n} loss 9.5",
        "Validation: {n}/30",
        "Evaluating:  10%|█ | {n}/30 [00:00<00:01,  9it/s, loss=9]",
        "Map (num_proc=4): 100%|██| {n}/30 [00:00<00:00, 9 examples/s]",
        "2031/{n}/30 checkpoint written",
        "at 12:{n}/30 the disk was full",
        "v1.{n}/30",
        "[{n}/300] done",
    ],
)
def test_an_evaluation_the_data_and_a_date_are_no_steps(line: str) -> None:
    lines = [line.format(n=n) for n in range(1, 31)]
    assert Reading(30).read(lines).steps == []
    trained = [text for n in range(1, 31) for text in (f"step {n} loss 2.5", lines[n - 1])]
    assert Reading(30).read(trained).is_whole(30)


def test_chosen_patterns_alone_are_read_and_a_part_belongs_to_its_step() -> None:
    parts = [r"n_updates +\| +(?P<step>\d+)", r"value_loss +\| +(?P<loss>\S+)"]
    lines = [text for n in (10, 20, 30) for text in (f"n_updates | {n}", f"value_loss | {n}.5")]
    reading = Reading(30, *parts).read(["step 1 loss 9", "value_loss | 9", *lines])
    assert reading.steps == [10, 20, 30]
    assert reading.losses == {10: 10.5, 20: 20.5, 30: 30.5}
    assert reading.is_whole(30)


@given(
    made=st.integers(1, 60),
    steps=st.integers(2, 60),
    stride=st.integers(1, 7),
    first=st.integers(0, 1),
    remarks=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 120)), max_size=3),
    shape=st.sampled_from(["step {n} loss 2.5", "step {n}/{of} loss 2.5", "iter {n}: loss 2.5"]),
)
def test_a_program_that_ends_early_never_shows_its_last_step(
    made: int, steps: int, stride: int, first: int, remarks: list[tuple[int, int]], shape: str
) -> None:
    """Whatever other numbers its lines mention in between, as remarks of the same shape."""
    numbers = list(range(first, made, stride))
    lines = [shape.format(n=n, of=steps) for n in numbers]
    for at, number in remarks:
        lines.insert(min(at, max(len(lines) - 1, 0)), shape.format(n=number, of=steps))
    reading = Reading(steps).read(lines)
    last = numbers[-1] + 1 - first if numbers else 0
    if last < steps:
        assert not reading.is_whole(steps)


@given(
    st.lists(
        st.sampled_from(
            [text for shape in SHAPES for text in lines_of(shape, 3)]
            + ["", "step", "loss", "nan", bar(0, 30), "Traceback (most recent call last):"]
        ),
        max_size=60,
    )
)
def test_of_any_mixture_of_lines_steps_only_grow(lines: list[str]) -> None:
    printed, last = PrintedSteps(guessed_patterns(30), 30, guessed=True), 0
    for line in lines:
        for shown in printed.take(line, 0.0):
            last = 0 if shown.anew else last
            assert shown.step is None or shown.step > last
            last = shown.step or last


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2,31", None), ("0,693", None), ("12345,678", None), ("", None), ("x", None),
        ("2,000", 2000.0), ("1_500.5", 1500.5), ("-1,234,567.5e2", -123456750.0),
        ("2.31,", 2.31), (".998.", 0.998), ("2.5]", 2.5), ("'2.5'", 2.5), ("inf", math.inf),
    ],
)  # fmt: skip
def test_numbers_are_read_as_printed(text: str, number: float | None) -> None:
    assert float_number(text) == number
