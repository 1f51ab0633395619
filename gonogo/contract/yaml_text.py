"""How is a plan's YAML read? As the core schema of YAML 1.2 reads it, with the line of every key.

    document = parse_document("lr: 1e-4\\nlog: on\\n")
    document.data == {"lr": 0.0001, "log": "on"};  document.lines[("log",)] == 2

PyYAML follows YAML 1.1, where `1e-4` is a text, `on` is true, `010` is eight and `1:30` is ninety,
and it keeps the last of two equal keys: each would change a plan silently. Here libyaml parses
(PyYAML's own parser where it was built without), and this module says what a scalar is. Keys are
texts and unique, since plans travel as JSON; an alias is a copy.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.scanner import Scanner

from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import Problem, Rejected

Location = tuple[str | int, ...]
"""Where a value stands: keys and positions from the top."""

_MOST_VALUES = 100_000
_DEEPEST = 64
_LONGEST_NUMBER = 400
_TAG = "tag:yaml.org,2002:"
_CORE = re.compile(
    r"(?P<null>~|null|Null|NULL|)"
    r"|(?P<true>true|True|TRUE)|(?P<false>false|False|FALSE)"
    r"|(?P<int>[-+]?[0-9]+)|0o(?P<octal>[0-7]+)|0x(?P<hex>[0-9a-fA-F]+)"
    r"|(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
)
_BASES = {"int": 10, "octal": 8, "hex": 16}


class PurePython(Reader, Scanner, Parser):
    """Text to events, by PyYAML itself."""

    def __init__(self, stream: str) -> None:
        Reader.__init__(self, stream)
        Scanner.__init__(self)
        Parser.__init__(self)


_parser: Any = PurePython
if yaml.__with_libyaml__:
    _parser = yaml.cyaml.CParser  # type: ignore[attr-defined]  # the stub hides it


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML text as data, and where each of its values began."""

    data: Any
    lines: Mapping[Location, int] = field(default_factory=dict)
    """Location of a key or an item → its line, from 1; what an alias copied has none."""


def parse_yaml(text: str | bytes) -> Any:
    """Return the data in a YAML text, or in its UTF-8 bytes.

    Raises:
        Rejected: as `parse_document`.
    """
    return parse_document(text).data


def parse_document(text: str | bytes) -> Document:
    """Return the data in a YAML text, or in its UTF-8 bytes, with the line of each key and item.

    Raises:
        Rejected: not YAML, more than one document, a key that is no text or stands twice, a tag
            that is not of the core schema, or more than anybody writes. The problem has the line.
    """
    try:
        whole = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _rejected(f"not YAML: no UTF-8 ({error.reason})", line) from error
    reading = _Reading()
    for event in _events(whole):
        reading.take(event)
    return Document(data=reading.data, lines=reading.lines)


def _events(text: str) -> Iterator[Any]:
    try:
        parser = _parser(text)
        while not isinstance(event := parser.get_event(), yaml.StreamEndEvent):
            yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(filter(None, (error.context, error.problem)))
        last = max(1, len(text.splitlines()))  # libyaml calls the end of a text another line
        line = None if mark is None else min(mark.line + 1, last)
        raise _rejected(f"not YAML: {words}", line) from error
    except ReaderError as error:
        before = text.encode("utf-8", "replace")[: error.position]
        words = f"not YAML: {error.reason}"
        raise _rejected(words, before.count(b"\n") + 1) from error
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise _rejected(f"not YAML: {' '.join(str(error).split())}", None) from error


def _rejected(words: str, line: int | None) -> Rejected:
    where = "" if line is None else f"line {line}: "
    return Rejected(f"{where}{words}", problems=(Problem(path="", message=words, line=line),))


def _refused(words: str, event: Any) -> Rejected:
    return _rejected(words, event.start_mark.line + 1)


@dataclass(slots=True)
class _Open:
    """A sequence or mapping that has begun; `key` is that of the value to come."""

    found: dict[str, Any] | list[Any]
    at: Location
    anchor: str | None
    values_before: int
    key: str | None = None

    def place(self) -> Location:
        """Return where its next value stands."""
        return (*self.at, len(self.found) if self.key is None else self.key)


