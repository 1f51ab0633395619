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


class Format(NamedTuple):
    """How one trainer prints its steps; tests/data/printed_lines.jsonl holds examples."""

    name: str
    pattern: str
    source: str
    """The project that prints such lines, or what they are."""


FORMATS: tuple[Format, ...] = (
    Format(
        "torchtitan",
        rf"step: +(?P<step>\d+) +loss: +(?P<loss>{_NUMBER})"
        rf"(?: +grad_norm: +(?P<grad_norm>{_NUMBER}))?"
        r"(?:.{0,400}? tps: +(?P<toks_per_s>[\d,]+))?",
        "github.com/pytorch/torchtitan",
    ),
    Format(
        "megatron",
        rf"iteration +(?P<step>\d+)/ *\d+ \|(?:.{{0,400}}?learning rate: (?P<lr>{_NUMBER}))?"
        rf".{{0,400}}?lm[ _]loss: (?P<loss>{_NUMBER})"
        rf"(?:.{{0,200}}?grad norm: (?P<grad_norm>{_NUMBER}))?",
        "github.com/NVIDIA/Megatron-LM, github.com/EleutherAI/gpt-neox",
    ),
    Format(
        "llm.c",
        rf"step +(?P<step>\d+)/\d+ \| (?:train )?loss +(?P<loss>{_NUMBER})"
        rf"(?:.{{0,200}}?norm +(?P<grad_norm>{_NUMBER}))?"
        rf"(?:.{{0,200}}?(?P<toks_per_s>{_NUMBER}) tok/s)?",
        "github.com/karpathy/llm.c",
    ),
    Format(
        "modded-nanogpt",
        rf"step:(?P<step>\d+)/\d+ train_loss:(?P<loss>{_NUMBER})",
        "github.com/KellerJordan/modded-nanogpt",
    ),
    Format(
        "keras",
        rf"^\W{{0,40}}(?P<step>\d+)/(?:\d+|Unknown)\b(?! - )(?=.{{0,200}}?(?:/step\b|ETA: ))"
        rf".{{0,400}}? - {_TRAIN_LOSS}: (?P<loss>{_NUMBER})",
        "github.com/keras-team/keras",
    ),
    Format(
        "timm",
        rf"Train: \d+ \[ *(?P<step>\d+)/\d+ .{{0,80}}?Loss: +(?P<loss>{_NUMBER})"
        rf"(?:.{{0,200}}? LR: (?P<lr>{_NUMBER}))?",
        "github.com/huggingface/pytorch-image-models",
    ),
    Format(
        "yolo",
        rf"^ *\d+/\d+ +[\d.]+[GM] +(?P<loss>{_NUMBER}) .{{0,200}}?: +\d+%.{{0,200}}?"
        r"\b(?P<step>\d+)/\d+ ",
        "github.com/ultralytics/ultralytics, github.com/ultralytics/yolov5",
    ),
    Format(
        "dcgan",
        rf"\[\d+/\d+\]\[ *(?P<step>\d+)/\d+\]\s+Loss_D: (?P<loss>{_NUMBER})",
        "github.com/pytorch/examples (dcgan)",
    ),
    Format(
        "espnet",
        rf"\d{{1,9}}epoch:train:\d+-(?P<step>\d+)batch: .{{0,800}}?\bloss=(?P<loss>{_NUMBER})"
        rf"(?:.{{0,400}}?\bgrad_norm=(?P<grad_norm>{_NUMBER}))?"
        rf"(?:.{{0,400}}?\boptim0_lr0=(?P<lr>{_NUMBER}))?",
        "github.com/espnet/espnet",
    ),
    Format(
        "opennmt",
        rf"Step +{_STEP}/ *\d+; .{{0,400}}?\bxent: +(?P<loss>{_NUMBER})"
        rf"(?:; lr: +(?P<lr>{_NUMBER}))?",
        "github.com/OpenNMT/OpenNMT-py",
    ),
    Format(
        "marian",
        rf"Ep\. \d+ : Up\. {_STEP} : .{{0,400}}?\bCost (?P<loss>{_NUMBER})"
        rf"(?:.{{0,200}}?\bgNorm (?P<grad_norm>{_NUMBER}))?",
        "github.com/marian-nmt/marian",
    ),
    Format(
        "verl",
        r"\bstep:(?P<step>\d+) - .{0,4000}?"
        rf"\bactor/pg_loss:(?:np\.float\d\d\()?(?P<loss>{_NUMBER})"
        rf"(?:.{{0,4000}}?\bactor/grad_norm:(?:np\.float\d\d\()?(?P<grad_norm>{_NUMBER}))?",
        "github.com/volcengine/verl",
    ),
    Format(
        "clu",
        rf"logging_writer\.py:\d+\] \[(?P<step>\d+)\] .{{0,800}}?{_TRAIN_LOSS}=(?P<loss>{_NUMBER})",
        "github.com/google/CommonLoopUtils",
    ),
    Format(
        "darknet",
        rf"^ *(?P<step>\d+): (?P<loss>{_NUMBER}), {_NUMBER} avg(?: loss)?, {_NUMBER} rate",
        "github.com/AlexeyAB/darknet",
    ),
    Format(
        "nanogpt",
        rf"iter (?P<step>\d+): loss (?P<loss>{_NUMBER})",
        "github.com/karpathy/nanoGPT",
    ),
    Format(
        "levanter",
        rf"Progress on:train (?P<step>\d+)(?:\.0)?it/.{{0,200}}?postfix:loss=(?P<loss>{_NUMBER})",
        "github.com/stanford-crfm/levanter",
    ),
    Format(
        "composer",
        r"^\W{0,4}\[batch=(?P<step>\d+)/\d+\]"
        rf"|^\s{{0,8}}Train loss/train/total: (?P<loss>{_NUMBER})",
        "github.com/mosaicml/composer",
    ),
    Format(
        "olmo",
        r"\[step=(?P<step>\d+)/\d+,epoch="
        rf"|^\s{{0,8}}train/(?:CE loss|CrossEntropyLoss)=(?P<loss>{_NUMBER})",
        "github.com/allenai/OLMo, github.com/allenai/OLMo-core",
    ),
    Format(
        "nemo-rl",
        rf"^=+ Step (?P<step>\d+)/\d+ =+$|^\s{{0,8}}• Loss: (?P<loss>{_NUMBER})",
        "github.com/NVIDIA-NeMo/RL",
    ),
    Format(
        "xgboost",
        r"^\[(?P<step>\d+)\]\s+(?:train[^\t:]{0,40}?(?:loss|rmse|mae|error|l1|l2)[^\t:]{0,8}:"
        rf" ?(?P<loss>{_NUMBER})|\S{{1,40}}[-'][^\t:]{{1,40}}: ?\d)",
        "github.com/dmlc/xgboost, github.com/lightgbm-org/LightGBM",
    ),
    Format(
        "gpt-2",
        rf"^\[(?P<step>\d+) \| [\d.]+\] loss=(?P<loss>{_NUMBER})",
        "github.com/nshepperd/gpt-2",
    ),
    Format(
        "trl-ppo",
        rf"'loss/policy_avg': (?P<loss>{_NUMBER}).{{0,800}}?'episode': (?P<step>\d+)",
        "github.com/huggingface/trl (PPO; a step is an episode)",
    ),
    Format(
        "llama-factory",
        rf"\"current_steps\": (?P<step>\d+), \"total_steps\": \d+, \"loss\": (?P<loss>{_NUMBER})",
        "github.com/hiyouga/LLaMA-Factory (trainer_log.jsonl)",
    ),
    Format(
        "plain",
        rf"{_NO_KIND_OF_OTHERS}"
        rf"(?=.{{0,1000}}?{_STEP_WORD}\W{{0,4}} {{0,12}}{_STEP}\b(?!\.\d)){_SHOWN_LOSS}",
        "any line with a step and a loss",
    ),
    Format(
        "mmengine",
        r"\bEpoch(?:\(train\))? +\[\d+\]\[ *(?P<step>\d+)/\d+\].{0,800}?\bloss:"
        rf" (?P<loss>{_NUMBER})",
        "github.com/open-mmlab/mmengine",
    ),
    Format(
        "loss-at-step",
        r"^(?=.{0,1000}? (?:at|after|in|for) )"
        rf"{_NO_KIND_OF_OTHERS}{_TRAINS}(?:{_TRAIN_LOSS}|(?i:\bcost\b)).{{0,40}}?"
        rf" (?:at|after|in|for) {_STEP_WORD}[ #]{{1,2}}{_STEP} ?[:=] ?"
        rf"(?P<loss>{_NUMBER})",
        "TensorFlow's guides, deeplearning.ai's courses",
    ),
    Format(
        "counter",
        rf"{_NO_EPOCH_NO_BAR}{_NO_KIND_OF_OTHERS}"
        rf"(?=.{{0,1000}}?{_MORE_STEP_WORDS}\W{{0,4}} {{0,12}}{_STEP}\b(?!\.\d|%)){_SHOWN_LOSS}",
        "any line with `it`, `steps` or `batch` and a loss",
    ),
    Format(
        "fraction",
        rf"{_NO_EPOCH_NO_BAR}{_NO_KIND_OF_OTHERS}{_TRAINS}(?<![\d/.:-])(?P<step>\d+) ?/ ?\d+\b(?!/)"
        rf"\W{{1,8}}{_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})",
        "any line with `9/300` and a loss",
    ),
    Format(
        "bar",
        rf"{_HAS_BAR}{_BAR_OF_TRAINING}{_BAR_LOSS}){_BAR_COUNT}",
        "github.com/tqdm/tqdm, a bar with a loss",
    ),
    Format(
        "transformers",
        rf"{_NO_KIND_OF_OTHERS}{_TRAINS}'loss': '?(?P<loss>{_NUMBER})'?"
        rf"(?:, 'grad_norm': '?(?P<grad_norm>{_NUMBER})'?)?"
        rf"(?:, 'learning_rate': '?(?P<lr>{_NUMBER})'?)?",
        "github.com/huggingface/transformers (Trainer)",
    ),
    Format(
        "fastai",
        r"^\d+ +(?P<loss>\d+\.\d{6}|nan)(?: +(?:\d+\.\d{6}|nan|None))*"
        r" +[\d:]*\d:\d\d *$",
        "github.com/fastai/fastai",
    ),
    Format(
        "epoch",
        rf"{_NO_KIND_OF_OTHERS}(?:{_TRAINS}(?i:\bepoch\b)(?!{_BETWEEN}{_BAR}){_TRAINS}"
        rf"|{_BETWEEN}(?i:\bepoch\b)(?!{_BETWEEN}{_BAR}){_BETWEEN}(?i:(?=\btrain))"
        rf"|\[\d+, +\d+\] {_BETWEEN}|(?=loss: +\S+ +\[ *\d+/ *\d+\])"
        r"|^\d+/\d+ - \d+m?s - .{0,400}? - )"
        rf"{_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})",
        "PyTorch's examples and tutorials, Keras with verbose=2",
    ),
    Format(
        "tqdm",
        rf"{_HAS_BAR}{_BAR_OF_TRAINING}{_BAR_LOSS}|){_BAR_COUNT}",
        "github.com/tqdm/tqdm, any bar",
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
