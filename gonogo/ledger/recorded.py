"""Reading a recorded decision: the raw document, and the model that reads it.

Digests are taken over the document, unknown fields included. So every change except formatting
changes the hash. A document with two readings (a repeated name, a bare NaN, a number beyond a
double) is refused.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gonogo.contract.canonical import canonical_bytes, digest
from gonogo.contract.decision import DECISION_V, READS_BEFORE, Decision, Verdict
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.wire import Kind, is_id
from gonogo.files import read_plain

Json = Mapping[str, Any]

MAX_BYTES = 256 * 2**20
"""Far beyond any decision."""

UNSEALED = ("hash", "signature")
"""Fields that the hash does not cover: the hash itself, and the signature over it."""

WHOSE = ("run", "attempt")
"""Fields of rules that name the run; two runs with equal rules share one rule digest."""

ABSENT = "(absent)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place at which two values differ."""

    path: str
    recorded: Any
    found: Any
    text: str = ""
    """The whole sentence, if path and values do not say enough."""

    def sentence(self) -> str:
        """Return one sentence that names the place and both values."""
        left, right = shortened(self.recorded), shortened(self.found)
        return self.text or f"{self.path}: recorded {left}, found {right}"


def first_difference(recorded: Any, found: Any, path: str = "") -> Difference | None:
    """Return the first place, keys in order, at which two JSON values differ."""
    if isinstance(recorded, Mapping) and isinstance(found, Mapping):
        keys: list[Any] = sorted(recorded.keys() | found.keys(), key=str)
        pairs = [(key, recorded.get(key, ABSENT), found.get(key, ABSENT)) for key in keys]
    elif isinstance(recorded, list) and isinstance(found, list):
        size = max(len(recorded), len(found))
        pairs = [(i, _at(recorded, i), _at(found, i)) for i in range(size)]
    else:
        same = recorded == found and isinstance(recorded, bool) == isinstance(found, bool)
        return None if same else Difference(path=path, recorded=recorded, found=found)
    for key, left, right in pairs:
        difference = first_difference(left, right, f"{path}.{key}" if path else str(key))
        if difference is not None:
            return difference
    return None


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else ABSENT


def shortened(value: object) -> str:
    """Return a value for a sentence."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def rule_digest(rules: Json) -> str:
    """Return the digest of rules without the run that they name."""
    return digest({name: row for name, row in rules.items() if name not in WHOSE})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDecision:
    """A decision as read or as just sealed."""

    document: Json
    decision: Decision

    @property
    def id(self) -> str:
        """Id of the decision."""
        return self.decision.id

    @property
    def verdict(self) -> Verdict | None:
        """Verdict of the decision."""
        return self.decision.verdict

    @property
    def signed(self) -> bool:
        """Whether the decision claims a signature."""
        return self.decision.key_id is not None or self.decision.signature is not None

    def content_hash(self) -> str:
        """Return the digest that `hash` must be."""
        return digest({name: row for name, row in self.document.items() if name not in UNSEALED})

    def seals(self) -> Difference | None:
        """Return the first digest that does not fit; None if all fit."""
        for name, found in (
            ("rule_digest", rule_digest(self.document.get("rules", {}))),
            ("facts_digest", digest(self.document.get("facts", {}))),
            ("hash", self.content_hash()),
        ):
            recorded = self.document.get(name)
            if recorded != found:
                return Difference(path=name, recorded=recorded, found=found)
        return None


def record_of(document: Json) -> RecordedDecision:
    """Return a decision from its document.

    Raises:
        Corrupt: the document is not a decision, or has a version that this code does not read.
    """
    version = document.get("v", 1)
    if type(version) is not int or version != DECISION_V:
        raise Corrupt(f"not a decision: v is {version!r}, expected {DECISION_V}; {READS_BEFORE}")
    try:
        canonical_bytes(document)
        return RecordedDecision(document=document, decision=Decision.model_validate(document))
    except ValidationError as error:
        raise Corrupt(f"not a decision: {first_error(error)}") from error
    except (UnicodeEncodeError, RecursionError) as error:
        raise Corrupt("not a decision: it has no canonical form") from error


def first_error(error: ValidationError) -> str:
    """Return the first error of a validation: its place and its message."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}"


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
        Corrupt: the file is not a decision, is not the one that its name says, or is a symbolic
            link, whose target lies beside another key and other runs.
    """
    if path.is_symlink():
        raise Corrupt(f"{path}: it is a symbolic link; a decision is a file of its own")
    try:
        with read_plain(path) as stream:
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
