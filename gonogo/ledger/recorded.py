"""What exactly was recorded? A decision as read: the raw document, and the model that reads it.

Digests are over the document, fields that nobody knows included: whatever is changed in it, its
formatting aside, changes the hash. Version 1 is release 0.1's, whose hash is over its own fields;
there a field beyond them is a difference by itself. What has two readings (a name that stands
twice, a bare NaN, a number that no double holds) is no document at all.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gonogo.contract.canonical import canonical_bytes, digest
from gonogo.contract.decision import DECISION_V, Decision, Verdict
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.ids import Kind, is_id
from gonogo.ledger.difference import Difference, first_difference
from gonogo.ledger.v1 import document as v1
from gonogo.rundir import open_file

Json = Mapping[str, Any]

MAX_DEPTH = 200
"""Objects and lists inside each other: far beyond any decision, and within what every step of
checking one can take."""

MAX_BYTES = 256 * 2**20
"""No decision comes near this; a file that does is none."""

UNSEALED = ("hash", "signature")
"""Fields that the hash of a version 2 decision does not cover: itself, and what is made of it."""

WHOSE = ("run", "attempt")
"""Fields of rules that say of whom evidence is owed, and not what is asked of it."""


def rule_digest(rules: Json) -> str:
    """Return by which rules was judged: the same for two runs of which the same was asked.

    What it leaves out stands under the decision's hash like everything else.
    """
    return digest({name: row for name, row in rules.items() if name not in WHOSE})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDecision:
    """A decision as read or as just sealed."""

    document: Json
    decision: Decision

    @property
    def id(self) -> str:
        """Its id."""
        return self.decision.id

    @property
    def verdict(self) -> Verdict | None:
        """Its verdict."""
        return self.decision.verdict

    @property
    def signed(self) -> bool:
        """Whether it claims a signature."""
        return self.decision.key_id is not None or self.decision.signature is not None

    def content_hash(self) -> str:
        """Return the digest that `hash` must be."""
        if self.decision.v == 1:
            return v1.content_hash(self.document)
        return digest({name: row for name, row in self.document.items() if name not in UNSEALED})

    def seals(self) -> Difference | None:
        """Return the first digest that does not fit, or None when the document is whole."""
        if self.decision.v == 1:
            difference = first_difference(v1.as_recorded(self.document), self.document)
            if difference is not None:
                return difference
        rules = self.document.get("rules", {})
        with_whose = digest(rules)  # as it was before it left that out
        for name, found in (
            ("rule_digest", rule_digest(rules)),
            ("facts_digest", digest(self.document.get("facts", {}))),
            ("hash", self.content_hash()),
        ):
            recorded = self.document.get(name)
            if recorded != found and (name, recorded) != ("rule_digest", with_whose):
                return Difference(path=name, recorded=recorded, found=found)
        return None


def record_of(document: Json) -> RecordedDecision:
    """Return a decision from its document.

    Raises:
        Corrupt: it is not a decision, or of a version that this code does not know.
    """
    if _is_deeper(document, MAX_DEPTH):
        raise Corrupt(f"not a decision: it is nested deeper than {MAX_DEPTH}")
    version = document.get("v", 1)
    if type(version) is not int or version not in range(1, DECISION_V + 1):
        raise Corrupt(f"not a decision: v is {version!r}; this code reads 1 to {DECISION_V}")
    try:
        canonical_bytes(document)
        decision = Decision.model_validate(document)
        recorded = RecordedDecision(document=document, decision=decision)
        if version == 1:
            v1.as_recorded(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Corrupt(f"not a decision: {where}: {first['msg']}") from error
    except (UnicodeEncodeError, RecursionError) as error:
        raise Corrupt("not a decision: it has no canonical form") from error
    return recorded


def _is_deeper(value: Any, depth: int) -> bool:
    """Say whether objects and lists stand inside each other more than `depth` times."""
    level = [value]
    for _ in range(depth + 1):
        nested = [row for row in level if isinstance(row, Mapping | list)]
        if not nested:
            return False
        level = [
            inner for row in nested for inner in (row.values() if isinstance(row, Mapping) else row)
        ]
    return True


def parse_decision(raw: bytes | str) -> RecordedDecision:
    """Return the decision in JSON bytes.

    Raises:
        Corrupt: the bytes are not one decision, with one reading.
    """
    try:
        text = raw.decode() if isinstance(raw, bytes) else raw
        document = json.loads(
            text, object_pairs_hook=_each_once, parse_constant=_refuse, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"not a decision: {error}") from error
    if not isinstance(document, dict):
        raise Corrupt(f"not a decision: a JSON {type(document).__name__}")
    return record_of(document)


def load_decision(path: Path) -> RecordedDecision:
    """Return the decision in a self-contained file.

    Raises:
        NotFound: no such file.
        Corrupt: it is not a decision, not the one that the file's name says, or a symbolic link:
            what it leads to lies beside another key and other runs.
    """
    if path.is_symlink():
        raise Corrupt(f"{path}: it is a symbolic link; a decision is a file of its own")
    try:
        with open_file(path) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such decision") from error
    except OSError as error:
        raise Corrupt(f"{path}: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise Corrupt(f"{path}: it is larger than {MAX_BYTES} bytes")
    try:
        recorded = parse_decision(raw)
    except Corrupt as error:
        raise Corrupt(f"{path}: {error.detail}") from error
    if is_id(path.stem, Kind.DECISION) and path.stem != recorded.id:
        raise Corrupt(f"{path}: it holds another decision, {recorded.id}")
    return recorded


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond what a double holds")
    return value
