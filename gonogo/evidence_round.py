"""Order the files of an evidence round, and put them into words. Pure.

The collectives come first, then the places of the ranks, then the stacks: the culprit's first, and
equal stacks as one group. Stacks are equal if the frames of their main threads are, without
addresses, offsets, and ids of threads and processes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
_NOISE = (
    (re.compile(r"\s+"), " "),
    (re.compile(r" ?\+?\b0x[0-9a-fA-F]+"), ""),
    (re.compile(r"\b(pid|tid|thread|Thread)([-_ =:]*)\d+\b"), r"\1\2N"),
)
_NO_FRAMES = "no stack could be read"


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


def describe_round(texts: Mapping[str, str], culprit: int | None = None) -> str:
    """Return a round in words: the collectives, the places, then the groups of stacks.

    Args:
        texts: path of a file in the round → its text.
        culprit: the rank that a finding names.
    """
    return _describe(texts, culprit, whole=True)


def summarise_round(texts: Mapping[str, str], culprit: int | None = None) -> list[str]:
    """Return a round as `describe_round` does, each group of stacks on one line."""
    return _describe(texts, culprit, whole=False).splitlines()


def _describe(texts: Mapping[str, str], culprit: int | None, *, whole: bool) -> str:
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
    places = describe_places({rank: parse_frames(text) for rank, text in listings.items()})
    groups = group_stacks(listings, culprit)
    parts += [places] if places else []
    return "\n".join([*parts, *(group.listing() if whole else group.line() for group in groups)])


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks whose main threads stand in the same place."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    """Innermost first; empty if no stack could be read."""
    problem: str = ""
    """Why there are no frames."""

    def line(self) -> str:
        """Return the group on one line: ranks and innermost frames."""
        if not self.frames:
            return f"{ranks_text(self.ranks)}: {self.problem or _NO_FRAMES}"
        return f"{ranks_text(self.ranks)}: {' < '.join(self.frames[:3])}"

    def listing(self) -> str:
        """Return the group with its frames, one on a line."""
        head = f"{ranks_text(self.ranks)}:"
        if not self.frames:
            return f"{head} {self.problem or _NO_FRAMES}"
        more = ["    …"] if len(self.frames) > FRAMES_SHOWN else []
        return "\n".join([head, *(f"    {row}" for row in self.frames[:FRAMES_SHOWN]), *more])


def group_stacks(listings: Mapping[int, str], culprit: int | None = None) -> list[StackGroup]:
    """Return the groups of equal stacks: the culprit's first, then the smallest.

    Args:
        listings: rank → its stack listing.
        culprit: the rank that a finding names.
    """
    groups: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for rank, text in sorted(listings.items()):
        frames = main_frames(text)
        problem = "" if frames else _problem(text)
        groups.setdefault((frames, problem), []).append(rank)
    found = [
        StackGroup(ranks=tuple(ranks), frames=frames, problem=problem)
        for (frames, problem), ranks in groups.items()
    ]
    return sorted(found, key=lambda row: (culprit not in row.ranks, len(row.ranks), row.ranks))


def main_frames(listing: str) -> tuple[str, ...]:
    """Return the frames of a listing's first thread, without addresses and ids."""
    frames: list[str] = []
    threads = 0
    for line in listing.splitlines():
        if line and not line[0].isspace():
            threads += 1
            if threads > 1:
                break
        elif line.strip():
            frames.append(_plain(line))
    return tuple(frames)


def _plain(line: str) -> str:
    for pattern, instead in _NOISE:
        line = pattern.sub(instead, line)
    return line.strip()


def _problem(listing: str) -> str:
    """Return the first words of a listing without frames."""
    first = next((line for line in listing.splitlines() if line.strip()), "")
    return _plain(first)[:200]
