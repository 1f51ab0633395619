"""Relations between values of a configuration, its environment and the number of ranks.

Relations are data, so that others can check them as the trainer does. Names are paths into
`{train: …, env: {NAME: text}, world_size: N}`; a relation about an absent value holds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nsa.errors import BadConfig

Term = tuple[int | str, ...]
"""Factors: whole numbers and paths."""

TOLERANCE = 0.02
"""How far `about` may be off: the share by which a model may miss its stated size (R71)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """`left` is `relation` the sum of `terms`, where every value in `when` is as it says."""

    left: str
    relation: Literal["multiple_of", "at_least", "equal_to", "about"]
    terms: tuple[Term, ...]
    text: str
    when: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Its JSON form."""
        return {
            "left": self.left,
            "relation": self.relation,
            "terms": [list(term) for term in self.terms],
            "text": self.text,
            "when": dict(self.when),
        }


def _row(
    left: str, relation: Any, terms: str | tuple[Term, ...], text: str, **when: Any
) -> Relation:
    """A relation; a text is a lone path, and `when` names parts of `train` by `__` for dots."""
    given = {f"train.{name.replace('__', '.')}": value for name, value in when.items()}
    whole = ((terms,),) if isinstance(terms, str) else terms
    return Relation(left=left, relation=relation, terms=whole, text=text, when=given)


OF_A_CONFIGURATION = (
    _row("train.model.heads", "multiple_of", "train.model.groups",
         "model.heads must be a multiple of model.groups"),
    _row("train.attention.l", "multiple_of", "train.attention.d",
         "attention.d must divide attention.l", attention__kind="nsa"),
    _row("train.attention.l_sel", "multiple_of", "train.attention.d",
         "attention.d must divide attention.l_sel", attention__kind="nsa"),
    _row("train.model.seq_len", "at_least", "train.attention.l",
         "model.seq_len must be at least attention.l: a branch without blocks learns nothing",
         attention__kind="nsa"),
    _row("train.optim.decay_steps", "at_least", "train.optim.warmup_steps",
         "optim.decay_steps must be at least optim.warmup_steps: both count from step 1"),
)  # fmt: skip
"""What `nsa.config` refuses."""

_EVERY_MODEL: tuple[Term, ...] = (
    (2, "train.model.vocab", "train.model.dim"),
    ("train.model.dim",),
    (2, "train.model.layers", "train.model.dim"),
    (3, "train.model.layers", "train.model.dim", "train.model.ffn_width"),
    (2, "train.model.layers", "train.model.dim", "train.model.heads", "train.model.head_dim"),
)
"""Embedding and head, final norm; per layer two norms, SwiGLU, and the queries and outputs."""
_KEYS_OF_ONE_BRANCH = (
    *("train.model.layers", "train.model.dim", "train.model.groups", "train.model.head_dim"),
)
_SPARSE_MODEL: tuple[Term, ...] = (
    *_EVERY_MODEL,
    (6, *_KEYS_OF_ONE_BRANCH),
    (3, "train.model.layers", "train.model.dim", "train.model.heads"),
    (3, "train.model.layers", "train.model.heads"),
)
_BLOCK = ("train.attention.l", "train.model.head_dim")
_LEARNED_MODEL: tuple[Term, ...] = (
    *_SPARSE_MODEL,
    (2, "train.model.layers", *_BLOCK),
    (4, "train.model.layers", *_BLOCK, "train.model.head_dim"),
    (4, "train.model.layers", "train.model.head_dim", "train.model.head_dim"),
    (6, "train.model.layers", "train.model.head_dim"),
)
"""With φ of keys and of values: places in the block, and a perceptron twice a head wide."""
_DENSE_MODEL: tuple[Term, ...] = (*_EVERY_MODEL, (2, *_KEYS_OF_ONE_BRANCH))
_STATED = "params must be what the model counts, within 2 %"

OF_A_RUN = (
    _row("train.batch.global_seqs", "multiple_of", (("world_size", "train.batch.accumulate"),),
         "batch.global_seqs must be shared evenly by ranks × batch.accumulate"),
    _row("world_size", "equal_to", ((1,),), "parallel single means one rank", parallel="single"),
    _row("env.NSA_LR", "equal_to", "train.optim.lr",
         "NSA_LR disagrees with optim.lr; change that instead"),
    _row("env.NSA_ACCUM", "equal_to", "train.batch.accumulate",
         "NSA_ACCUM disagrees with batch.accumulate; change that instead"),
    _row("env.CONFIG", "equal_to", "train.config", "CONFIG disagrees with train.config"),
    *(
        _row("train.params", "about", terms, _STATED, attention__kind="nsa",
             attention__compression=compression)
        for compression, terms in (
            (None, _SPARSE_MODEL), ("mean", _SPARSE_MODEL), ("mlp", _LEARNED_MODEL)
        )
    ),
    _row("train.params", "about", _DENSE_MODEL, _STATED, attention__kind="dense"),
)  # fmt: skip
"""What ends a run elsewhere: the batch plan, the ranks, the launch, the check of its identity."""


def check_relations(relations: Iterable[Relation], values: Mapping[str, Any]) -> None:
    """Raise BadConfig with the text of the first relation that does not hold."""
    for row in relations:
        if not holds(row, values):
            raise BadConfig(row.text)


def holds(row: Relation, values: Mapping[str, Any]) -> bool:
    """Whether a relation holds among values of the right types."""
    if any(_at(values, path) != value for path, value in row.when.items()):
        return True
    left, right = _at(values, row.left), right_side(row, values)
    if left is None or right is None:
        return True
    if isinstance(right, str):
        return bool(left == right)
    number = float(left)
    if row.relation == "multiple_of":
        return number % right == 0
    if row.relation == "at_least":
        return number >= right
    if row.relation == "about":
        return abs(number / right - 1) <= TOLERANCE
    return number == right


def right_side(row: Relation, values: Mapping[str, Any]) -> float | str | None:
    """The sum of a relation's terms; None where one of them names what is not there."""
    terms = [
        [_at(values, factor) if isinstance(factor, str) else factor for factor in term]
        for term in row.terms
    ]
    if any(factor is None for term in terms for factor in term):
        return None
    if isinstance(terms[0][0], str):
        return terms[0][0]
    return sum(math.prod(term) for term in terms)


def _at(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
