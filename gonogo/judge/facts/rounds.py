"""What does a round of evidence say, and which of its files is looked at first?

Pure: paths and texts in, order and words out. The collectives come first, for they name who strayed
and who is missing; then the stacks, the culprit's before the others'; then logs, heartbeats,
process state, and what machines read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from gonogo.contract.facts import halt_behind
from gonogo.contract.finding import Finding
from gonogo.contract.outcome import Detector, OutcomeCode
from gonogo.judge.facts.stacks import group_stacks

_ORDER = (
    "collectives.txt",
    "stacks",
    "log",
    "torchrun_log",
    "heartbeats",
    "proc",
    "nvidia_smi",
    "collectives",
)
_OF_RANK = re.compile(r"(?P<kind>[a-z_]+)_rank(?P<rank>\d+)\.\w+")
_OF_NODE = re.compile(r"_node\d+$")
COLLECTIVES = "collectives.txt"
_HANGS = frozenset({Detector.STALL, Detector.SECTION_DEADLINE, Detector.ALIVE_LOST})
"""Findings of a process that still stood when its evidence was taken."""


def by_relevance(paths: Iterable[str], culprit: int | None = None) -> list[str]:
    """Return the paths of a round, the most telling first.

    Args:
        paths: of files in a round's folder.
        culprit: the rank that a finding names; its files go before those of its peers.
    """

    def weight(path: str) -> tuple[int, bool, int, str]:
        name = PurePosixPath(path).name
        of_rank = _OF_RANK.fullmatch(name)
        kind = of_rank["kind"] if of_rank else name
        kind = kind if kind in _ORDER else _OF_NODE.sub("", kind.partition(".")[0])
        place = _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
        rank = int(of_rank["rank"]) if of_rank else -1
        return place, rank != culprit, rank, path

    return sorted(paths, key=weight)


def stack_rank(path: str) -> int | None:
    """Return the rank whose stack listing a path names; None for any other file."""
    found = _OF_RANK.fullmatch(PurePosixPath(path).name)
    return int(found["rank"]) if found and found["kind"] == "stacks" else None


def where_it_stood(
    findings: Sequence[Finding], rank: int | None, outcome: OutcomeCode | None = None
) -> str | None:
    """Return the file that says most of a hang: the culprit's stack, else who is in which call.

    A round that follows another one may hold neither; that one's are of the same hang.

    Args:
        findings: of a run, in their order.
        rank: the one that is to blame, where one is.
        outcome: why the run ended, where that is known.
    """
    halt = halt_behind(findings, outcome)
    if halt is None or halt.detector not in _HANGS:
        return None
    at = findings.index(halt)
    rounds = [
        row.evidence
        for row in reversed(findings[: at + 1])
        if row.detector in _HANGS and row.step == halt.step
    ]
    telling = next((round_ for round_ in rounds if any(map(is_told, round_))), rounds[0])
    files = by_relevance(telling, rank)
    own = (path for path in files if rank is not None and stack_rank(path) == rank)
    return next(own, next(iter(files), None))


def is_told(path: str) -> bool:
    """Whether `tell_round` reads a file."""
    return PurePosixPath(path).name == COLLECTIVES or stack_rank(path) is not None


def tell_round(texts: Mapping[str, str], culprit: int | None = None) -> str:
    """Return a round in words: what the collectives say, then the stacks, grouped; else nothing.

    Args:
        texts: path of a file in the round → its text; other files are passed over.
        culprit: the rank that a finding names.
    """
    return _told(texts, culprit, whole=True)


def summarise_round(texts: Mapping[str, str], culprit: int | None = None) -> list[str]:
    """Return a round as `tell_round` does, each group of stacks on one line."""
    return _told(texts, culprit, whole=False).splitlines()


def _told(texts: Mapping[str, str], culprit: int | None, *, whole: bool) -> str:
    parts = [
        text.strip()
        for path, text in texts.items()
        if PurePosixPath(path).name == COLLECTIVES and text.strip()
    ]
    ranks = {path: stack_rank(path) for path in texts}
    listings = {
        rank: texts[path]
        for path, rank in ranks.items()
        if rank is not None and texts[path].strip()
    }
    groups = group_stacks(listings, culprit)
    return "\n".join([*parts, *(group.listing() if whole else group.line() for group in groups)])
