"""Does a text model find again what was said long before? A needle in held-out text.

`The secret number of NAME is 48213.` stands once somewhere in held-out text of a given length,
which ends with `The secret number of NAME is `. Asked for are the five digits, each after the right
ones before it. Depths are spread evenly. The same end without the needle is the control: what it
gets right was guessed.
"""

import random
from typing import Any

import torch
from torch import Tensor

from nsa.data import Source
from nsa.errors import BadConfig
from nsa.model import LanguageModel

_NAMES = ("Paris", "Lagos", "Oslo", "Quito", "Delhi", "Cairo", "Lima", "Kyoto")
_DIGITS = 5


def retrieve(
    model: LanguageModel, source: Source, length: int, count: int, seed: int
) -> dict[str, Any]:
    """How much of the needles is found.

    Args:
        model: in evaluation mode, with room for `length` positions.
        source: whose held-out text hides them.
        length: bytes of text, question and answer.
        count: needles.
        seed: decides names, digits and the places within a depth.

    Returns:
        `length`, `count`, `found` (share of digits that are the likeliest byte), `whole` (share of
        needles of which all are), `control` (share of digits without the needle), and
        `found_by_depth`, the share in quarters of the text, the oldest first; null where none lay.

    Raises:
        BadConfig: the length leaves no room for a text.
    """
    drawn = random.Random(f"{seed}/{length}")
    digits_right, control_right = [], []
    quarters: list[list[float]] = [[], [], [], []]
    for number in range(count):
        depth = (number + drawn.random()) / count
        text = source.sequence("val", number, length).tobytes()
        hidden, bare = build_needle(text[:length], depth, drawn)
        right = _right(model, hidden)
        digits_right.append(right)
        control_right.append(_right(model, bare))
        quarters[min(3, int(4 * depth))].append(sum(right) / _DIGITS)
    every = [digit for right in digits_right for digit in right]
    guessed = [digit for right in control_right for digit in right]
    return {
        "length": length,
        "count": count,
        "found": round(sum(every) / len(every), 6),
        "whole": round(sum(map(all, digits_right)) / count, 6),
        "control": round(sum(guessed) / len(guessed), 6),
        "found_by_depth": [round(sum(own) / len(own), 6) if own else None for own in quarters],
    }


def build_needle(text: bytes, depth: float, drawn: random.Random) -> tuple[bytes, bytes]:
    """A text of the same length that hides a needle and asks for it, and one that only asks.

    Args:
        text: what hides it.
        depth: where, from 0 (the oldest) to 1 (just before the question).
        drawn: source of name and digits.

    Raises:
        BadConfig: the text is too short.
    """
    name = drawn.choice(_NAMES)
    secret = "".join(drawn.choice("0123456789") for _ in range(_DIGITS))
    said = f"\nThe secret number of {name} is {secret}.\n".encode()
    asked = said[:-2]
    room = len(text) - len(said) - len(asked)
    if room < 1:
        raise BadConfig(f"a needle needs {len(said) + len(asked) + 1} bytes, not {len(text)}")
    at = int(depth * room)
    hidden = text[:at] + said + text[at:room] + asked
    return hidden, text[: len(text) - len(asked)] + asked


def _right(model: LanguageModel, text: bytes) -> list[bool]:
    """Whether each of the last five bytes is the likeliest after those before it."""
    tokens: Tensor = torch.tensor([list(text)], device=model.rotation.device)
    with torch.no_grad():
        likeliest = model(tokens[:, :-1])[0, -_DIGITS:].argmax(-1)
    return [bool(hit) for hit in (likeliest == tokens[0, -_DIGITS:]).tolist()]
