"""What did one run run? Flat paths: as it was ordered, and as its processes told it.

    {"train.batch.global_seqs": 4, "env.NSA_USE_FLASH": "1", "command.--lr": "3e-4"}

Where the order itself is not at hand, its rules and the digest of its configuration stand for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from gonogo.contract.facts import Facts
from gonogo.contract.order import Order
from gonogo.contract.rules import Rules

CONFIG = "config_digest"
"""The path that stands for a whole training configuration."""
Paths = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run was told to run, and what it told that it is."""

    ordered: Paths | None = None
    """Paths of the order; None where only its rules are at hand."""
    by_rules: Paths = field(default_factory=dict)
    """The same as far as rules and facts know it."""
    told: Paths = field(default_factory=dict)
    """Identity as every rank told it: `git_sha`, `env.NSA_…`, …; unsaid fields are left out."""


def build_ran(facts: Facts, rules: Rules, order: Order | None) -> Ran:
    """Return what a run ran, by its facts and rules and, where it is at hand, its order."""
    digest = facts.config_digest or rules.identity.config_digest
    return Ran(
        ordered=None if order is None else dict(_ordered(order)),
        by_rules={
            CONFIG: digest,
            "world_size": rules.world_size,
            "profile": rules.profile,
            "steps": rules.steps,
            "resume_step": rules.first_step - 1,
            **{f"env.{key}": value for key, value in (rules.identity.nsa_env or {}).items()},
        },
        told=_told(facts),
    )


def _ordered(order: Order) -> Iterator[tuple[str, JsonValue]]:
    train = {key: value for key, value in order.train.items() if key != "steps"}
    yield from _leaves("train", train)
    yield from _leaves("env", order.env)
    yield from _command(order.command or ())
    yield from _leaves("checkpoint", order.checkpoint.model_dump(mode="json"))
    yield from _leaves("heartbeat", order.heartbeat.model_dump(mode="json"))
    for name in ("entry", "cwd", "init_from", "profile", "steps", "world_size", "fault"):
        yield name, getattr(order, name)
    yield "resume_step", 0 if order.resume_from is None else order.resume_from.step


def _leaves(path: str, value: Any) -> Iterator[tuple[str, JsonValue]]:
    """Yield the values of nested mappings by their dotted paths; a list is one value."""
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _leaves(f"{path}.{key}", value[key])
    elif not isinstance(value, Mapping):
        yield path, value


def _command(words: Sequence[str]) -> Iterator[tuple[str, JsonValue]]:
    """Yield a command's options by their names, its other words by their place.

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
    """Return what every rank told alike; where ranks told different things, all of them."""
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
            yield "env", True  # says that the environment was told, whatever is in it
            yield from ((f"env.{key}", text) for key, text in value.items())
        else:
            yield name, value
