"""Where do the ranks stand? Their stacks, grouped, so that 64 of them become two lines.

Pure. A stack listing is what the worker's reader writes: threads at the margin, the main thread
first, frames indented below it, innermost first. Two stacks are equal when their main threads'
frames are, but for what differs by chance: addresses, offsets, ids of threads and processes.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

FRAMES_SHOWN = 16
_NOISE = (
    (re.compile(r"\s+"), " "),  # first: what follows begins at each blank
    (re.compile(r" ?\+?\b0x[0-9a-fA-F]+"), ""),
    (re.compile(r"\b(pid|tid|thread|Thread)([-_ =:]*)\d+\b"), r"\1\2N"),
)
_NO_FRAMES = "no stack could be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks whose main threads stand in the same place."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    """Innermost first; empty where no stack could be read."""
    problem: str = ""
    """Why there are no frames."""

    def line(self) -> str:
        """Return the group on one line: who, in which frame, called by whom."""
        if not self.frames:
            return f"{ranks_text(self.ranks)}: {self.problem or _NO_FRAMES}"
        return f"{ranks_text(self.ranks)}: {' < '.join(self.frames[:3])}"

    def listing(self) -> str:
        """Return the group with its frames, one on a line, cut when there are many."""
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
    """Return the frames of a listing's first thread, without what differs by chance."""
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


def ranks_text(ranks: Collection[int]) -> str:
    """Return ranks in words: `rank 1`, `ranks 0, 2-63`."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = list(_span_texts(spans))
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {', '.join(texts)}"


def _span_texts(spans: Iterable[list[int]]) -> Iterable[str]:
    for first, last in spans:
        yield str(first) if first == last else f"{first}-{last}"


def _plain(line: str) -> str:
    for pattern, instead in _NOISE:
        line = pattern.sub(instead, line)
    return line.strip()


def _problem(listing: str) -> str:
    """Return the first words of a listing without frames: why a reader found nothing."""
    first = next((line for line in listing.splitlines() if line.strip()), "")
    return _plain(first)[:200]
