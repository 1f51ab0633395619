"""Which findings can no longer be made again? Those of detectors whose rule has changed since.

A run keeps the versions of the rules that watched it, in its order. Where this code has another
version of a rule, or the package that brought it is not installed, its findings are left out of the
comparison on both sides, and that is said; all else is compared as ever.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gonogo.contract.finding import Severity
from gonogo.watch.registry import failed_text, missing_text, present

Json = Mapping[str, Any]


def not_installed(rules: Json, recorded: Json, found: Json) -> list[str]:
    """Return the detectors of the rules that were at hand then or are now, but not both.

    Args:
        rules: recorded; they name the detectors that watched.
        recorded: facts of the decision.
        found: those of today.
    """
    named = rules.get("detectors")
    if not isinstance(named, Mapping):
        return []
    heads = {missing_text(str(name)): str(name) for name in named}
    then, now = (
        {name for head, name in heads.items() if any(map(_begins(head), _problems(facts)))}
        for facts in (recorded, found)
    )
    return sorted(then ^ now)


def _begins(head: str) -> Callable[[str], bool]:
    return lambda text: text.startswith(head)


def _problems(facts: Json) -> list[str]:
    watch = facts.get("watch")
    return list(watch.get("problems", [])) if isinstance(watch, Mapping) else []


def changed_rules(rules: Json) -> list[str]:
    """Return the detectors that watched the run by a rule that is not there any more."""
    named = rules.get("detectors")
    if not isinstance(named, Mapping):
        return []
    here = present()
    return sorted(str(name) for name, version in named.items() if here.get(name) != version)


def without_findings_of(
    names: Collection[str], recorded: Json, found: Json
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return recorded facts and those of today without what these detectors found, or missed.

    What comes after a halt of one of them is left out, too: a halt that was not found lets others
    find what it caused.
    """
    rows = [facts.get("findings", []) for facts in (recorded, found)]
    halts = [_before_halt(names, of) for of in rows]
    kept = [[row for row in of if row.get("detector") not in names] for of in rows]
    told = [count for count in halts if count is not None]
    left, right = (
        {
            **facts,
            "findings": of[: min(told)] if told else of,
            "unrecorded": [] if told else _without(facts.get("unrecorded", []), names, _FILE),
            "not_observed": _without(facts.get("not_observed", []), names, ("{}: ",)),
            "watch": _without_missing(facts, names),
        }
        for facts, of in zip((recorded, found), kept, strict=True)
    )
    return left, right


_FILE = ("findings.jsonl lacks {} (", "findings.jsonl has {} (")


def _without_missing(facts: Json, names: Collection[str]) -> Any:
    """Return the facts of the watch without the problems that these detectors were."""
    watch = facts.get("watch")
    if not isinstance(watch, Mapping):
        return watch
    theirs = tuple(text(name) for name in names for text in (missing_text, failed_text))
    return {**watch, "problems": [row for row in _problems(facts) if not row.startswith(theirs)]}


def _before_halt(names: Collection[str], rows: Sequence[Json]) -> int | None:
    """Return how many findings of others come before the first halt of `names`, if there is one."""
    others = 0
    for row in rows:
        if row.get("detector") not in names:
            others += 1
        elif row.get("severity") == Severity.HALT:
            return others
    return None


def _without(texts: Sequence[str], names: Collection[str], heads: Sequence[str]) -> list[str]:
    theirs = tuple(head.format(name) for name in names for head in heads)
    return [text for text in texts if not text.startswith(theirs)]
