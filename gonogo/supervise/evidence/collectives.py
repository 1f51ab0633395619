"""Say in which collective a run stands and for whom the others wait, by flight records. Pure.

The front of a rank in a process group is its first collective that has not ended. A rank waits for
each member of the group whose front is lower, or that has not entered the front. With NCCL the host
enqueues collectives long before the device reaches them, so a pending entry alone names nobody.

| rule, in this order | who is named |
|---|---|
| `disagree` | callers differ in operation, shape or dtype; one rank against two or more (`only`) |
| `unfinished` (NCCL) | the device of a rank has not ended what its peers have ended |
| `only` (not NCCL) | a rank alone entered its collective, and all others stand elsewhere |
| `behind` | others wait for the rank, and it waits for nobody |

With NCCL nobody is named while a rank still works, by the times in the dumps. With other backends
nobody is named by the last two rules unless every rank has answered.

Not covered: a kernel that never ends between two collectives. A link that breaks in the middle of a
collective. A rank that waits for a message, or on the host for another one: nobody looks behind it.
Two faults at once. Dumps of active calls alone. With NCCL, one collective too many in a group of
its own.

The method follows nvidia-resiliency-ext (attribution/trace_analyzer) and
torch.distributed.flight_recorder.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gonogo.contract.observation import Dump, Entry, Standing
from gonogo.contract.stack_trace import ranks_text

BACKENDS = frozenset({"nccl", "ncclx", "rccl", "rcclx", "xccl", "hccl", "mccl"})
"""Backends whose host runs ahead of the device."""
QUIET_S = 5.0
"""A run in which some rank enqueued or ended a collective more recently still works."""
_ALL_RANKS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE
)
"""Collectives that end nowhere before every rank has entered them."""
_UNEVEN = re.compile(r"all_?to_?all|(?<!all_)(?<!all)gather|(?<!reduce_)scatter|_v")
"""Operations whose ranks may bring different shapes."""

_Front = tuple[int, bool]
"""Number of a collective, and whether it was entered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """One process group."""

    name: str
    title: str
    members: tuple[int, ...]
    calls: Mapping[int, Mapping[int, Entry]]
    """Rank → number of a collective → entry."""
    fronts: Mapping[int, _Front]
    """Rank → front; without the ranks in `cut`."""
    cut: frozenset[int]
    """Ranks whose first pending collective may be missing in their dump."""
    absent: tuple[int, ...]
    """Members that answered and have entered nothing here."""

    def waiting(self) -> list[int]:
        """Return the ranks that have entered their front."""
        return [rank for rank, front in self.fronts.items() if front[1]]

    def at(self, rank: int) -> Entry:
        """Return the pending entry of a rank that waits."""
        return self.calls[rank][self.fronts[rank][0]]


def analyse(dumps: Mapping[int, Dump], world_size: int) -> Standing | None:
    """Return where the run stands; None if no dump has entries."""
    heard = {rank: dump for rank, dump in sorted(dumps.items()) if dump.error is None}
    ahead = any(entry.backend in BACKENDS for dump in heard.values() for entry in dump.entries)
    if ahead:
        heard = {rank: _of_device(dump) for rank, dump in heard.items()}
    heard = {rank: dump for rank, dump in heard.items() if dump.entries}
    if not heard:
        return None
    unanswered = [rank for rank in range(world_size) if rank not in heard]
    found = _analyse(heard, ahead=ahead, complete=not unanswered)
    text = f"{found.text}; no answer from {ranks_text(unanswered)}" if unanswered else found.text
    return found.model_copy(update={"unanswered": unanswered, "text": text})


def _analyse(heard: Mapping[int, Dump], *, ahead: bool, complete: bool) -> Standing:
    quiet_s = _quiet_s(heard) if ahead else None
    if quiet_s is not None and quiet_s < QUIET_S:
        text = f"a collective was enqueued or ended {max(0.0, quiet_s):.1f} s before the dump"
        return Standing(text=f"{text}: the run still works")
    groups = list(_groups(heard))
    found = _disagreement(groups) or (_unfinished(groups) if ahead else None)
    if found is not None:
        return found
    alone = _alone(groups, heard) if complete and not ahead else None
    if alone is not None:
        only = alone.waiting()[0]
        found = _describe(alone, [])
        text = f"rank {only} alone{found.text.removeprefix(f'rank {only}')}"
        text += ": one too many there, or skipped by the others"
        return found.model_copy(update={"only": only, "text": text})
    behind = _behind(groups, heard, ahead=ahead) if ahead or complete else []
    group = _most_telling(groups, behind)
    if group is None:
        return Standing(text="every collective that was entered has ended")
    return _describe(group, behind).model_copy(update={"behind": behind})


def _of_device(dump: Dump) -> Dump:
    """Return a dump without the entries of other backends."""
    kept = [entry for entry in dump.entries if entry.backend in BACKENDS]
    return dump.model_copy(update={"entries": kept})


