"""What really differed between the variants? Paths of the orders, confirmed or denied by the runs.

That two orders differ proves nothing: a variable may be read by nobody. Where the processes told
what they are, their word decides; a path that they told alike is *denied* and does not count as
differing. What they told differently without any order (another commit, another device) is listed
too. Seeds belong to the repeat, not to the variant, and are no path.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.comparison import DifferingPath, PathEvidence
from gonogo.contract.heartbeat import Identity
from gonogo.judge.compare.ran import CONFIG, Paths, Ran

_IDENTITY = frozenset(Identity.model_fields) - {CONFIG, "nsa_env"}
RESUMED = "resume_step"
"""The ordered path that says nothing of what a run is."""
_FOLLOW_FROM_CONFIG = frozenset({CONFIG, "params", "tokens_per_step"})
"""What the configuration makes different: the same thing told again."""
Variants = Mapping[str, Sequence[Ran]]
"""Variant → what each of its runs ran."""


def find_paths(variants: Variants) -> list[DifferingPath]:
    """Return every path in which some variant is not the first one, by name."""
    ordered = {name: _ordered(rows, variants) for name, rows in variants.items()}
    told = {name: [row.told for row in rows] for name, rows in variants.items()}
    found = {
        path: DifferingPath(path=path, values=values, evidence=_evidence(path, told))
        for path, values in _differing(ordered)
    }
    explained = {path.rpartition(".")[2] for path in found}
    if any(path in (CONFIG, "steps") or path.startswith("train.") for path in found):
        explained |= _FOLLOW_FROM_CONFIG
    for path, values in _differing(told):
        if path in found or path in explained or not _everybody_told(path, told):
            continue
        if path == CONFIG and _seeds_differ(ordered):
            continue
        found[path] = DifferingPath(
            path=path, values=values, evidence=PathEvidence.TOLD, ordered=False
        )
    return [found[path] for path in sorted(found)]


def uneven_paths(rows: Sequence[Ran]) -> list[str]:
    """Return the paths in which the runs of one variant differ from each other; seeds may."""
    known = _known(rows)
    found = {*_uneven(known)} | {path for path in _uneven([row.told for row in rows])}
    if any(map(_is_seed, {path for row in known for path in row})):
        found.discard(CONFIG)
    return sorted(found - {"env"})


def ordered_alike(rows: Sequence[Ran]) -> bool:
    """Say whether the same was ordered of several runs, the seed included, as far as is known."""
    known = [{**row, RESUMED: None} for row in _known(rows)]
    return len(known) > 1 and all(row == known[0] for row in known)


def _known(rows: Sequence[Ran]) -> list[Paths]:
    """Return what was ordered of one variant's runs, in the one form that is known of them all."""
    if any(row.ordered is None for row in rows):
        return [row.by_rules for row in rows]
    return [row.ordered for row in rows if row.ordered is not None]


def _uneven(rows: Sequence[Paths]) -> Iterator[str]:
    for path in {path for row in rows for path in row}:
        if not _is_seed(path) and len(_values(rows, path)) > 1:
            yield path


def _ordered(rows: Sequence[Ran], variants: Variants) -> list[Paths]:
    """Return what was ordered, in the one form that is known of every run of every variant."""
    if any(row.ordered is None for others in variants.values() for row in others):
        return [row.by_rules for row in rows]
    return [row.ordered for row in rows if row.ordered is not None]


def _is_seed(path: str) -> bool:
    return path.rpartition(".")[2].lstrip("-") == "seed"


def _seeds_differ(ordered: Mapping[str, Sequence[Paths]]) -> bool:
    """Say whether a seed explains that configurations have different digests."""
    rows = [row for others in ordered.values() for row in others]
    seeds = {path for row in rows for path in row if _is_seed(path)}
    return any(len(_values(rows, path)) > 1 for path in seeds)


def _values(rows: Iterable[Paths], path: str) -> list[JsonValue]:
    """Return the different values of a path, in a stable order; None where it is not set."""
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
    """Return who says that an ordered path differs."""
    telling = _telling(path)
    if telling is None or not _everybody_told("env" if path.startswith("env.") else telling, told):
        return PathEvidence.ORDERED
    values = {canonical_bytes(_values(rows, telling)) for rows in told.values()}
    return PathEvidence.TOLD if len(values) > 1 else PathEvidence.DENIED


def _telling(path: str) -> str | None:
    """Return what a process tells of an ordered path; None where it tells nothing.

    A process tells the NSA_* variables that it was given, dimensions and sizes by their own names,
    and the digest of the whole configuration.
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
