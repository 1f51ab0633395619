"""Regular expressions for the step lines that well-known trainers print.

Named groups: step, loss, lr, grad_norm, tokens, toks_per_s, rank. All repeats are bounded, because
a line may be long.
"""

_NUMBER = r"[-+]?(?:(?:\d+(?:[,_]\d+)*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)\b)"
_STEP = r"(?P<step>\d{1,3}(?:[,_]\d{3})+|\d+)"
_EVALUATIONS = (
    *("val", "valid", "validation", "validate", "validating"),
    *("eval", "evaluation", "evaluate", "evaluating", "test", "testing", "dev"),
    *("holdout", "hold-out", "heldout", "held-out", "held out"),
)
_OTHERS = ("best", "lowest", "minimum", "previous", "prev", *_EVALUATIONS)
_NOT_OTHERS = "".join(rf"(?<!\b{word}{gap})" for word in _OTHERS for gap in (" ", "/", "-", "."))
"""Excludes losses of evaluations."""
_TRAIN_LOSS = (
    rf"(?i:(?=[aglrst]){_NOT_OTHERS}"
    r"(?<!so far: )\b(?:(?:(?:reduced_)?train(?:ing)?|total|avg|avr|step|lm|gpt)[_ ])?"
    r"loss(?:_step|[ _/]train)?\b)"
)
_OF_A_PART = r"(?<![A-Za-z][ -])"  # Excludes the loss of a part, such as `kl loss`.
_BETWEEN = r".{0,400}?"
_IS = r"\W{1,4}? {0,12}(?:(?:tensor|np\.float\d\d)\()?"
"""Between a loss and its number: `loss:   2.5`, `"loss": "2.5"`, `loss tensor(2.5`."""
_MEASURES = r"acc|auc|err|f1|perp|ppl|score|time|top|\d*\.\d|\d+e-\d|(?:nan|inf|none)\b"
"""Words after an evaluation's name that show its result in a training line."""
_MENTIONS = r"tokens|every|in \d|false\b|n/a\b|info\b|debug\b|cuda|cpu"
"""Words after such a name that show no evaluation: `eval in 95 steps`, `dev: cuda`."""
_OF_OTHERS = (
    rf"(?i:(?<![\w./=-])(?<!\binfo:)(?<!debug:)(?:{'|'.join(_EVALUATIONS)})"
    rf"(?![\w/-]|\.\w|[ .]loss\b|\W{{0,3}}(?:{_MEASURES}|{_MENTIONS})))"
)
"""Marks a line of an evaluation; names such as `test.py:12` or `INFO:test:` do not."""
_TRAINS = rf"(?:(?!{_OF_OTHERS}).){{0,1000}}?"
_KIND_OF_OTHERS = (
    rf"(?i:\b(?:split|subset|phase|mode|stage|kind|type)\W{{1,4}}(?:{'|'.join(_EVALUATIONS)})\b)"
)
"""Marks a record of an evaluation: `"loss": 2.5, "split": "val"`."""
_NO_KIND_OF_OTHERS = rf"^(?!.{{0,1000}}?{_KIND_OF_OTHERS})"
_STEP_WORD = (
    r"(?i:(?<!\ds/)(?<!\bs/)(?<!ms/)(?<!sec/)(?<!time/)(?<!per )"
    r"\b_?(?:(?:global|train(?:ing)?)[_ ])?(?:step|iter|iteration|num_updates)\b(?:\(train\))?)"
)
_MORE_STEP_WORDS = (
    r"(?i:(?<![/\w])(?<!\d )(?:(?:global|train(?:ing)?)[_ ])?"
    r"(?:steps|iters|iterations|it|updates?|batch)\b)"
)
_BAR = r"\d/\d+ \[\d+:\d"
_NO_EPOCH_NO_BAR = rf"^(?!.{{0,1000}}?(?:(?i:\bepoch)|{_BAR}))"
_BAR_OF_OTHERS = (
    rf"(?i:(?:(?!\btrain)[^|]){{0,200}}?"
    rf"\b(?:{'|'.join(_EVALUATIONS)}|sanity)"
    rf"\b(?!\W{{0,3}}(?:loss|{_MEASURES})))"
)
"""Begins the bar of an evaluation."""
_BAR_OF_DATA = (
    r"\W{0,3}(?i:map|filter|loading|downloading|fetching|saving|tokenizing|truncating|packing"
    r"|converting|processing|preprocessing)\b"
)
"""Begins the bar of a library that prepares data or weights."""
_BAR_OF_TRAINING = rf"^(?!{_BAR_OF_OTHERS})(?!{_BAR_OF_DATA})"

