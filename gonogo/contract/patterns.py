"""Which lines do well-known trainers print? Patterns by name, for programs that know no gonogo.

Named groups: step, loss, lr, grad_norm, tokens, toks_per_s, rank (`supervise.launch.output_lines`).
"""

_NUMBER = r"[-+]?(?:(?:\d+(?:[,_]\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|NaN|Inf)"
_STEP = r"(?P<step>\d{1,3}(?:,\d{3})+|\d+)"
_OTHERS = ("best", "val", "valid", "validation", "eval", "evaluation", "test")
_NOT_OTHERS = "".join(rf"(?<!\b{word}{gap})" for word in _OTHERS for gap in (" ", "/", "-", "."))
"""A loss that is not the one that is trained on: no sign of how training goes."""

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
        rf"step +(?P<step>\d+)/\d+ \| (?:train )?loss (?P<loss>{_NUMBER})"
        rf"(?:.*?norm (?P<grad_norm>{_NUMBER}))?(?:.*?(?P<toks_per_s>{_NUMBER}) tok/s)?"
    ),
    "modded-nanogpt": rf"step:(?P<step>\d+)/\d+ train_loss:(?P<loss>{_NUMBER})",
    "nanogpt": rf"iter (?P<step>\d+): loss (?P<loss>{_NUMBER})",
    "plain": (
        r"(?i:\b(?:global[_ ])?(?:step|iter|iteration)\b)\W{0,3}"
        rf"{_STEP}\b.*?(?i:{_NOT_OTHERS}\b(?:train[_ ])?loss\b)\W{{1,3}}(?P<loss>{_NUMBER})"
    ),
    "transformers": (
        rf"'loss': '?(?P<loss>{_NUMBER})'?(?:, 'grad_norm': '?(?P<grad_norm>{_NUMBER})'?)?"
        rf"(?:, 'learning_rate': '?(?P<lr>{_NUMBER})'?)?"
    ),
    "tqdm": rf"\b(?P<step>\d+)/\d+ \[\d+:\d(?:[^\]]*?\bloss[=:] ?(?P<loss>{_NUMBER}))?",
}
"""Name → pattern."""

GUESSED = ("torchtitan", "megatron", "llm.c", "modded-nanogpt", "nanogpt", "plain")
"""What is tried where nobody names a pattern: each tells its step, and can hardly be meant else."""
