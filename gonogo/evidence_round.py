"""Order the files of an evidence round, and put them into words. Pure.

The collectives come first, then the places of the ranks, then the stacks: the culprit's first, and
equal stacks as one group.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from gonogo.contract.facts import halt_behind
from gonogo.contract.finding import Finding
from gonogo.contract.outcome import Detector, OutcomeCode
from gonogo.contract.stack_trace import describe_places, parse_frames, ranks_text

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
_HANGS = frozenset(
    {
        Detector.NO_FIRST_HEARTBEAT,
        Detector.STALL,
        Detector.SECTION_DEADLINE,
        Detector.ALIVE_LOST,
    }
)
"""Findings of a process that still stood when its evidence was taken."""
FRAMES_SHOWN = 16
_ADDRESS = re.compile(r"\+?\b0x[0-9a-fA-F]+")


def by_relevance(paths: Iterable[str], culprit: int | None = None) -> list[str]:
    """Return the paths of a round, the most relevant first.

    Args:
        paths: of files in a round's folder.
        culprit: the rank that a finding names.
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
    """Return the rank of a stack listing; None for any other file."""
    found = _OF_RANK.fullmatch(PurePosixPath(path).name)
    return int(found["rank"]) if found and found["kind"] == "stacks" else None


def where_it_stood(
    findings: Sequence[Finding], rank: int | None, outcome: OutcomeCode | None = None
) -> str | None:
    """Return the most relevant file of a hang: the culprit's stack, else the first by relevance.

    Args:
        findings: of a run, in their order.
        rank: the culprit, if known.
        outcome: why the run ended, if known.
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
    telling = next((round_ for round_ in rounds if any(map(is_described, round_))), rounds[0])
    files = by_relevance(telling, rank)
    own = (path for path in files if rank is not None and stack_rank(path) == rank)
    return next(own, next(iter(files), None))


def is_described(path: str) -> bool:
    """Whether `describe_round` reads a file."""
    return PurePosixPath(path).name == COLLECTIVES or stack_rank(path) is not None


def describe_round(
    texts: Mapping[str, str], culprit: int | None = None, *, whole: bool = True
) -> str:
    """Return a round in words: the collectives, the places, then the groups of stacks.

    Args:
        texts: path of a file in the round → its text.
        culprit: the rank that a finding names.
        whole: show all frames; else each group of stacks is one line.
    """
    parts = [
        text.strip()
        for path, text in texts.items()
        if PurePosixPath(path).name == COLLECTIVES and text.strip()
    ]
    listings = {stack_rank(path): text for path, text in sorted(texts.items()) if text.strip()}
    stacks = {rank: parse_frames(text) for rank, text in listings.items() if rank is not None}
    places = describe_places(stacks)
    parts += [places] if places else []
    groups: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
    for rank, frames in sorted(stacks.items()):
        shown = tuple(_ADDRESS.sub("", frame.text()) for frame in frames)
        problem = listings[rank].split("\n", 1)[0][:200]
        groups.setdefault((bool(frames), shown or (problem,)), []).append(rank)
    order = sorted(groups.items(), key=lambda row: (culprit not in row[1], len(row[1]), row[1]))
    for (has_frames, rows), ranks in order:
        if whole and has_frames:
            more = ["…"] if len(rows) > FRAMES_SHOWN else []
            listed = [*rows[:FRAMES_SHOWN], *more]
            parts += [f"{ranks_text(ranks)}:", *(f"    {row}" for row in listed)]
        else:
            parts.append(f"{ranks_text(ranks)}: {' < '.join(rows[:3])}")
    return "\n".join(parts)
