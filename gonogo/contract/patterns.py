"""The formats of the lines that well-known trainers print, for programs that do not know gonogo.

Named groups: step, loss, lr, grad_norm, tokens, toks_per_s, rank. `supervise.launch.printed_steps`
reads lines with them.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

_NUMBER = r"[-+]?(?:(?:\d+(?:[,_]\d+)*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)\b)"
"""With every comma within it: whether these divide thousands, who reads it says."""
_STEP = r"(?P<step>\d{1,3}(?:[,_]\d{3})+|\d+)"
_EVALUATIONS = (
    *("val", "valid", "validation", "validate", "validating"),
    *("eval", "evaluation", "evaluate", "evaluating", "test", "testing", "dev"),
    *("holdout", "hold-out", "heldout", "held-out", "held out"),
)
_OTHERS = ("best", "lowest", "minimum", "previous", "prev", *_EVALUATIONS)
_NOT_OTHERS = "".join(rf"(?<!\b{word}{gap})" for word in _OTHERS for gap in (" ", "/", "-", "."))
"""A loss that is not the one that is trained on: no sign of how training goes."""
_TRAIN_LOSS = (
    rf"(?i:(?=[aglrst]){_NOT_OTHERS}"
    r"(?<!so far: )\b(?:(?:(?:reduced_)?train(?:ing)?|total|avg|avr|step|lm|gpt)[_ ])?"
    r"loss(?:_step|[ _/]train)?\b)"
)
_OF_A_PART = r"(?<![A-Za-z][ -])"
"""A loss behind a word may be that of a part (`kl loss`): one without such a word comes first."""
_BETWEEN = r".{0,400}?"
"""Bounded: a line may be long, and hold its first word a thousand times."""
_IS = r"\W{1,4}? {0,12}(?:(?:tensor|np\.float\d\d)\()?"
"""What stands between a loss and its number: `loss:   2.5`, `"loss": "2.5"`, `loss tensor(2.5`."""
_MEASURES = r"acc|auc|err|f1|perp|ppl|score|time|top|\d*\.\d|\d+e-\d|(?:nan|inf|none)\b"
"""What stands behind an evaluation's name where a line tells of one that is over; a whole number
may be a bar's percentage."""
_MENTIONS = r"tokens|every|in \d|false\b|n/a\b|info\b|debug\b|cuda|cpu"
"""What stands behind such a word where it says when the next one is, or is none at all: `eval in 95
steps`, `eval=False`, `valid tokens`, `test - INFO`, `dev: cuda`."""
_OF_OTHERS = (
    rf"(?i:(?<![\w./=-])(?<!\binfo:)(?<!debug:)(?:{'|'.join(_EVALUATIONS)})"
    rf"(?![\w/-]|\.\w|[ .]loss\b|\W{{0,3}}(?:{_MEASURES}|{_MENTIONS})))"
)
"""What makes a line one of an evaluation; not so where only a measure of it stands beside, nor the
name of a file, a folder, a run or a logger (`test.py:12`, `exp=test`, `INFO:test:`)."""
_TRAINS = rf"(?:(?!{_OF_OTHERS}).){{0,1000}}?"
_KIND_OF_OTHERS = (
    rf"(?i:\b(?:split|subset|phase|mode|stage|kind|type)\W{{1,4}}(?:{'|'.join(_EVALUATIONS)})\b)"
)
"""What a record says of itself, before its loss or behind: `"loss": 2.5, "split": "val"`."""
_NO_KIND_OF_OTHERS = rf"^(?!.{{0,1000}}?{_KIND_OF_OTHERS})"
_STEP_WORD = (
    r"(?i:(?<!\ds/)(?<!\bs/)(?<!ms/)(?<!sec/)(?<!time/)(?<!per )"
    r"\b_?(?:(?:global|train(?:ing)?)[_ ])?(?:step|iter|iteration|num_updates)\b(?:\(train\))?)"
)
"""Not that of a duration: `12ms/step`."""
_MORE_STEP_WORDS = (
    r"(?i:(?<![/\w])(?<!\d )(?:(?:global|train(?:ing)?)[_ ])?"
    r"(?:steps|iters|iterations|it|updates?|batch)\b)"
)
"""Those that mean something else where the line names an epoch: the batch may be its size."""
_BAR = r"\d/\d+ \[\d+:\d"
"""What every bar of tqdm shows, with and without a loss."""
_NO_EPOCH_NO_BAR = rf"^(?!.{{0,1000}}?(?:(?i:\bepoch)|{_BAR}))"
_BAR_OF_OTHERS = (
    rf"(?i:(?:(?!\btrain)[^|]){{0,200}}?"
    rf"\b(?:{'|'.join(_EVALUATIONS)}|sanity)"
    rf"\b(?!\W{{0,3}}(?:loss|{_MEASURES})))"
)
"""How the bar of an evaluation is called; it counts batches that are no steps. One of training may
show what the last evaluation came to."""
_BAR_OF_DATA = (
    r"\W{0,3}(?i:map|filter|loading|downloading|fetching|saving|tokenizing|truncating|packing"
    r"|converting|processing|preprocessing)\b"
)
"""How the bars of libraries begin that make the data and the weights ready."""
_BAR_OF_TRAINING = rf"^(?!{_BAR_OF_OTHERS})(?!{_BAR_OF_DATA})"

