"""The bundled formats: their examples, what they must not read, and what a hostile line costs."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from gonogo.contract.patterns import GUESSED, PATTERNS, guessed_patterns
from gonogo.supervise.launch.command import check_patterns
from gonogo.supervise.launch.output_lines import LINE_BYTES
from gonogo.supervise.launch.printed_steps import PrintedSteps

LINES = Path(__file__).parents[1] / "data" / "printed_lines.jsonl"
EXAMPLES = [json.loads(line) for line in LINES.read_text().splitlines()]


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: f"{row['format']}: {row['line']}")
def test_a_format_reads_its_examples(row: dict[str, str]) -> None:
    match = re.search(PATTERNS[row["format"]], row["line"])
    assert match is not None
    found = match.groupdict()
    assert (found.get("step"), found.get("loss")) == (row["step"], row["loss"])


def test_every_format_has_an_example() -> None:
    assert {row["format"] for row in EXAMPLES} == set(PATTERNS)
    assert check_patterns(list(PATTERNS.values())) is None
    assert check_patterns(guessed_patterns(1_000)) is None
    tell = ["step" in re.compile(PATTERNS[name]).groupindex for name in GUESSED]
    assert tell == sorted(tell, reverse=True), "lines are counted where none shows a step"


def test_without_a_total_nothing_but_the_named_formats_is_tried() -> None:
    named = [PATTERNS[name] for name in GUESSED]
    assert guessed_patterns(None) == guessed_patterns(1) == named
    assert set(guessed_patterns(2)) > set(named)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("plain", "step 3 | val loss: nan"),
        ("plain", "step 3 best loss inf"),
        ("plain", "[val] step 45 loss nan"),
        ("plain", "Validation Step [3/5], Loss: 2.5"),
        ("plain", "Step 3: dev loss 2.5"),
        ("epoch", "Epoch 1 [dev] loss nan"),
        ("tqdm", "Validation:  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("tqdm", "Epoch 0 [val]:  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("tqdm", "Val 3:  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("tqdm", "Eval inference 1:  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("tqdm", "Validation (training set):  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("tqdm", "Sanity Checking DataLoader 0: 100%|██| 2/2 [00:00<00:00]"),
        ("tqdm", "Map (num_proc=4): 100%|██| 1000/1000 [00:00<00:00, 9 examples/s]"),
        ("tqdm", "Loading checkpoint shards: 100%|██| 2/2 [00:00<00:00]"),
        ("tqdm", "Tokenizing train dataset: 100%|██| 9/9 [00:00<00:00]"),
        ("epoch", "| end of epoch   1 | time:  1.23s | valid loss  5.5 |"),
        ("epoch", "Epoch 0, loss 3: | 8/80 [00:03<00:07]"),  # a bar shows each step again and again
        ("epoch", "Test set: Average loss: 0.0500, Accuracy: 9840/10000 (98%)"),
        ("keras", "313/313 ━━━━━━━━ 1s 2ms/step"),
        ("keras", "40/40 - 2s - 50ms/step - accuracy: 0.5 - loss: 2.5"),  # once an epoch
        ("timm", "Test: [   4/48]  Time: 0.1 (0.1)  Loss:  6.9 (6.9)  Acc@1:   1.0 (1.0)"),
        ("yolo", "      Class     Images  Instances      Box(P          R: 100%|██| 9/12 [00:01<"),
        ("verl", "step:0 - val-core/openai/gsm8k/reward/mean@1:0.5"),
        ("fastai", "epoch     train_loss  valid_loss  accuracy  time    "),
        ("fastai", "12 0.5 0.7 00:10"),
        ("loss-at-step", "Validation loss at step 10: 2.5"),
        ("loss-at-step", "Loss at epoch 9: 2.5"),  # a run with ordered steps has not ended early
        ("loss-at-step", "validation loss at iteration 100 | lm loss value: 6.4"),
        ("counter", "Steps:   3%|▎ | 9/300 [00:01<00:29, loss=2.5]"),
        ("counter", "50.1 it 3 val loss: 2.5"),
        ("counter", "Epoch 3, batch 32, loss 2.5"),  # its size, perhaps; `epoch` counts them
        ("counter", "100 steps/s: 3, loss 2.5"),
        ("fraction", "Test: [0/48] Loss 2.5"),
        ("fraction", "Epoch [3/10], loss 2.5"),
        ("fraction", "2025/01/02 loss 2.5"),
        ("bar", "Validation:  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("bar", " 30%|███ | 30/100 [00:03<00:07,  9.9it/s]"),
        ("bar", "  57.0/300 [00:01<00:02, 9.9it/s, loss=2.5]"),  # it would stand at 0
    ],
)
def test_a_loss_that_is_not_trained_on_is_no_loss(name: str, line: str) -> None:
    assert re.search(PATTERNS[name], line) is None


@pytest.mark.parametrize(
    "line",
    [
        "step 45 | eval | loss 9.0",
        "step 45 [val] loss: 9.0",
        "step 45 val: loss 9.0, acc 0.5",
        "step 45 - Validation - Loss: 9.0 - PPL: 8",
        "step 45 eval mean loss: 9.0",
        "step 45, val: {'loss': 9.0}",
        "Eval results - step 45: loss 9.0",
        "Evaluation at step 45: loss 9.0",
        "Validation results at step 45: loss 9.0",
        "(eval) step 45 loss 9.0",
        "EVAL  step 45 loss 9.0",
        "Val | step 45 | loss 9.0",
        "*** Eval *** step 45 loss 9.0",
        "Eval @ step 45: loss 9.0",
        "validating step 45 loss 9.0",
        '{"split": "val", "step": 45, "loss": 9.0}',
        '{"step": 45, "loss": 9.0, "mode": "eval"}',
        "{'phase': 'val', 'epoch': 1, 'loss': 9.0}",
        "Validation Results - Epoch: 1  Avg accuracy: 0.9 Avg loss: 9.0",
        "Validation | Epoch 1 | Loss 9.0",
        "[valid][epoch 1] loss 9.0",
        "Evaluate epoch 1 loss 9.0",
        "Epoch 1 Testing loss: 9.0",
        "Epoch 1 holdout loss: 9.0",
        "step 45 holdout loss 9.0",
        "step 45 | held-out | loss 9.0",
        "[heldout] step 45 loss 9.0",
        "step 45: loss on the held out set\tloss 9.0",
        "100 steps, 12ms/step 3, loss 9.0",
        "loss 9.0, time/step: 0.31",
    ],
)
def test_no_guessed_pattern_takes_an_evaluation_or_a_duration_for_a_step(line: str) -> None:
    assert [name for name in GUESSED if re.search(PATTERNS[name], line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "INFO:test:step {} loss 2.5",
        "2026-01-01 10:00:00,123 - test - INFO - step {} loss 2.5",
        "step {} | valid tokens: 4096 | loss 2.5",
        "step {} | eval in 95 steps | loss 2.5",
        "step {} (eval every 100) loss 2.5",
        "step {} eval=False loss 2.5",
        "step {} | val n/a | loss 2.5",
        "dev: cuda:0 | step {} | loss 2.5",
    ],
)
def test_a_step_whose_line_mentions_an_evaluation_is_read(line: str) -> None:
    match = re.search(PATTERNS["plain"], line.format(1))
    assert match is not None
    assert (match["step"], match["loss"]) == ("1", "2.5")


@pytest.mark.parametrize(
    "line",
    [
        "[test.py:35] Epoch 1 [train] loss: 3",
        "Epoch 1 Train Loss: 3 Val Loss: 9",
        "Epoch 1 Val Loss: 9 Train Loss: 3",
        "Epoch 1 | Val Acc 0.9 | Test Acc: 0.8 | Loss 3",
    ],
)
def test_a_line_of_an_epoch_that_has_both_losses_shows_its_own(line: str) -> None:
    match = re.search(PATTERNS["epoch"], line)
    assert match is not None
    assert match["loss"] == "3"


HOSTILE = [
    "loss ", "loss: 1 ", "step 1 ", "step 1 loss ", "step:1 - ", "iteration 1/1 |", "1/30 [00:1 ",
    "epoch ", "train loss ", "val loss ", "1/30", "of 30 ", "learning rate: 1 ", "batch 1 ", "[1] ",
    "Train: 1 [1/1 ", "step:1 - actor/pg_loss:", "at step 1", "split=val ", "1,000,",
    "0" * 50 + " ", "'loss': 1, ",
    "best so far: loss 1 ", "1 1.000000 ", "Step 1/1; ", "loss" + " " * 60,
]  # fmt: skip
"""What repeats in lines that are meant, or happen, to hold a regular expression up."""


@pytest.mark.parametrize("word", HOSTILE)
def test_a_hostile_line_holds_the_reader_up_for_less_than_its_budget(word: str) -> None:
    line = (word * LINE_BYTES)[:LINE_BYTES]
    printed = PrintedSteps(guessed_patterns(30), 30, guessed=True)
    began = time.process_time()
    for _ in printed.take(line, 0.0):
        pass
    assert time.process_time() - began < 1.0
