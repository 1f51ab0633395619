"""Placeholders in the words of a plan: `{lr}` becomes the value of `lr`. Standard library only.

Only `{NAME}` is one, where NAME is a word or dotted words without spaces. `{{NAME}}` is the text
`{NAME}`. JSON (`{"a": 1}`), shell variables (`${NAME}`) and all other braces stay as they are.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

RUN_DIR = "run_dir"
RESUME = "resume"
AT_START = frozenset((RUN_DIR, RESUME))
"""Names that are filled where a run is started."""

_NAME = r"[A-Za-z_][\w-]*(?:\.[\w-]+)*"
_PLACEHOLDER = re.compile(rf"(?<![${{])(?:\{{\{{(?P<kept>{_NAME})\}}\}}|\{{(?P<name>{_NAME})\}})")
_OPTION = re.compile(rf"(?:[^\s=]+=)?\{{{RESUME}\}}")


def names_in(text: str) -> Iterator[str]:
    """Yield the names of the placeholders of a text."""
    return (found["name"] for found in _PLACEHOLDER.finditer(text) if found["name"])


def mentions(text: str, names: Iterable[str]) -> bool:
    """Whether a text holds one of these names in single or double braces."""
    found = {row["name"] or row["kept"] for row in _PLACEHOLDER.finditer(text)}
    return not found.isdisjoint(names)


def fill(text: str, values: Mapping[str, str], *, later: Iterable[str] = ()) -> str:
    """Return a text with its placeholders filled; one of an unknown name stays.

    Args:
        text: of a plan.
        values: name → value.
        later: names that another call fills.
    """
    waiting = frozenset(later)

    def text_of(found: re.Match[str]) -> str:
        kept, name = found["kept"], found["name"]
        if kept is not None:
            return found[0] if kept in waiting else f"{{{kept}}}"
        return found[0] if name in waiting else values.get(name, found[0])

    return _PLACEHOLDER.sub(text_of, text)


def fill_words(words: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """Return the words of a command with their placeholders filled.

    Without a checkpoint the words that only name it are left out: `--resume={resume}`,
    `ckpt={resume}`, and `{resume}` together with the option before it.
    """
    found: list[str] = []
    for word in words:
        if values.get(RESUME) or not _OPTION.fullmatch(word):
            found.append(fill(word, values))
        elif word == f"{{{RESUME}}}" and found and _is_option(found[-1]):
            found.pop()
    return found


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and word != "--" and "=" not in word