def _quiet_s(heard: Mapping[int, Dump]) -> float | None:
    """Return for how long no rank has enqueued or ended anything; None: no times are recorded."""
    quiet = []
    for dump in heard.values():
        latest = max(
            max(row.time_created_ns, row.time_discovered_completed_ns or 0) for row in dump.entries
        )
        if dump.ts > 0 and latest > 0:
            quiet.append(dump.ts - latest / 1e9)
    return min(quiet, default=None)


def _groups(heard: Mapping[int, Dump]) -> Iterator[_Group]:
    """Yield the process groups. Groups of one name with other ranks are separate groups."""
    found: dict[tuple[str, tuple[int, ...]], dict[int, dict[int, Entry]]] = {}
    titles: dict[str, str] = {}
    for rank, dump in heard.items():
        for entry in dump.entries:
            if not entry.is_p2p:
                key = entry.group, tuple(sorted(set(dump.groups.get(entry.group, ()))))
                found.setdefault(key, {}).setdefault(rank, {})[entry.collective_seq_id] = entry
                titles.setdefault(entry.group, (entry.process_group[1:] or [""])[0])
    for (name, members), calls in sorted(found.items()):
        cut = frozenset(
            rank
            for rank, of in calls.items()
            if min(of) > 1 and all(entry.stands for entry in of.values())
        )
        yield _Group(
            name=name,
            title=titles[name],
            members=members or tuple(heard),
            calls=calls,
            fronts={rank: _front(of) for rank, of in calls.items() if rank not in cut},
            cut=cut,
            absent=tuple(rank for rank in members or heard if rank in heard and rank not in calls),
        )


def _front(calls: Mapping[int, Entry]) -> _Front:
    seq = min((seq for seq, entry in calls.items() if entry.stands), default=None)
    return (max(calls) + 1, False) if seq is None else (seq, True)


def _disagreement(groups: Sequence[_Group]) -> Standing | None:
    """Return the first pending collective whose callers disagree."""
    odd: set[int | None] = set()
    first: Standing | None = None
    for group in groups:
        pending = (
            [seq for seq, entry in calls.items() if entry.stands] for calls in group.calls.values()
        )
        for seq in sorted({min(seqs) for seqs in pending if seqs}):
            calls = {rank: of[seq] for rank, of in group.calls.items() if seq in of}
            what = _differs(calls)
            if what is not None:
                odd.add(_odd_one(calls, what))
                first = first or _describe_disagreement(group, seq, calls, what)
                break
    only = next(iter(odd)) if len(odd) == 1 else None
    return first and first.model_copy(update={"only": only})


def _differs(calls: Mapping[int, Entry]) -> str | None:
    """Return in what the calls of one collective disagree: op, dtype or shape; else None."""
    entries = list(calls.values())
    ops = {entry.op for entry in entries}
    if len(ops) > 1:
        return "op"
    if len({json.dumps(entry.input_dtypes) for entry in entries}) > 1:
        return "dtype"
    uneven = _UNEVEN.search(entries[0].op.lower())
    if not uneven and len({json.dumps(entry.input_sizes) for entry in entries}) > 1:
        return "shape"
    return None


def _odd_one(calls: Mapping[int, Entry], what: str) -> int | None:
    """Return the rank that calls otherwise than all others, of which there are two or more."""
    kinds: dict[str, list[int]] = {}
    for rank, entry in calls.items():
        said = {"dtype": entry.input_dtypes, "shape": entry.input_sizes}.get(what, entry.op)
        kinds.setdefault(str(said), []).append(rank)
    few, many = min(kinds.values(), key=len), max(kinds.values(), key=len)
    return few[0] if len(kinds) == 2 and len(few) == 1 and len(many) > 1 else None


def _describe_disagreement(
    group: _Group, seq: int, calls: Mapping[int, Entry], what: str
) -> Standing:
    by_text: dict[str, list[int]] = {}
    for rank, entry in sorted(calls.items()):
        by_text.setdefault(_call_text(entry), []).append(rank)
    said = "; ".join(f"{ranks_text(ranks)}: {text}" for text, ranks in by_text.items())
    return Standing(
        seq=seq,
        group=group.name,
        op=calls[min(calls)].op,
        entered=sorted(calls),
        disagree=what,
        text=f"{_name(group, seq)}: the calls disagree in {what}: {said}",
    )


def _unfinished(groups: Sequence[_Group]) -> Standing | None:
    """Return the ranks whose device has not ended what that of a peer has ended."""
    found: dict[int, _Group] = {}
    for group in groups:
        for rank in filter(lambda rank: _is_stuck(group, rank), group.waiting()):
            found.setdefault(rank, group)
    if not found:
        return None
    first = min(found)
    group = found[first]
    entry = group.at(first)
    seq = entry.collective_seq_id
    late = sorted(rank for rank in found if rank in group.fronts and group.fronts[rank][0] <= seq)
    ended = [rank for rank, front in group.fronts.items() if front[0] > seq]
    text = f"{ranks_text(late)} did not end {_name(group, seq, entry)}, which"
    return Standing(
        seq=seq,
        group=group.name,
        op=entry.op,
        entered=sorted({*ended, *late}),
        unfinished=sorted(found),
        text=f"{text} {ranks_text(ended)} ended",
    )