_SHOWN_LOSS = (
    rf"(?:{_TRAINS}{_OF_A_PART}{_TRAIN_LOSS}{_IS}(?={_NUMBER})|{_TRAINS}{_TRAIN_LOSS}{_IS}"
    rf"|{_BETWEEN}(?i:(?=\btrain)){_TRAIN_LOSS}{_IS})(?P<loss>{_NUMBER})"
)
_BAR_LOSS = rf"(?=.{{0,800}}?{_TRAIN_LOSS}(?:_mean)?[=: ]{{1,3}}(?P<loss>{_NUMBER})"

_BAR_COUNT = r"(?:.{0,800}?[^\d.])?(?P<step>\d+)/\d+ \[\d+:\d"
_HAS_BAR = rf"^(?=.{{0,2000}}?{_BAR})"
_LEAST_TOTAL = 2


PATTERNS: dict[str, str] = {
    "torchtitan": rf"step: +(?P<step>\d+) +loss: +(?P<loss>{_NUMBER})"
    rf"(?: +grad_norm: +(?P<grad_norm>{_NUMBER}))?"
    r"(?:.{0,400}? tps: +(?P<toks_per_s>[\d,]+))?",
    "megatron": r"iteration +(?P<step>\d+)/ *\d+ \|"
    rf"(?:.{{0,400}}?learning rate: (?P<lr>{_NUMBER}))?"
    rf".{{0,400}}?lm[ _]loss: (?P<loss>{_NUMBER})"
    rf"(?:.{{0,200}}?grad norm: (?P<grad_norm>{_NUMBER}))?",
    "llm.c": rf"step +(?P<step>\d+)/\d+ \| (?:train )?loss +(?P<loss>{_NUMBER})"
    rf"(?:.{{0,200}}?norm +(?P<grad_norm>{_NUMBER}))?"
    rf"(?:.{{0,200}}?(?P<toks_per_s>{_NUMBER}) tok/s)?",
    "keras": rf"^\W{{0,40}}(?P<step>\d+)/(?:\d+|Unknown)\b(?! - )(?=.{{0,200}}?(?:/step\b|ETA: ))"
    rf".{{0,400}}? - {_TRAIN_LOSS}: (?P<loss>{_NUMBER})",
    "timm": rf"Train: \d+ \[ *(?P<step>\d+)/\d+ .{{0,80}}?Loss: +(?P<loss>{_NUMBER})"
    rf"(?:.{{0,200}}? LR: (?P<lr>{_NUMBER}))?",
    "yolo": rf"^ *\d+/\d+ +[\d.]+[GM] +(?P<loss>{_NUMBER}) .{{0,200}}?: +\d+%.{{0,200}}?"
    r"\b(?P<step>\d+)/\d+ ",
    "dcgan": rf"\[\d+/\d+\]\[ *(?P<step>\d+)/\d+\]\s+Loss_D: (?P<loss>{_NUMBER})",
    "verl": r"\bstep:(?P<step>\d+) - .{0,4000}?"
    rf"\bactor/pg_loss:(?:np\.float\d\d\()?(?P<loss>{_NUMBER})"
    rf"(?:.{{0,4000}}?\bactor/grad_norm:(?:np\.float\d\d\()?(?P<grad_norm>{_NUMBER}))?",
    "nanogpt": rf"iter (?P<step>\d+): loss (?P<loss>{_NUMBER})",
    "composer": r"^\W{0,4}\[batch=(?P<step>\d+)/\d+\]"
    rf"|^\s{{0,8}}Train loss/train/total: (?P<loss>{_NUMBER})",
    "olmo": r"\[step=(?P<step>\d+)/\d+,epoch="
    rf"|^\s{{0,8}}train/(?:CE loss|CrossEntropyLoss)=(?P<loss>{_NUMBER})",
    "nemo-rl": rf"^=+ Step (?P<step>\d+)/\d+ =+$|^\s{{0,8}}• Loss: (?P<loss>{_NUMBER})",
    "xgboost": r"^\[(?P<step>\d+)\]\s+"
    r"(?:train[^\t:]{0,40}?(?:loss|rmse|mae|error|l1|l2)[^\t:]{0,8}:"
    rf" ?(?P<loss>{_NUMBER})|\S{{1,40}}[-'][^\t:]{{1,40}}: ?\d)",
    "llama-factory": rf"\"current_steps\": (?P<step>\d+), "
    rf"\"total_steps\": \d+, \"loss\": (?P<loss>{_NUMBER})",
    "plain": rf"{_NO_KIND_OF_OTHERS}"
    rf"(?=.{{0,1000}}?{_STEP_WORD}\W{{0,4}} {{0,12}}{_STEP}\b(?!\.\d)){_SHOWN_LOSS}",
    "mmengine": r"\bEpoch(?:\(train\))? +\[\d+\]\[ *(?P<step>\d+)/\d+\].{0,800}?\bloss:"
    rf" (?P<loss>{_NUMBER})",
    "loss-at-step": r"^(?=.{0,1000}? (?:at|after|in|for) )"
    rf"{_NO_KIND_OF_OTHERS}{_TRAINS}(?:{_TRAIN_LOSS}|(?i:\bcost\b)).{{0,40}}?"
    rf" (?:at|after|in|for) {_STEP_WORD}[ #]{{1,2}}{_STEP} ?[:=] ?"
    rf"(?P<loss>{_NUMBER})",
    "counter": rf"{_NO_EPOCH_NO_BAR}{_NO_KIND_OF_OTHERS}"
    rf"(?=.{{0,1000}}?{_MORE_STEP_WORDS}\W{{0,4}} {{0,12}}{_STEP}\b(?!\.\d|%)){_SHOWN_LOSS}",
    "fraction": rf"{_NO_EPOCH_NO_BAR}{_NO_KIND_OF_OTHERS}{_TRAINS}"
    r"(?<![\d/.:-])(?P<step>\d+) ?/ ?\d+\b(?!/)"
    rf"\W{{1,8}}{_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})",
    "bar": rf"{_HAS_BAR}{_BAR_OF_TRAINING}{_BAR_LOSS}){_BAR_COUNT}",
    "transformers": rf"{_NO_KIND_OF_OTHERS}{_TRAINS}'loss': '?(?P<loss>{_NUMBER})'?"
    rf"(?:, 'grad_norm': '?(?P<grad_norm>{_NUMBER})'?)?"
    rf"(?:, 'learning_rate': '?(?P<lr>{_NUMBER})'?)?",
    "fastai": r"^\d+ +(?P<loss>\d+\.\d{6}|nan)(?: +(?:\d+\.\d{6}|nan|None))*"
    r" +[\d:]*\d:\d\d *$",
    "epoch": rf"{_NO_KIND_OF_OTHERS}(?:{_TRAINS}(?i:\bepoch\b)(?!{_BETWEEN}{_BAR}){_TRAINS}"
    rf"|{_BETWEEN}(?i:\bepoch\b)(?!{_BETWEEN}{_BAR}){_BETWEEN}(?i:(?=\btrain))"
    rf"|\[\d+, +\d+\] {_BETWEEN}|(?=loss: +\S+ +\[ *\d+/ *\d+\])"
    r"|^\d+/\d+ - \d+m?s - .{0,400}? - )"
    rf"{_TRAIN_LOSS}{_IS}(?P<loss>{_NUMBER})",
    "tqdm": rf"{_HAS_BAR}{_BAR_OF_TRAINING}{_BAR_LOSS}|){_BAR_COUNT}",
}
"""Trainer → its step lines, the most exact first; tests/data/printed_lines.jsonl has examples.
Guessing leaves out `tqdm`, which fits any bar. Formats without a step come last: their lines are
counted if no line shows a step."""

GUESSED = tuple(name for name in PATTERNS if name != "tqdm")


def guessed_patterns(steps: int | None) -> list[str]:
    """Return the patterns that are tried if nobody names one, the most exact first.

    A number of the ordered total (`5/30`) needs no loss; its bar comes first.
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