class _Reading:
    """Events to data, without recursion: how deep a text goes is its writer's choice."""

    def __init__(self) -> None:
        self.data: Any = None
        self.lines: dict[Location, int] = {}
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0
        self._documents = 0

    def take(self, event: Any) -> None:
        """Go on with the next event."""
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
            self._count(1, event)
            self._put(value, event)
            if event.anchor is not None:
                self._anchors[event.anchor] = value, 1
        elif isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            self._begin(event)
        elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            self._end()
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _refused(f"no anchor {event.anchor!r} ends before this", event)
            value, values = self._anchors[event.anchor]
            self._count(values, event)
            self._put(plain_copy(value), event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _refused("a second document begins; expected one", event)

    def _begin(self, event: Any) -> None:
        mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", f"{_TAG}{'map' if mapping else 'seq'}"):
            raise _refused(f"the tag {event.tag!r} is not read here", event)
        if len(self._open) >= _DEEPEST:
            raise _refused(f"more than {_DEEPEST} levels", event)
        before = self._values
        self._count(1, event)
        found: dict[str, Any] | list[Any] = {} if mapping else []
        at = self._open[-1].place() if self._open else ()
        self._put(found, event)
        self._open.append(_Open(found, at, event.anchor, before))

    def _end(self) -> None:
        ended = self._open.pop()
        if ended.anchor is not None:
            self._anchors[ended.anchor] = ended.found, self._values - ended.values_before

    def _put(self, value: Any, event: Any) -> None:
        """Lay a value where it belongs: as the next key, the value of a key, an item, or all."""
        if not self._open:
            self.data = value
            return
        parent = self._open[-1]
        if isinstance(parent.found, dict) and parent.key is None:
            parent.key = self._key(parent, value, event)
            return
        place = parent.place()
        if isinstance(parent.found, list):
            self.lines[place] = event.start_mark.line + 1
            parent.found.append(value)
        else:
            parent.found[str(parent.key)] = value
            parent.key = None

    def _key(self, parent: _Open, value: Any, event: Any) -> str:
        if not isinstance(value, str):
            raise _refused(f"found the key {value!r}; expected a text (quote it)", event)
        place = (*parent.at, value)
        if value in parent.found:
            raise _refused(f"second {value!r}; the first is in line {self.lines[place]}", event)
        self.lines[place] = event.start_mark.line + 1
        return value

    def _count(self, values: int, event: Any) -> None:
        self._values += values
        if self._values > _MOST_VALUES:
            raise _refused(f"more than {_MOST_VALUES} values", event)


def _scalar(event: Any) -> Any:
    """Return what a scalar says: a plain one by the core schema, a quoted one as its text."""
    text: str = event.value
    if event.tag == "!":
        return text
    if event.tag is None:
        return _core(event, text)[1] if event.implicit[0] else text
    wanted = event.tag.removeprefix(_TAG)
    if wanted == "str":
        return text
    kind, value = _core(event, text)
    if wanted not in ("null", "bool", "int", "float") or event.tag == wanted:
        raise _refused(f"the tag {event.tag!r} is not read here", event)
    if kind != wanted and (kind, wanted) != ("int", "float"):
        raise _refused(f"found {text!r}; expected the tagged {wanted}", event)
    return float(value) if wanted == "float" else value


def _core(event: Any, text: str) -> tuple[str, Any]:
    """Return type and value of a plain scalar by the core schema."""
    match = _CORE.fullmatch(text)
    if match is None or match.lastgroup is None:
        return "str", text
    kind, digits = match.lastgroup, match[match.lastgroup]
    if len(digits) > _LONGEST_NUMBER:
        raise _refused(f"a number of {len(digits)} characters", event)
    if kind == "null":
        return "null", None
    if kind in ("true", "false"):
        return "bool", kind == "true"
    if kind == "float":
        return "float", float(digits.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return "int", int(digits, _BASES[kind])
