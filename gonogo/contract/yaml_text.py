"""Read YAML by the core schema of YAML 1.2, with the line of every key.

PyYAML alone follows YAML 1.1: there `1e-4` is a text, `on` is true, `010` is eight, and the last of
two equal keys stays. Here keys are unique texts, and an alias is a copy. Tags are refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.composer import Composer

from gonogo.contract.errors import Problem, Rejected

Location = tuple[str | int, ...]  # Keys and positions from the top.

_MOST_VALUES = 100_000
_DEEPEST = 64
_LONGEST_NUMBER = 400
_TAG = "tag:yaml.org,2002:"
_PLAIN = "plain"  # Tag of a scalar without quotes.
_CORE = re.compile(
    r"(?P<null>~|null|Null|NULL|)"
    r"|(?P<true>true|True|TRUE)|(?P<false>false|False|FALSE)"
    r"|(?P<int>[-+]?[0-9]+)|0o(?P<octal>[0-7]+)|0x(?P<hex>[0-9a-fA-F]+)"
    r"|(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
)
_BASES = {"int": 10, "octal": 8, "hex": 16}


_PARSER: Any = yaml.cyaml.CParser if yaml.__with_libyaml__ else yaml.SafeLoader  # type: ignore[attr-defined]


class _Loader(Composer, _PARSER):  # type: ignore[misc]
    """Text to nodes, composed in Python: libyaml's composer overflows on a deep text."""

    def __init__(self, text: str) -> None:
        _PARSER.__init__(self, text)
        Composer.__init__(self)

    descend_resolver = ascend_resolver = lambda *_: None

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """Return the tag of a node without one."""
        if kind is not yaml.ScalarNode:
            return ""
        return _PLAIN if implicit[0] else f"{_TAG}str"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML text as data, with the lines of its values."""

    data: Any
    lines: Mapping[Location, int] = field(default_factory=dict)
    """Place of a key or item → its line."""


def parse_yaml(text: str | bytes) -> Any:
    """Return the data in a YAML text; raises as `parse_document`."""
    return parse_document(text).data


def parse_document(text: str | bytes) -> Document:
    """Return the data in a YAML text or its UTF-8 bytes, with lines, or raise `Rejected`."""
    try:
        whole = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _rejected(f"not YAML: no UTF-8 ({error.reason})", line) from error
    reading = _Reading()
    node = _compose(whole)
    data = None if node is None else reading.value(node, ())
    return Document(data=data, lines=reading.lines)


def _compose(text: str) -> Any:
    try:
        return _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(filter(None, (error.context, error.problem)))
        last = max(1, len(text.splitlines()))  # libyaml counts the end of a text as a line
        line = None if mark is None else min(mark.line + 1, last)
        raise _rejected(f"not YAML: {words}", line) from error
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise _rejected(f"not YAML: {' '.join(str(error).split())}", None) from error
    except RecursionError as error:
        raise _rejected(f"more than {_DEEPEST} levels", 1) from error


def _rejected(words: str, line: int | None) -> Rejected:
    where = "" if line is None else f"line {line}: "
    return Rejected(f"{where}{words}", problems=(Problem(path="", message=words, line=line),))


def _refused(words: str, node: Any) -> Rejected:
    return _rejected(words, node.start_mark.line + 1)


class _Reading:
    """Nodes to data."""

    def __init__(self) -> None:
        self.lines: dict[Location, int] = {}
        self._values = 0

    def value(self, node: Any, place: Location) -> Any:
        """Return the value of a node, and note the lines in it."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise _refused(f"more than {_MOST_VALUES} values", node)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if len(place) >= _DEEPEST:
            raise _refused(f"more than {_DEEPEST} levels", node)
        mapping = isinstance(node, yaml.MappingNode)
        if node.tag not in ("", f"{_TAG}{'map' if mapping else 'seq'}"):
            raise _refused(f"the tag {node.tag!r} is not read here", node)
        return self._mapping(node, place) if mapping else self._sequence(node, place)

    def _sequence(self, node: Any, place: Location) -> list[Any]:
        found = []
        for number, item in enumerate(node.value):
            self.lines[*place, number] = item.start_mark.line + 1
            found.append(self.value(item, (*place, number)))
        return found

    def _mapping(self, node: Any, place: Location) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for named, item in node.value:
            key = self.value(named, place)
            if not isinstance(key, str):
                raise _refused(f"found the key {key!r}; expected a text (quote it)", named)
            if key in found:
                first = self.lines[*place, key]
                raise _refused(f"second {key!r}; the first is in line {first}", named)
            self.lines[*place, key] = named.start_mark.line + 1
            found[key] = self.value(item, (*place, key))
        return found


def _scalar(node: Any) -> Any:
    """Return a scalar: a plain one by the core schema, a quoted one as its text."""
    text: str = node.value
    if node.tag not in (_PLAIN, f"{_TAG}str"):
        raise _refused(f"the tag {node.tag!r} is not read here", node)
    match = _CORE.fullmatch(text) if node.tag == _PLAIN else None
    if match is None or match.lastgroup is None:
        return text
    kind, digits = match.lastgroup, match[match.lastgroup]
    if len(digits) > _LONGEST_NUMBER:
        raise _refused(f"a number of {len(digits)} characters", node)
    if kind == "null":
        return None
    if kind in ("true", "false"):
        return kind == "true"
    if kind == "float":
        return float(digits.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return int(digits, _BASES[kind])