_SHOWN_LOSS = (
    rf"(?:{_TRAINS}{_OF_A_PART}{_TRAIN_LOSS}{_IS}(?={_NUMBER})|{_TRAINS}{_TRAIN_LOSS}{_IS}"
    rf"|{_BETWEEN}(?i:(?=\btrain)){_TRAIN_LOSS}{_IS})(?P<loss>{_NUMBER})"
)
_BAR_LOSS = rf"(?=.{{0,800}}?{_TRAIN_LOSS}(?:_mean)?[=: ]{{1,3}}(?P<loss>{_NUMBER})"

_BAR_COUNT = r"(?:.{0,800}?[^\d.])?(?P<step>\d+)/\d+ \[\d+:\d"
_HAS_BAR = rf"^(?=.{{0,2000}}?{_BAR})"
"""Asked first: a line without it is passed over at once."""
_LEAST_TOTAL = 2


class Example(NamedTuple):
    """A line, and what its format reads there."""

    line: str
    step: str | None = None
    loss: str | None = None


class Format(NamedTuple):
    """How one trainer prints its steps."""

    name: str
    pattern: str
    source: str
    """The project that prints such lines, or what they are."""
    examples: tuple[Example, ...]


FORMATS: tuple[Format, ...] = (
    Format(
        "torchtitan",
        rf"step: +(?P<step>\d+) +loss: +(?P<loss>{_NUMBER})"
        rf"(?: +grad_norm: +(?P<grad_norm>{_NUMBER}))?"
        r"(?:.{0,400}? tps: +(?P<toks_per_s>[\d,]+))?",
        "github.com/pytorch/torchtitan",
        (
            Example(
                "[rank0]:2026-01-01 - root - INFO - step: 10  loss:  4.5012  grad_norm:  1.25"
                "  memory:  1.3GiB(1.4%)  tps: 12,345  tflops: 1.1  mfu: 0.3%",
                "10",
                "4.5012",
            ),
        ),
    ),
    Format(
        "megatron",
        rf"iteration +(?P<step>\d+)/ *\d+ \|(?:.{{0,400}}?learning rate: (?P<lr>{_NUMBER}))?"
        rf".{{0,400}}?lm[ _]loss: (?P<loss>{_NUMBER})"
        rf"(?:.{{0,200}}?grad norm: (?P<grad_norm>{_NUMBER}))?",
        "github.com/NVIDIA/Megatron-LM, github.com/EleutherAI/gpt-neox",
        (
            Example(
                " [2026-01-01] iteration      100/    1000 | consumed samples: 800 | elapsed time"
                " per iteration (ms): 35.1 | learning rate: 1.000000E-04 | global batch size:     8"
                " | lm loss: 6.511413E+00 | loss scale: 1.0 | grad norm: 2.345 | number of skipped",
                "100",
                "6.511413E+00",
            ),
            Example(
                " samples/sec: 20.114 | iteration        3/      30 | elapsed time per iteration"
                " (ms): 1590.4 | learning rate: 3.0E-05 | lm_loss: 2.940000E+00 | number of nan",
                "3",
                "2.940000E+00",
            ),
        ),
    ),
    Format(
        "llm.c",
        rf"step +(?P<step>\d+)/\d+ \| (?:train )?loss +(?P<loss>{_NUMBER})"
        rf"(?:.{{0,200}}?norm +(?P<grad_norm>{_NUMBER}))?"
        rf"(?:.{{0,200}}?(?P<toks_per_s>{_NUMBER}) tok/s)?",
        "github.com/karpathy/llm.c",
        (
            Example(
                "step   12/19560 | loss 9.123456 (+0.01z)| norm 5.1234 (+0.02z)| lr 1.07e-05 |"
                " 1234.56 ms | 40.2% bf16 MFU | 424,242 tok/s",
                "12",
                "9.123456",
            ),
        ),
    ),
    Format(
        "modded-nanogpt",
        rf"step:(?P<step>\d+)/\d+ train_loss:(?P<loss>{_NUMBER})",
        "github.com/KellerJordan/modded-nanogpt",
        (
            Example(
                "step:125/5100 train_loss:4.3210 train_time:12345ms step_avg:98.76ms",
                "125",
                "4.3210",
            ),
        ),
    ),
    Format(
        "keras",
        rf"^\W{{0,40}}(?P<step>\d+)/(?:\d+|Unknown)\b(?! - )(?=.{{0,200}}?(?:/step\b|ETA: ))"
        rf".{{0,400}}? - {_TRAIN_LOSS}: (?P<loss>{_NUMBER})",
        "github.com/keras-team/keras",
        (
            Example(
                " 9/40 ━━━━ 2s 12ms/step - accuracy: 0.5 - loss: 2.5 - val_loss: 9.0", "9", "2.5"
            ),
            Example(" 9/40 [=====>......] - ETA: 2s - loss: nan - accuracy: 0.5", "9", "nan"),
            Example("9/Unknown 1s 12ms/step - loss: 2.5", "9", "2.5"),
        ),
    ),
    Format(
        "timm",
        rf"Train: \d+ \[ *(?P<step>\d+)/\d+ .{{0,80}}?Loss: +(?P<loss>{_NUMBER})"
        rf"(?:.{{0,200}}? LR: (?P<lr>{_NUMBER}))?",
        "github.com/huggingface/pytorch-image-models",
        (
            Example(
                "Train: 0 [  50/1251 (  4%)]  Loss: 6.93 (6.94)  Time: 0.3s, 700/s  LR: 1.000e-05",
                "50",
                "6.93",
            ),
        ),
    ),
    Format(
        "yolo",
        rf"^ *\d+/\d+ +[\d.]+[GM] +(?P<loss>{_NUMBER}) .{{0,200}}?: +\d+%.{{0,200}}?"
        r"\b(?P<step>\d+)/\d+ ",
        "github.com/ultralytics/ultralytics, github.com/ultralytics/yolov5",
        (
            Example(
                "        0/2         0G     0.1234    0.05    0.02   30   640:  9%|█ | 9/99 [0:01<",
                "9",
                "0.1234",
            ),
            Example(
                "        1/3      1.23G      1.234    2.3    1.1    30    640: 9% ━─ 9/100 9.9it/s",
                "9",
                "1.234",
            ),
        ),
    ),
    Format(
        "dcgan",
        rf"\[\d+/\d+\]\[ *(?P<step>\d+)/\d+\]\s+Loss_D: (?P<loss>{_NUMBER})",
        "github.com/pytorch/examples (dcgan)",
        (Example("[0/5][9/1583]\tLoss_D: 1.7410\tLoss_G: 4.9\tD(x): 0.5", "9", "1.7410"),),
    ),
    Format(
        "espnet",
        rf"\d{{1,9}}epoch:train:\d+-(?P<step>\d+)batch: .{{0,800}}?\bloss=(?P<loss>{_NUMBER})"
        rf"(?:.{{0,400}}?\bgrad_norm=(?P<grad_norm>{_NUMBER}))?"
        rf"(?:.{{0,400}}?\boptim0_lr0=(?P<lr>{_NUMBER}))?",
        "github.com/espnet/espnet",
        (
            Example(
                "INFO: 2epoch:train:51-100batch: iter_time=0.1, loss_ctc=9.1, acc=0.1, loss=7.5,"
                " backward_time=0.1, grad_norm=1.2, clip=100.0, optim0_lr0=1.25e-06",
                "100",
                "7.5",
            ),
        ),
    ),
    Format(
        "opennmt",
        rf"Step +{_STEP}/ *\d+; .{{0,400}}?\bxent: +(?P<loss>{_NUMBER})"
        rf"(?:; lr: +(?P<lr>{_NUMBER}))?",
        "github.com/OpenNMT/OpenNMT-py",
        (
            Example(
                "INFO] Step 50/ 1000; acc: 4.5; ppl: 9000.1; xent:  9.1; lr: 0.001; sents: 100;",
                "50",
                "9.1",
            ),
        ),
    ),
    Format(
        "marian",
        rf"Ep\. \d+ : Up\. {_STEP} : .{{0,400}}?\bCost (?P<loss>{_NUMBER})"
        rf"(?:.{{0,200}}?\bgNorm (?P<grad_norm>{_NUMBER}))?",
        "github.com/marian-nmt/marian",
        (
            Example(
                "Ep. 1 : Up. 1,000 : Sen. 9,000 : Cost 9.25 : Time 1.0s : gNorm 1.2 : L.r.",
                "1,000",
                "9.25",
            ),
        ),
    ),
    Format(
        "verl",
        r"\bstep:(?P<step>\d+) - .{0,4000}?"
        rf"\bactor/pg_loss:(?:np\.float\d\d\()?(?P<loss>{_NUMBER})"
        rf"(?:.{{0,4000}}?\bactor/grad_norm:(?:np\.float\d\d\()?(?P<grad_norm>{_NUMBER}))?",
        "github.com/volcengine/verl",
        (
            Example(
                "(TaskRunner pid=9) step:7 - actor/entropy:0.5 - actor/pg_loss:np.float64(-0.02) -"
                " actor/grad_norm:0.7 - critic/score/mean:0.3",
                "7",
                "-0.02",
            ),
        ),
    ),
    Format(
        "clu",
        rf"logging_writer\.py:\d+\] \[(?P<step>\d+)\] .{{0,800}}?{_TRAIN_LOSS}=(?P<loss>{_NUMBER})",
        "github.com/google/CommonLoopUtils",
        (
            Example(
                "I0101 00:00:00.1 140 logging_writer.py:48] [10] learning_rate=0.1, train_loss=2.5",
                "10",
                "2.5",
            ),
        ),
    ),
    Format(
        "darknet",
        rf"^ *(?P<step>\d+): (?P<loss>{_NUMBER}), {_NUMBER} avg(?: loss)?, {_NUMBER} rate",
        "github.com/AlexeyAB/darknet",
        (Example(" 9: 2.5, 2.6 avg loss, 0.001 rate, 0.1 seconds", "9", "2.5"),),
    ),
    Format(
        "nanogpt",
        rf"iter (?P<step>\d+): loss (?P<loss>{_NUMBER})",
        "github.com/karpathy/nanoGPT",
        (Example("iter 90: loss 2.7683, time 3012.32ms, mfu 1.10%", "90", "2.7683"),),
    ),
    Format(
        "levanter",
        rf"Progress on:train (?P<step>\d+)(?:\.0)?it/.{{0,200}}?postfix:loss=(?P<loss>{_NUMBER})",
        "github.com/stanford-crfm/levanter",
        (
            Example(
                "INFO - Progress on:train 3.0it/30.0it rate:1.2it/s remaining:12:30 elapsed:00:10"
                " postfix:loss=2.940",
                "3",
                "2.940",
            ),
        ),
    ),
    Format(
        "composer",
        r"^\W{0,4}\[batch=(?P<step>\d+)/\d+\]"
        rf"|^\s{{0,8}}Train loss/train/total: (?P<loss>{_NUMBER})",
        "github.com/mosaicml/composer",
        (
            Example("[batch=9/30]:", "9"),
            Example("\t Train loss/train/total: 2.5", None, "2.5"),
        ),
    ),
    Format(
        "olmo",
        r"\[step=(?P<step>\d+)/\d+,epoch="
        rf"|^\s{{0,8}}train/(?:CE loss|CrossEntropyLoss)=(?P<loss>{_NUMBER})",
        "github.com/allenai/OLMo, github.com/allenai/OLMo-core",
        (
            Example("2026-01-01\thost:0\tolmo.train:887\tINFO\t[step=9/30,epoch=0]", "9"),
            Example("    train/CE loss=2.5", None, "2.5"),
            Example("    train/CrossEntropyLoss=2.5", None, "2.5"),
        ),
    ),
    Format(
        "nemo-rl",
        rf"^=+ Step (?P<step>\d+)/\d+ =+$|^\s{{0,8}}• Loss: (?P<loss>{_NUMBER})",
        "github.com/NVIDIA-NeMo/RL",
        (
            Example("========================= Step 9/30 =========================", "9"),
            Example("  • Loss: 0.25", None, "0.25"),
        ),
    ),
    Format(
        "xgboost",
        r"^\[(?P<step>\d+)\]\s+(?:train[^\t:]{0,40}?(?:loss|rmse|mae|error|l1|l2)[^\t:]{0,8}:"
        rf" ?(?P<loss>{_NUMBER})|\S{{1,40}}[-'][^\t:]{{1,40}}: ?\d)",
        "github.com/dmlc/xgboost, github.com/lightgbm-org/LightGBM",
        (
            Example("[9]\ttrain-logloss:0.59\teval-logloss:0.64", "9", "0.59"),
            Example(
                "[9]\ttraining's binary_logloss: 0.59\tvalid_1's binary_logloss: 0.6", "9", "0.59"
            ),
            Example("[9]\tvalidation_0-auc:0.75", "9"),
        ),
    ),
    Format(
        "gpt-2",
        rf"^\[(?P<step>\d+) \| [\d.]+\] loss=(?P<loss>{_NUMBER})",
        "github.com/nshepperd/gpt-2",
        (Example("[9 | 18.90] loss=2.82 avg=2.90", "9", "2.82"),),
    ),
    Format(
        "trl-ppo",
        rf"'loss/policy_avg': (?P<loss>{_NUMBER}).{{0,800}}?'episode': (?P<step>\d+)",
        "github.com/huggingface/trl (PPO; a step is an episode)",
        (
            Example(
                "{'eps': 1, 'loss/policy_avg': 0.02, 'lr': 1e-06, 'episode': 72, 'epoch': 0.3}",
                "72",
                "0.02",
            ),
        ),
    ),
    Format(
        "llama-factory",
        rf"\"current_steps\": (?P<step>\d+), \"total_steps\": \d+, \"loss\": (?P<loss>{_NUMBER})",
        "github.com/hiyouga/LLaMA-Factory (trainer_log.jsonl)",
        (
            Example(
                '{"current_steps": 9, "total_steps": 30, "loss": 2.82, "lr": 0.0001}', "9", "2.82"
            ),
        ),
    ),
    Format(
        "plain",
        rf"{_NO_KIND_OF_OTHERS}"
        rf"(?=.{{0,1000}}?{_STEP_WORD}\W{{0,4}} {{0,12}}{_STEP}\b(?!\.\d)){_SHOWN_LOSS}",
        "any line with a step and a loss",
        (
            Example("Epoch 1, step 40, train loss: 1.25", "40", "1.25"),
            Example("[Iteration: 7] lr=0.1 loss=nan", "7", "nan"),
            Example("Step 1,000 loss 2.5", "1,000", "2.5"),
            Example(
                "step     3 | loss: 10.955029 | lr 6.0000e-04 | norm: 1.2 | tok/sec: 12.5",
                "3",
                "10.955029",
            ),
            Example("step 1 best loss inf train loss 2.0", "1", "2.0"),
            Example('{"loss": 2.5, "lr": 0.001, "step": 7}', "7", "2.5"),
            Example("loss=2.5 step=7", "7", "2.5"),
            Example('{"step": "7", "loss": "2.5"}', "7", "2.5"),
            Example('{"_step": 7, "train/loss": 2.5, "train/lr": 0.0001}', "7", "2.5"),
            Example("step 7 | loss:     2.5000", "7", "2.5000"),
            Example("step 7 loss tensor(2.5, grad_fn=<X>)", "7", "2.5"),
            Example("{'step': 7, 'loss': np.float32(2.5)}", "7", "2.5"),
            Example("step 7 loss NAN", "7", "NAN"),
            Example("step 7 loss -INF", "7", "-INF"),
            Example("step 1_500 loss 2.5", "1_500", "2.5"),
            Example("train_step=7 total_loss=2.5 z_loss=9", "7", "2.5"),
            Example("12ms/step | step 7 | loss 2.5", "7", "2.5"),
            Example("step 7 | val ppl 9 | loss 2.5", "7", "2.5"),
            Example("exp=test step 7 | loss 2.5", "7", "2.5"),
            Example(
                "Epoch 1 | iter 7 step 3 | loss train: 2.500, val: n/a | iter time: 100.12 ms",
                "7",
                "2.500",
            ),
            Example(
                "mmengine - INFO - Iter(train) [    50/20000]  lr: 1e-2  loss: 2.5  loss_ce: 1",
                "50",
                "2.5",
            ),
            Example(
                "train_inner | epoch 001:    100 / 1000 loss=2.5, ppl=9, num_updates=1100, lr=1",
                "1100",
                "2.5",
            ),
            Example(
                "[d2.utils.events]:  eta: 0:39:15  iter: 39  total_loss: 2.5  loss_cls: 0.6",
                "39",
                "2.5",
            ),
            Example("Step 9 | loss:2.5 lr:2e-05 tokens_per_second_per_gpu:57.8 ", "9", "2.5"),
            Example("Epoch: 0, Step: 9, Rank: 0, loss = 2.5", "9", "2.5"),
            Example(
                "[    INFO] - loss: 2.5, learning_rate: 1.0e-05, global_step: 9, epoch: 0.03",
                "9",
                "2.5",
            ),
            Example("step 1 | val loss: nan | train loss: 2.0", "1", "2.0"),
            Example("Step 3: Eval Loss 9, loss 2.0", "3", "2.0"),
            Example("step 3, loss: -0.5", "3", "-0.5"),
            Example("step 1 lowest loss inf loss 2.0", "1", "2.0"),
            Example("test.py step 1 | 5 min loss 2.0", "1", "2.0"),
            Example(
                "Training epoch 0, iteration 5/299 | lr: 1e-4 | reduced_train_loss: 2.5", "5", "2.5"
            ),
            Example("step 1, kl loss nan, aux_loss: nan, loss: 3.1", "1", "3.1"),
            Example("step 1 (min loss: inf) train loss: 2.5", "1", "2.5"),
            Example("step 1 early-stop loss inf, loss 2.5", "1", "2.5"),
            Example("step 1 best so far: loss inf; loss 2.1", "1", "2.1"),
            Example("step 1 loss nan, kl loss 0.3", "1", "nan"),
            Example("step 1 kl loss nan val/loss 3.0 val loss 3.1", "1", "nan"),
            Example("step 1 policy loss 0.5 val: loss 1.2", "1", "0.5"),
            Example("step 1 INFO loss 2.5", "1", "2.5"),
        ),
    ),
    Format(
        "mmengine",
        r"\bEpoch(?:\(train\))? +\[\d+\]\[ *(?P<step>\d+)/\d+\].{0,800}?\bloss:"
        rf" (?P<loss>{_NUMBER})",
        "github.com/open-mmlab/mmengine",
        (
            Example(
                "mmengine - INFO - Epoch(train)  [2][ 50/351]  lr: 0.1  loss: 2.5", "50", "2.5"
            ),
            Example(
                "mmdet - INFO - Epoch [1][50/7330]\tlr: 1e-2, loss_cls: 0.4, loss: 2.5", "50", "2.5"
            ),
        ),
    ),
    Format(
        "loss-at-step",
        r"^(?=.{0,1000}? (?:at|after|in|for) )"
        rf"{_NO_KIND_OF_OTHERS}{_TRAINS}(?:{_TRAIN_LOSS}|(?i:\bcost\b)).{{0,40}}?"
        rf" (?:at|after|in|for) {_STEP_WORD}[ #]{{1,2}}{_STEP} ?[:=] ?"
        rf"(?P<loss>{_NUMBER})",
        "TensorFlow's guides, deeplearning.ai's courses",
        (
            Example("Training loss (for 1 batch) at step 200: 2.5", "200", "2.5"),
            Example("Cost after iteration 9: 0.69", "9", "0.69"),
            Example("Loss at step 9 = 0.69", "9", "0.69"),
        ),
    ),
    Format(
        "counter",
        rf"{_NO_EPOCH_NO_BAR}{_NO_KIND_OF_OTHERS}"
        rf"(?=.{{0,1000}}?{_MORE_STEP_WORDS}\W{{0,4}} {{0,12}}{_STEP}\b(?!\.\d|%)){_SHOWN_LOSS}",
        "any line with `it`, `steps` or `batch` and a loss",
        (
            Example("it 9 loss 2.5", "9", "2.5"),
            Example("[it  9] 3.5 it/s loss=2.5", "9", "2.5"),
            Example("steps: 9, loss: 2.5", "9", "2.5"),
            Example("Batch 9/40, Loss: 2.5", "9", "2.5"),
        ),
    ),
    Format(
        "fraction",
        rf"{_NO_EPOCH_NO_BAR}{_NO_KIND_OF_OTHERS}{_TRAINS}(?<![\d/.:-])(?P<step>\d+) ?/ ?\d+\b(?!/)"
        rf"\W{{1,8}}{_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})",
        "any line with `9/300` and a loss",
        (
            Example("[9/300] loss: 2.5", "9", "2.5"),
            Example("training: 9/300 | train_loss 2.5", "9", "2.5"),
        ),
    ),
    Format(
        "bar",
        rf"{_HAS_BAR}{_BAR_OF_TRAINING}{_BAR_LOSS}){_BAR_COUNT}",
        "github.com/tqdm/tqdm, a bar with a loss",
        (
            Example("steps: 3%|▎ | 9/300 [00:01<00:29, avr_loss=2.5]", "9", "2.5"),
            Example("1|9|Loss: 2.5: 3%|▎ | 9/300 [00:01<00:29]", "9", "2.5"),
            Example(
                "Train step of epoch 0: 3%|▎ | 9/300 [00:01<00:29, gpt_loss=2.5, lr=5e-7]",
                "9",
                "2.5",
            ),
        ),
    ),
    Format(
        "transformers",
        rf"{_NO_KIND_OF_OTHERS}{_TRAINS}'loss': '?(?P<loss>{_NUMBER})'?"
        rf"(?:, 'grad_norm': '?(?P<grad_norm>{_NUMBER})'?)?"
        rf"(?:, 'learning_rate': '?(?P<lr>{_NUMBER})'?)?",
        "github.com/huggingface/transformers (Trainer)",
        (
            Example(
                "{'loss': 2.3112, 'grad_norm': 1.5, 'learning_rate': 4.9e-05, 'epoch': 0.1}",
                None,
                "2.3112",
            ),
        ),
    ),
    Format(
        "fastai",
        r"^\d+ +(?P<loss>\d+\.\d{6}|nan)(?: +(?:\d+\.\d{6}|nan|None))*"
        r" +[\d:]*\d:\d\d *$",
        "github.com/fastai/fastai",
        (Example("9         2.512345    2.612345    nan    00:10     ", None, "2.512345"),),
    ),
    Format(
        "epoch",
        rf"{_NO_KIND_OF_OTHERS}(?:{_TRAINS}(?i:\bepoch\b)(?!{_BETWEEN}{_BAR}){_TRAINS}"
        rf"|{_BETWEEN}(?i:\bepoch\b)(?!{_BETWEEN}{_BAR}){_BETWEEN}(?i:(?=\btrain))"
        rf"|\[\d+, +\d+\] {_BETWEEN}|(?=loss: +\S+ +\[ *\d+/ *\d+\])"
        r"|^\d+/\d+ - \d+m?s - .{0,400}? - )"
        rf"{_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})",
        "PyTorch's examples and tutorials, Keras with verbose=2",
        (
            Example("Epoch 1 - val: 0.42 - loss: 2.0", None, "2.0"),
            Example("Epoch 1: previous loss inf, loss 2.0", None, "2.0"),
            Example("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.300039", None, "2.300039"),
            Example("Epoch: [0][ 10/99]\tTime 0.2 (0.2)\tLoss 6.9e+00 (7.0)", None, "6.9e+00"),
            Example("Epoch: [0]  [ 10/99]  eta: 0:12:34  loss: 6.9 (7.0)", None, "6.9"),
            Example("| epoch   1 |   200/ 2983 batches | loss  7.63 | ppl 2057", None, "7.63"),
            Example("Epoch 3/10: train_loss=0.5, val_loss=0.6", None, "0.5"),
            Example("[1,  2000] loss: 2.173", None, "2.173"),
            Example("loss: 2.303494  [   64/60000]", None, "2.303494"),
            Example("loss: 2.303494  [   64/ 6400]", None, "2.303494"),
            Example(
                "40/40 - 2s - 50ms/step - accuracy: 0.5 - loss: 2.5 - val_loss: 9.0", None, "2.5"
            ),
        ),
    ),
    Format(
        "tqdm",
        rf"{_HAS_BAR}{_BAR_OF_TRAINING}{_BAR_LOSS}|){_BAR_COUNT}",
        "github.com/tqdm/tqdm, any bar",
        (
            Example(" 30%|███ | 30/100 [00:03<00:07,  9.9it/s]", "30"),
            Example(" 9%| | 8/80 [00:03<00:07,  9.9it/s, loss=nan]", "8", "nan"),
            Example("loss 0.75:  9%| | 8/80 [00:03<00:07]", "8", "0.75"),
            Example("Epoch 0: | 8/80 [00:03<00:07, train_loss=2.5]", "8", "2.5"),
            Example("Epoch 0, val loss 3: | 8/80 [00:03<00:07]", "8"),
            Example("val acc 0.5: 9%| | 8/80 [00:03<00:07]", "8"),
            Example("Epoch 1 (best val 0.42): 9%| | 8/80 [00:03<00:07]", "8"),
            Example("loss 0.75, val=.42: 9%| | 8/80 [00:03<00:07]", "8", "0.75"),
            Example("train: 9%| | 8/80 [00:03<00:07, val=1]", "8"),
            Example("loss 2.31 val 2.50: 9%| | 8/80 [00:03<00:07]", "8", "2.31"),
            Example("Epoch 1 eval nan: 9%| | 8/80 [00:03<00:07]", "8"),
            Example("loss 2.31 val None: 9%| | 8/80 [00:03<00:07]", "8", "2.31"),
            Example("loss 2.31 val 2e-05: 9%| | 8/80 [00:03<00:07]", "8", "2.31"),
            Example("Training [test run]: 9%| | 8/80 [00:03<00:07]", "8"),
        ),
    ),
)
"""Every bundled format. Guessing tries all but `tqdm` in this order, the most exact first. The
formats without a number come last: their lines are counted only where no line tells a step. A bar
without a loss may be of anything (a download, too)."""

