"""Which lines do well-known trainers print? Patterns by name, for programs that know no gonogo.

Named groups: step, loss, lr, grad_norm, tokens, toks_per_s, rank (`supervise.launch.output_lines`).
"""

import re
from collections import Counter
from collections.abc import Iterable

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
    rf"(?i:(?=[alrst]){_NOT_OTHERS}"
    r"\b(?:(?:(?:reduced_)?train(?:ing)?|total|avg|avr|step|lm)[_ ])?loss(?:_step|[ _/]train)?\b)"
)
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
    r"\b(?:(?:global|train(?:ing)?)[_ ])?(?:step|iter|iteration|num_updates)\b(?:\(train\))?)"
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

PATTERNS: dict[str, str] = {
    "torchtitan": (
        rf"step: +(?P<step>\d+) +loss: +(?P<loss>{_NUMBER})"
        rf"(?: +grad_norm: +(?P<grad_norm>{_NUMBER}))?(?:.*? tps: +(?P<toks_per_s>[\d,]+))?"
    ),
    "megatron": (
        rf"iteration +(?P<step>\d+)/ *\d+ \|(?:.*?learning rate: (?P<lr>{_NUMBER}))?"
        rf".*?lm loss: (?P<loss>{_NUMBER})(?:.*?grad norm: (?P<grad_norm>{_NUMBER}))?"
    ),
    "llm.c": (
        rf"step +(?P<step>\d+)/\d+ \| (?:train )?loss +(?P<loss>{_NUMBER})"
        rf"(?:.*?norm +(?P<grad_norm>{_NUMBER}))?(?:.*?(?P<toks_per_s>{_NUMBER}) tok/s)?"
    ),
    "modded-nanogpt": rf"step:(?P<step>\d+)/\d+ train_loss:(?P<loss>{_NUMBER})",
    "keras": (
        rf"^\W*(?P<step>\d+)/(?:\d+|Unknown)\b(?! - )(?=.{{0,200}}?(?:/step\b|ETA: ))"
        rf".*? - {_TRAIN_LOSS}: (?P<loss>{_NUMBER})"
    ),
    "timm": (
        rf"Train: \d+ \[ *(?P<step>\d+)/\d+ .*?Loss: +(?P<loss>{_NUMBER})"
        rf"(?:.*? LR: (?P<lr>{_NUMBER}))?"
    ),
    "yolo": (
        rf"^ *\d+/\d+ +[\d.]+[GM] +(?P<loss>{_NUMBER}) .{{0,200}}?: +\d+%.{{0,200}}?"
        r"\b(?P<step>\d+)/\d+ "
    ),
    "dcgan": rf"\[\d+/\d+\]\[ *(?P<step>\d+)/\d+\]\s+Loss_D: (?P<loss>{_NUMBER})",
    "espnet": (
        rf"\d{{1,9}}epoch:train:\d+-(?P<step>\d+)batch: .*?\bloss=(?P<loss>{_NUMBER})"
        rf"(?:.*?\bgrad_norm=(?P<grad_norm>{_NUMBER}))?(?:.*?\boptim0_lr0=(?P<lr>{_NUMBER}))?"
    ),
    "opennmt": (
        rf"Step +{_STEP}/ *\d+; .*?\bxent: +(?P<loss>{_NUMBER})(?:; lr: +(?P<lr>{_NUMBER}))?"
    ),
    "marian": (
        rf"Ep\. \d+ : Up\. {_STEP} : .*?\bCost (?P<loss>{_NUMBER})"
        rf"(?:.*?\bgNorm (?P<grad_norm>{_NUMBER}))?"
    ),
    "verl": (
        rf"\bstep:(?P<step>\d+) - .*?\bactor/pg_loss:(?:np\.float\d\d\()?(?P<loss>{_NUMBER})"
        rf"(?:.*?\bactor/grad_norm:(?:np\.float\d\d\()?(?P<grad_norm>{_NUMBER}))?"
    ),
    "clu": rf"logging_writer\.py:\d+\] \[(?P<step>\d+)\] .*?{_TRAIN_LOSS}=(?P<loss>{_NUMBER})",
    "darknet": rf"^ *(?P<step>\d+): (?P<loss>{_NUMBER}), {_NUMBER} avg(?: loss)?, {_NUMBER} rate",
    "nanogpt": rf"iter (?P<step>\d+): loss (?P<loss>{_NUMBER})",
    "plain": (
        rf"{_NO_KIND_OF_OTHERS}"
        rf"(?=.{{0,1000}}?{_STEP_WORD}\W{{0,4}} {{0,12}}{_STEP}\b(?!\.\d))"
        rf"(?:{_TRAINS}|{_BETWEEN}(?i:(?=\btrain))){_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})"
    ),
    "loss-at-step": (
        rf"{_NO_KIND_OF_OTHERS}{_TRAINS}(?:{_TRAIN_LOSS}|(?i:\bcost\b)).{{0,40}}?"
        rf" (?:at|after|in|for) {_STEP_WORD}[ #]{{1,2}}{_STEP} ?[:=] ?"
        rf"(?P<loss>{_NUMBER})"
    ),
    "counter": (
        rf"{_NO_EPOCH_NO_BAR}{_NO_KIND_OF_OTHERS}"
        rf"(?=.{{0,1000}}?{_MORE_STEP_WORDS}\W{{0,4}} {{0,12}}{_STEP}\b(?!\.\d|%))"
        rf"{_TRAINS}{_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})"
    ),
    "fraction": (
        rf"{_NO_EPOCH_NO_BAR}{_NO_KIND_OF_OTHERS}{_TRAINS}(?<![\d/.:-])(?P<step>\d+) ?/ ?\d+\b(?!/)"
        rf"\W{{1,8}}{_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})"
    ),
    "bar": (
        rf"{_BAR_OF_TRAINING}(?=.*?{_TRAIN_LOSS}[=: ]{{1,3}}(?P<loss>{_NUMBER}))"
        r"(?:.*?[^\d.])?(?P<step>\d+)/\d+ \[\d+:\d"
    ),
    "transformers": (
        rf"{_NO_KIND_OF_OTHERS}{_TRAINS}'loss': '?(?P<loss>{_NUMBER})'?"
        rf"(?:, 'grad_norm': '?(?P<grad_norm>{_NUMBER})'?)?"
        rf"(?:, 'learning_rate': '?(?P<lr>{_NUMBER})'?)?"
    ),
    "fastai": (
        r"^\d+ +(?P<loss>\d+\.\d{6}|nan)(?: +(?:\d+\.\d{6}|nan|None))*"
        r" +[\d:]*\d:\d\d *$"
    ),
    "epoch": (
        rf"{_NO_KIND_OF_OTHERS}(?:{_TRAINS}(?i:\bepoch\b)(?!{_BETWEEN}{_BAR}){_TRAINS}"
        rf"|{_BETWEEN}(?i:\bepoch\b)(?!{_BETWEEN}{_BAR}){_BETWEEN}(?i:(?=\btrain))"
        rf"|\[\d+, +\d+\] {_BETWEEN}|(?=loss: +\S+ +\[ *\d+/ *\d+\])|^\d+/\d+ - \d+m?s - .*? - )"
        rf"{_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})"
    ),
    "tqdm": (
        rf"{_BAR_OF_TRAINING}(?=.*?{_TRAIN_LOSS}[=: ]{{1,3}}(?P<loss>{_NUMBER})|)"
        rf"(?:.*?\D)?(?P<step>\d+)/\d+ \[\d+:\d"
    ),
}
"""Name → pattern."""

GUESSED = tuple(name for name in PATTERNS if name != "tqdm")
"""What is tried where nobody names a pattern, the most exact first. The last three tell no step:
their lines are counted, where no line tells one. A bar without a loss may be of anything (a
download, too)."""

_FITTING_LINES = 2
"""So many lines are no accident."""


def fitting(lines: Iterable[str]) -> list[str]:
    """Return the names of the patterns that fit several of these lines, the most lines first."""
    compiled = {name: re.compile(text) for name, text in PATTERNS.items()}
    found: Counter[str] = Counter()
    for line in lines:
        found.update(name for name, pattern in compiled.items() if pattern.search(line))
    return [name for name, number in found.most_common() if number >= _FITTING_LINES]
