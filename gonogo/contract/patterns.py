"""Which lines do well-known trainers print? Patterns by name, for programs that know no gonogo.

Named groups: step, loss, lr, grad_norm, tokens, toks_per_s, rank (`supervise.launch.output_lines`).
"""

import re
from collections import Counter
from collections.abc import Iterable

_NUMBER = (
    r"[-+]?(?:(?:\d+(?:[,_]\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)\b)"
)
_STEP = r"(?P<step>\d{1,3}(?:[,_]\d{3})+|\d+)"
_EVALUATIONS = (
    *("val", "valid", "validation", "validate", "validating"),
    *("eval", "evaluation", "evaluate", "evaluating", "test", "testing", "dev"),
)
_OTHERS = ("best", "lowest", "minimum", "previous", "prev", *_EVALUATIONS)
_NOT_OTHERS = "".join(rf"(?<!\b{word}{gap})" for word in _OTHERS for gap in (" ", "/", "-", "."))
"""A loss that is not the one that is trained on: no sign of how training goes."""
_TRAIN_LOSS = (
    rf"(?i:(?=[alt]){_NOT_OTHERS}"
    r"\b(?:(?:train(?:ing)?|total|avg|lm)[_ ])?loss(?:_step|[ _/]train)?\b)"
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
_BAR = r"\d/\d+ \[\d+:\d"
"""What every bar of tqdm shows, with and without a loss."""
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
    "nanogpt": rf"iter (?P<step>\d+): loss (?P<loss>{_NUMBER})",
    "plain": (
        rf"{_NO_KIND_OF_OTHERS}"
        rf"(?=.{{0,1000}}?{_STEP_WORD}\W{{0,4}} {{0,12}}{_STEP}\b(?!\.\d))"
        rf"(?:{_TRAINS}|{_BETWEEN}(?i:(?=\btrain))){_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})"
    ),
    "transformers": (
        rf"{_NO_KIND_OF_OTHERS}{_TRAINS}'loss': '?(?P<loss>{_NUMBER})'?"
        rf"(?:, 'grad_norm': '?(?P<grad_norm>{_NUMBER})'?)?"
        rf"(?:, 'learning_rate': '?(?P<lr>{_NUMBER})'?)?"
    ),
    "epoch": (
        rf"{_NO_KIND_OF_OTHERS}(?:{_TRAINS}(?i:\bepoch\b)(?!{_BETWEEN}{_BAR}){_TRAINS}"
        rf"|{_BETWEEN}(?i:\bepoch\b)(?!{_BETWEEN}{_BAR}){_BETWEEN}(?i:(?=\btrain))"
        rf"|\[\d+, +\d+\] {_BETWEEN}|(?=loss: +\S+ +\[ *\d+/ *\d+\]))"
        rf"{_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})"
    ),
    "tqdm": (
        rf"^(?!{_BAR_OF_OTHERS})(?!{_BAR_OF_DATA})"
        rf"(?=.*?{_TRAIN_LOSS}[=: ]{{1,3}}(?P<loss>{_NUMBER})|)"
        rf"(?:.*?\D)?(?P<step>\d+)/\d+ \[\d+:\d"
    ),
}
"""Name → pattern."""

GUESSED = (
    "torchtitan",
    "megatron",
    "llm.c",
    "modded-nanogpt",
    "nanogpt",
    "plain",
    "transformers",
    "epoch",
)
"""What is tried where nobody names a pattern, the most exact first. The last two tell no step:
their lines are counted, where no line tells one. A bar may be of anything (a download, too)."""

_FITTING_LINES = 2
"""So many lines are no accident."""


def fitting(lines: Iterable[str]) -> list[str]:
    """Return the names of the patterns that fit several of these lines, the most lines first."""
    compiled = {name: re.compile(text) for name, text in PATTERNS.items()}
    found: Counter[str] = Counter()
    for line in lines:
        found.update(name for name, pattern in compiled.items() if pattern.search(line))
    return [name for name, number in found.most_common() if number >= _FITTING_LINES]