PATTERNS: dict[str, str] = {row.name: row.pattern for row in FORMATS}
"""Name → pattern."""

GUESSED = tuple(name for name in PATTERNS if name != "tqdm")

_FITTING_LINES = 2
"""So many lines are no accident."""


def guessed_patterns(steps: int | None) -> list[str]:
    """Return the patterns that are tried where nobody names one, the most exact first.

    A number of the ordered total (`5/30`, `5.0it/30.0it`) needs no loss. Its bar comes first. Any
    other such line comes behind the formats that read more from it.

    Args:
        steps: the last ordered step; None where nobody says. Of a single step `1/1` may be
            anything.
    """
    named = [PATTERNS[name] for name in GUESSED]
    if steps is None or steps < _LEAST_TOTAL:
        return named
    total = f"(?:{'|'.join(sorted({f'{steps}', f'{steps:,}', f'{steps:_}'}))})"
    count = (
        rf"{_STEP}(?:\.0)?(?:it)? {{0,8}}(?:/|\bof\b) {{0,8}}{total}(?:\.0)?(?:it)?(?![\w/]|[.,]\d)"
    )
    bar = rf"{_HAS_BAR}{_BAR_OF_TRAINING}{_BAR_LOSS}|)(?:.{{0,800}}?[^\d.,/])?{count} \[\d+:\d"
    line = (
        rf"^(?=.{{0,2000}}?(?:/|of) {{0,8}}{total})"
        rf"{_NO_KIND_OF_OTHERS}(?!{_BAR_OF_DATA})(?={_SHOWN_LOSS}|)"
        rf"{_TRAINS}(?<![\w/.,-])(?<!\d:){count}"
    )
    at = sum("(?P<step>" in pattern for pattern in named)
    return [bar, *named[:at], line, *named[at:]]


def fitting(lines: Iterable[str]) -> list[str]:
    """Return the names of the patterns that fit several of these lines, the most lines first."""
    compiled = {name: re.compile(text) for name, text in PATTERNS.items()}
    found: Counter[str] = Counter()
    for line in lines:
        found.update(name for name, pattern in compiled.items() if pattern.search(line))
    return [name for name, number in found.most_common() if number >= _FITTING_LINES]