def _is_stuck(group: _Group, rank: int) -> bool:
    """Whether the device of a rank is proven to be stuck in a collective that others have ended.

    A device that dies in a collective may keep peers in it, too. So a single collective is proof
    only if one rank alone is still in it. Two collectives always are: no peer can end the second
    one before all have taken part in the first one.
    """
    seq, own = group.fronts[rank][0], group.calls[rank]
    others = [front[0] for of, front in group.fronts.items() if of != rank]
    span = [own.get(number) for number in range(seq, min(max(others, default=0), seq + 2))]
    if not span or not all(row is not None and _ALL_RANKS.search(row.op) for row in span):
        return False
    alone = len(others) > 1 and len(set(group.members)) > 2 and min(others) > seq
    return len(span) > 1 or alone


def _alone(groups: Sequence[_Group], heard: Mapping[int, Dump]) -> _Group | None:
    """Return the group of the rank that stands alone while every other stands elsewhere.

    If there are several, return the least used group, then that of the oldest collective.
    """
    stands = {rank for group in groups for rank in group.waiting()}
    lonely = [
        group for group in groups if len(group.waiting()) == 1 and _describe(group, []).missing
    ]
    if not lonely or stands != heard.keys():
        return None

    def age(group: _Group) -> tuple[int, int]:
        entry = group.at(group.waiting()[0])
        return entry.collective_seq_id, entry.time_created_ns

    return min(lonely, key=age)


def _behind(groups: Sequence[_Group], heard: Mapping[int, Dump], *, ahead: bool) -> list[int]:
    """Return the ranks for which others surely wait, and that wait for nobody."""
    awaited: set[int] = set()
    waiting = {
        rank
        for rank, dump in heard.items()
        if any(entry.is_p2p and entry.stands for entry in dump.entries)
    }
    for group in groups:
        waiting |= group.cut
        for rank in group.waiting():
            own = group.fronts[rank]
            binds = not ahead or _ALL_RANKS.search(group.at(rank).op) is not None
            for member in {*group.members} - {rank}:
                front = group.fronts.get(member)
                late = own[0] == 1 if front is None else front < own
                if late and binds:
                    awaited.add(member)
                # if all have come, any of them may hold the others
                if front is None or late or front == own == min(group.fronts.values()):
                    waiting.add(rank)
    return sorted((awaited & heard.keys()) - waiting)


def _most_telling(groups: Sequence[_Group], late: Collection[int]) -> _Group | None:
    """Return the group in which most of the late ranks are missing, then the most wait."""
    waiting = [group for group in groups if group.waiting()]

    def weight(group: _Group) -> tuple[int, int, int, str]:
        missing = {*late} & {*group.members} - {*group.waiting()}
        created = min(group.at(rank).time_created_ns for rank in group.waiting())
        return -len(missing), -len(group.waiting()), created, group.name

    return min(waiting, key=weight, default=None)


def _describe(group: _Group, behind: Sequence[int]) -> Standing:
    """Return the collective in which a group stands, and its sentence."""
    seq = max(group.fronts[rank][0] for rank in group.waiting())
    entry = next(group.at(rank) for rank in group.waiting() if group.fronts[rank][0] == seq)
    entered = sorted(rank for rank, calls in group.calls.items() if seq in calls)
    late = [rank for rank, front in group.fronts.items() if front[0] <= seq]
    missing = sorted({*late, *(group.absent if seq == 1 else ())} - {*entered})
    text = f"{ranks_text(entered)} entered {_name(group, seq, entry)}"
    text += f"; {ranks_text(missing)} did not" if missing else ", and it has not ended"
    if more := [rank for rank in behind if rank not in missing]:
        text += f"; others wait for {ranks_text(more)}"
    return Standing(
        seq=seq, group=group.name, op=entry.op, entered=entered, missing=missing, text=text
    )


def _name(group: _Group, seq: int, entry: Entry | None = None) -> str:
    title = "" if group.title in ("", "undefined") else group.title
    what = "" if entry is None else _call_text(entry)
    inside = ", ".join(filter(None, (title, what)))
    return f"collective {seq} of group {group.name}" + (f" ({inside})" if inside else "")


def _call_text(entry: Entry) -> str:
    """Return a call in words: `all_reduce 4×1024 BFloat16`."""
    shapes = " ".join("×".join(map(str, size)) for size in entry.input_sizes if size)
    dtypes = " ".join(sorted({str(dtype) for dtype in entry.input_dtypes}))
    return " ".join(filter(None, (entry.op, shapes, dtypes)))
