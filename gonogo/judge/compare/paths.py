"""What really differed between the variants? Paths of the orders, confirmed or denied by the runs.

    {"train.batch.global_seqs": 4, "env.NSA_USE_FLASH": "1", "command.--lr": "3e-4"}

Different orders prove nothing: a program may ignore a variable. The processes report what they are,
and that decides. A path that they report alike is *denied* and does not count as a difference.
A commit or a device that differs without an order is listed too. Seeds belong to the repeat, not
to the variant. If an order is missing, its rules and the digest of its configuration replace it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from gonogo.contract.campaign import DifferingPath, PathEvidence
from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.facts import Facts
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order, Rules

CONFIG = "config_digest"
"""The path that stands for a whole training configuration."""
Paths = Mapping[str, JsonValue]
_IDENTITY = frozenset(Identity.model_fields) - {CONFIG, "nsa_env"}
_FOLLOW_FROM_CONFIG = frozenset({"params", "tokens_per_step"})
"""What the processes report of a configuration under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What was ordered of a run, and what its processes reported."""

    ordered: Paths | None = None
    """Paths of the order; None if only its rules are at hand."""
    by_rules: Paths = field(default_factory=dict)
    """The same, as far as rules and facts hold it."""
    told: Paths = field(default_factory=dict)
    """Identity as every rank reported it: `git_sha`, `env.NSA_…`, …"""


def build_ran(facts: Facts, rules: Rules, order: Order | None) -> Ran:
    """Return what a run ran, by its facts, its rules and its order."""
    digest = facts.config_digest or rules.identity.config_digest
    return Ran(
        ordered=None if order is None else dict(_order_paths(order)),
        by_rules={
            CONFIG: digest,
            "world_size": rules.world_size,
            "profile": rules.profile,
            "steps": rules.steps,
            **{f"env.{key}": value for key, value in (rules.identity.nsa_env or {}).items()},
        },
        told=_told(facts),
    )


def _order_paths(order: Order) -> Iterator[tuple[str, JsonValue]]:
    train = {key: value for key, value in order.train.items() if key != "steps"}
    yield from _leaves("train", train)
    yield from _leaves("env", order.env)
    yield from _command(order.command or ())
    yield from _leaves("checkpoint", order.checkpoint.model_dump(mode="json"))
    yield from _leaves("heartbeat", order.heartbeat.model_dump(mode="json"))
    for name in ("entry", "cwd", "init_from", "profile", "steps", "world_size", "fault"):
        yield name, getattr(order, name)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, JsonValue]]:
    """Yield the values of nested mappings by their dotted paths; a list is one value."""
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _leaves(f"{path}.{key}", value[key])
    elif not isinstance(value, Mapping):
        yield path, value


def _command(words: Sequence[str]) -> Iterator[tuple[str, JsonValue]]:
    """Yield a command's options by name, its other words by position.

    `train.py --lr 3e-4 --fast` is `command.0: train.py`, `command.--lr: 3e-4`,
    `command.--fast: true`.
    """
    place, waiting = 0, None
    for word in words:
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            if waiting is not None:
                yield f"command.{waiting}", True
            name, equals, value = word.partition("=")
            waiting = None if equals else name
            if equals:
                yield f"command.{name}", value
        elif waiting is not None:
            yield f"command.{waiting}", word
            waiting = None
        else:
            yield f"command.{place}", word
            place += 1
    if waiting is not None:
        yield f"command.{waiting}", True


def _told(facts: Facts) -> dict[str, JsonValue]:
    """Return what every rank reported; a list of values if ranks differ."""
    found: dict[str, list[JsonValue]] = {}
    for rank in sorted(facts.identity, key=int):
        for path, value in _said(facts.identity[rank].said()):
            found.setdefault(path, []).append(value)
    alike = {
        path: values[0] if all(value == values[0] for value in values) else values
        for path, values in found.items()
        if len(values) == len(facts.identity)
    }
    return dict(sorted(alike.items()))


def _said(identity: Mapping[str, Any]) -> Iterator[tuple[str, JsonValue]]:
    for name, value in identity.items():
        if name == "nsa_env":
            yield "env", True  # shows that the environment was reported, even if it is empty
            yield from ((f"env.{key}", text) for key, text in value.items())
        else:
            yield name, value


def find_paths(variants: Mapping[str, Sequence[Ran]]) -> list[DifferingPath]:
    """Return every path in which variants differ, by name."""
    whole = all(_all_known(rows) for rows in variants.values())
    ordered = {name: _ordered_of(rows, whole=whole) for name, rows in variants.items()}
    told = {name: [row.told for row in rows] for name, rows in variants.items()}
    found = {
        path: DifferingPath(path=path, values=values, evidence=_evidence(path, told))
        for path, values in _differing(ordered)
    }
    explained = {path.rpartition(".")[2] for path in found}
    if any(path in (CONFIG, "steps") or path.startswith("train.") for path in found):
        explained |= _FOLLOW_FROM_CONFIG
    for path, values in _differing(told):
        # a digest of the configuration only confirms what was ordered: it differs by the seed, too
        if path == CONFIG or path in found or path in explained or not _everybody_told(path, told):
            continue
        found[path] = DifferingPath(
            path=path, values=values, evidence=PathEvidence.TOLD, ordered=False
        )
    return [found[path] for path in sorted(found)]


def ordered_alike(rows: Sequence[Ran]) -> bool:
    """Say whether several runs have the same order, the seed included."""
    known = _ordered_of(rows, whole=_all_known(rows))
    return len(known) > 1 and all(row == known[0] for row in known)


def _all_known(rows: Iterable[Ran]) -> bool:
    return all(row.ordered is not None for row in rows)


def _ordered_of(rows: Sequence[Ran], *, whole: bool) -> list[Paths]:
    """Return the paths of the orders, or of the rules if an order is missing."""
    return [row.ordered if whole and row.ordered is not None else row.by_rules for row in rows]


def _is_seed(path: str) -> bool:
    return path.rpartition(".")[2].lstrip("-") == "seed"


def _values(rows: Iterable[Paths], path: str) -> list[JsonValue]:
    """Return the different values of a path in a stable order; None: not set."""
    found = {canonical_bytes(row.get(path)): row.get(path) for row in rows}
    return [found[key] for key in sorted(found)]


def _differing(
    rows: Mapping[str, Sequence[Paths]],
) -> Iterator[tuple[str, dict[str, list[JsonValue]]]]:
    """Yield the paths of which variants have different sets of values."""
    paths = {path for others in rows.values() for row in others for path in row}
    for path in sorted(paths):
        if _is_seed(path):
            continue
        values = {name: _values(others, path) for name, others in rows.items()}
        if len({canonical_bytes(row) for row in values.values()}) > 1:
            yield path, values


def _evidence(path: str, told: Mapping[str, Sequence[Paths]]) -> PathEvidence:
    """Return what shows that an ordered path differs."""
    telling = _telling(path)
    if telling is None or not _everybody_told("env" if path.startswith("env.") else telling, told):
        return PathEvidence.ORDERED
    values = {canonical_bytes(_values(rows, telling)) for rows in told.values()}
    return PathEvidence.TOLD if len(values) > 1 else PathEvidence.DENIED


def _telling(path: str) -> str | None:
    """Return under which name processes report an ordered path; None if they do not.

    A process reports its NSA_* variables, dimensions by their own names, and the digest of the
    whole configuration.
    """
    last = path.rpartition(".")[2]
    if path.startswith("env."):
        return path if last.startswith("NSA_") else None
    if path.startswith("train.") or path in _IDENTITY:
        return last if last in _IDENTITY else CONFIG
    return CONFIG if path == CONFIG else None


def _everybody_told(path: str, told: Mapping[str, Sequence[Paths]]) -> bool:
    if path.startswith("env."):
        path = "env"
    return all(path in row for rows in told.values() for row in rows)
