"""Name the rank that the others wait for if collectives are enqueued ahead, as with NCCL. Pure.

The host of each rank enqueues collectives long before the device reaches them, so the first pending
entry names nobody. The front of a rank in a group is its first collective that has not ended. A
rank waits for each member of the group whose front is lower, or that has not enqueued the front.

The rules, in this order:

1. `disagree`: one rank alone calls another operation, shape or dtype than at least two others.
2. `unfinished`: a rank has not ended a collective that its peers have ended. Its device is stuck.
3. `behind`: others wait for the rank, and the rank waits for nobody. Chains of waiting ranks across
   groups are followed to this root.
4. `only`: the rank waits for at least three ranks, and all of these wait for the rank.
5. `silent`: there is no dump of the rank, and every chain ends at a rank without a dump.

No rule applies while a rank of the run still works, by the times in the dumps.

Not covered:

- a kernel that never ends between two collectives, without start times in the recorder
  (TORCH_NCCL_ENABLE_TIMING=1);
- a link that breaks in the middle of a collective, which looks like the device of one rank;
- coalesced messages, whose peers the recorder does not name;
- a rank that waits on the host for another one (a store, a file); two faults at once.

The method follows nvidia-resiliency-ext (attribution/trace_analyzer) and
torch.distributed.flight_recorder.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gonogo.contract.collectives import Dump, Entry, Standing
from gonogo.contract.stack_trace import ranks_text

BACKENDS = frozenset({"nccl", "ncclx", "rccl", "rcclx", "xccl", "hccl", "mccl"})
"""Backends whose host runs ahead of the device."""
QUIET_S = 5.0
"""A run in which some rank enqueued or ended a collective more recently still works."""
_UNANIMOUS = 3
"""So many ranks must contradict a single one before it is named by `only`."""
_ALL_RANKS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE
)
"""Collectives that end nowhere before every rank has entered them."""
_UNEVEN = ("alltoall", "all_to_all", "gather", "scatter", "_v")
"""Operations whose ranks may bring different shapes, except those in _EVEN."""
_EVEN = ("all_gather", "allgather", "reduce_scatter")
_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """The first collective of a group that a rank has not ended."""

    seq: int
    stage: int
    """0: not enqueued, 1: scheduled, 2: started."""

    @property
    def place(self) -> tuple[int, int]:
        return self.seq, self.stage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """One process group and the fronts of its ranks."""

    name: str
    title: str
    members: tuple[int, ...]
    calls: Mapping[int, Mapping[int, Entry]]
    """Rank → number of a collective → entry."""
    fronts: Mapping[int, _Front]
    """Rank → front; a rank without entries in the group, or in `cut`, is missing."""
    cut: tuple[int, ...]
    """Ranks with pending entries only, the first of which the dump may lack."""

    def waiting(self, stage: int = 1) -> list[int]:
        """Return the ranks that have enqueued their front; with stage 2, that have started it."""
        return [rank for rank, front in self.fronts.items() if front.stage >= stage]

    def at(self, rank: int) -> Entry:
        """Return the pending entry of a rank that waits."""
        return self.calls[rank][self.fronts[rank].seq]


@dataclass(slots=True)
class _Waits:
    """Which ranks wait for which."""

    targets: dict[int, set[int]] = field(default_factory=dict)
    """Rank → ranks that it may wait for; a rank without a dump is a target, never a key."""
    sure: dict[int, dict[int, _Group]] = field(default_factory=dict)
    """Rank → ranks that surely wait for it, and the group in which they do."""
    opaque: set[int] = field(default_factory=set)
    """Ranks with a pending message whose peer is not recorded."""

    def add(self, rank: int, target: int, group: _Group | None = None) -> None:
        """Record that a rank may wait for another; with a group: that it surely does."""
        self.targets.setdefault(rank, set()).add(target)
        if group is not None:
            self.sure.setdefault(target, {})[rank] = group


def runs_ahead(dumps: Mapping[int, Dump]) -> bool:
    """Whether a dump holds entries of a backend that enqueues ahead."""
    return any(entry.backend in BACKENDS for dump in dumps.values() for entry in dump.entries)


def analyse_enqueued(dumps: Mapping[int, Dump], world_size: int) -> Standing:
    """Return who the others wait for.

    Args:
        dumps: rank → its dump; at least one has entries of a backend in `BACKENDS`.
        world_size: number of ranks of the run.
    """
    heard = {rank: _of_device(dump) for rank, dump in sorted(dumps.items()) if dump.error is None}
    heard = {rank: dump for rank, dump in heard.items() if dump.entries or dump.groups}
    unanswered = [rank for rank in range(world_size) if rank not in heard]
    if (quiet_s := _quiet_s(heard)) is not None and quiet_s < QUIET_S:
        text = f"a collective was enqueued or ended {max(0.0, quiet_s):.1f} s before the dump"
        return Standing(unanswered=unanswered, text=f"{text}: the run still works")
    groups = list(_groups(heard))
    found = (
        _disagreement(groups)
        or _unfinished(groups)
        or _judge_waits(groups, heard, unanswered, world_size)
    )
    if unanswered and not found.silent:
        found = found.model_copy(
            update={"text": f"{found.text}; no answer from {ranks_text(unanswered)}"}
        )
    return found.model_copy(update={"unanswered": unanswered})


def _of_device(dump: Dump) -> Dump:
    """Return a dump without the entries of other backends."""
    kept = [entry for entry in dump.entries if entry.backend in BACKENDS]
    return dump.model_copy(update={"entries": kept})


def _quiet_s(heard: Mapping[int, Dump]) -> float | None:
    """Return for how long no rank has enqueued or ended anything; None: no times are recorded."""
    quiet = []
    for dump in heard.values():
        times = [
            max(row.time_created_ns, row.time_discovered_completed_ns or 0) for row in dump.entries
        ]
        if dump.ts > 0 and max(times, default=0) > 0:
            quiet.append(dump.ts - max(times) / 1e9)
    return min(quiet, default=None)


def _groups(heard: Mapping[int, Dump]) -> Iterator[_Group]:
    """Yield the process groups. Groups of one name with other ranks are separate groups."""
    found: dict[tuple[str, tuple[int, ...]], dict[int, dict[int, Entry]]] = {}
    titles: dict[str, str] = {}
    for rank, dump in heard.items():
        for entry in dump.entries:
            key = entry.group, tuple(sorted(set(dump.groups.get(entry.group, ()))))
            calls = found.setdefault(key, {}).setdefault(rank, {})
            titles.setdefault(entry.group, (entry.process_group[1:] or [""])[0])
            if not entry.is_p2p:
                calls[entry.collective_seq_id] = entry
    for (name, members), calls_by_rank in sorted(found.items()):
        calls_by_rank = {rank: calls for rank, calls in calls_by_rank.items() if calls}
        cut = tuple(
            rank for rank, calls in calls_by_rank.items() if _is_cut(heard[rank], name, calls)
        )
        yield _Group(
            name=name,
            title=titles[name],
            members=members or tuple(calls_by_rank),
            calls=calls_by_rank,
            fronts={rank: _front(of) for rank, of in calls_by_rank.items() if rank not in cut},
            cut=cut,
        )


def _is_cut(dump: Dump, group: str, calls: Mapping[int, Entry]) -> bool:
    """Whether a dump may lack the first pending collective of a rank in a group."""
    count = sum(entry.group == group for entry in dump.entries)
    return count >= dump.kept and min(calls) > 1 and all(row.stands for row in calls.values())


def _front(calls: Mapping[int, Entry]) -> _Front:
    pending = [seq for seq, entry in calls.items() if entry.stands]
    if not pending:
        return _Front(seq=max(calls) + 1, stage=0)
    seq = min(pending)
    return _Front(seq=seq, stage=2 if calls[seq].state == "started" else 1)


def _disagreement(groups: Sequence[_Group]) -> Standing | None:
    """Return the first pending collective of a group whose callers disagree."""
    odd: set[int] = set()
    first: Standing | None = None
    for group in groups:
        fronts = [group.fronts[rank].seq for rank in group.waiting()]
        for seq in sorted(set(fronts)):
            calls = {rank: of[seq] for rank, of in group.calls.items() if seq in of}
            what = differs(calls, group.calls, seq)
            if what is None:
                continue
            alone = _alone(calls, what)
            odd |= {-1} if alone is None else {alone}
            said = "; ".join(
                f"{ranks_text(ranks)}: {text}" for text, ranks in _by_text(calls).items()
            )
            first = first or Standing(
                seq=seq,
                group=group.name,
                op=calls[min(calls)].op,
                entered=sorted(calls),
                disagree=what,
                text=f"{_name(group, seq)}: the calls disagree in {what}: {said}",
            )
            break
    only = next(iter(odd)) if len(odd) == 1 else None
    return first and first.model_copy(update={"only": None if only == -1 else only})


def _by_text(calls: Mapping[int, Entry]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, entry in sorted(calls.items()):
        found.setdefault(call_text(entry), []).append(rank)
    return found


def _alone(calls: Mapping[int, Entry], what: str) -> int | None:
    """Return the rank that calls otherwise than all others, of which there are two or more."""
    kinds: dict[str, list[int]] = {}
    for rank, entry in calls.items():
        said = {"dtype": entry.input_dtypes, "shape": entry.input_sizes}.get(what, entry.op)
        kinds.setdefault(str(said), []).append(rank)
    few, many = min(kinds.values(), key=len), max(kinds.values(), key=len)
    return few[0] if len(kinds) == 2 and len(few) == 1 and len(many) > 1 else None


def _unfinished(groups: Sequence[_Group]) -> Standing | None:
    """Return the ranks whose device has not ended what that of a peer has ended.

    A device that dies in a collective may keep peers in it, too. So a single collective is proof
    only if one rank alone is still in it. Two collectives always are: no peer can end the second
    one before all have taken part in the first one.
    """
    found: dict[int, _Group] = {}
    for group in groups:
        furthest = max((front.seq for front in group.fronts.values()), default=0)
        at = Counter(group.fronts[rank].seq for rank in group.waiting())
        for rank in group.waiting():
            seq = group.fronts[rank].seq
            own = group.calls[rank]
            alone = at[seq] == 1 and len(group.fronts) > 2 and len(set(group.members)) > 2
            span = [own.get(row) for row in range(seq, min(furthest, seq + 2))]
            if span and all(row is not None and _ALL_RANKS.search(row.op) for row in span):
                others = [front.seq for of, front in group.fronts.items() if of != rank]
                if len(span) > 1 or (alone and min(others) > seq):
                    found.setdefault(rank, group)
    if not found:
        return None
    group = found[min(found)]
    entry = group.at(min(found))
    seq = entry.collective_seq_id
    late = [rank for rank in found if rank in group.fronts and group.fronts[rank].seq <= seq]
    ended = [rank for rank, front in group.fronts.items() if front.seq > seq]
    text = f"{ranks_text(sorted(late))} did not end {_name(group, seq, entry)}, which"
    text += f" {ranks_text(ended)} ended"
    if more := sorted(set(found) - set(late)):
        text += f"; the same holds for {ranks_text(more)} in other groups"
    return Standing(
        seq=seq,
        group=group.name,
        op=entry.op,
        entered=sorted({*ended, *late}),
        unfinished=sorted(found),
        text=text,
    )


def _judge_waits(
    groups: Sequence[_Group], heard: Mapping[int, Dump], unanswered: Collection[int], world: int
) -> Standing:
    """Return the end of the chains of waiting ranks."""
    waits = _waits(groups, heard)
    roots = sorted(
        rank
        for rank in waits.sure
        if rank in heard and not waits.targets.get(rank) and rank not in waits.opaque
    )
    if roots:
        return _describe_wait(groups, waits, roots).model_copy(update={"behind": roots})
    crossed = [] if unanswered else _crossed(groups, waits)
    if len(crossed) == 1:
        found = _describe_wait(groups, waits, crossed)
        text = f"{found.text}; {ranks_text(crossed)} waits for them in another collective"
        return found.model_copy(update={"only": crossed[0], "text": text})
    silent = _silent(waits, heard, unanswered, world)
    found = _describe_wait(groups, waits, silent or sorted(waits.sure))
    if silent:
        text = f"{found.text}; no answer from {ranks_text(silent)}, and all others wait"
        return found.model_copy(update={"silent": silent, "text": text})
    return found


def _waits(groups: Sequence[_Group], heard: Mapping[int, Dump]) -> _Waits:
    """Return which ranks wait for which.

    If the recorder notes starts, a rank waits only in collectives that its device has started.
    """
    waits = _Waits()
    entries = [entry for dump in heard.values() for entry in dump.entries]
    stage = 2 if any(entry.state == "started" for entry in entries) else 1
    idle = {rank for rank, dump in heard.items() if not dump.waits}
    for group in groups:
        for rank in group.cut:
            waits.targets.setdefault(rank, set()).update({*group.members} - {rank})
        for rank in group.waiting(stage):
            for member in group.members:
                if member != rank:
                    _add_member(waits, group, rank, member, heard, idle)
    _add_messages(waits, heard, stage)
    return waits


def _add_member(
    waits: _Waits,
    group: _Group,
    rank: int,
    member: int,
    heard: Collection[int],
    idle: Collection[int],
) -> None:
    """Add whether a rank that waits in a group waits for a member of the group."""
    place = group.fronts[rank].place
    of_all = group if _ALL_RANKS.search(group.at(rank).op) else None
    front = group.fronts.get(member)
    if member not in heard:
        waits.add(rank, member)
    elif front is None:  # it entered nothing here, or its calls were cut off
        together = sum(row.place == place for row in group.fronts.values()) > 1
        waits.add(rank, member, of_all if place[0] == 1 or (member in idle and together) else None)
    elif front.place < place:
        waits.add(rank, member, of_all)
    elif front.place == place == min(row.place for row in group.fronts.values()):
        waits.add(rank, member)  # all have come: any of them may hold the others


def _add_messages(waits: _Waits, heard: Mapping[int, Dump], stage: int) -> None:
    """Add who may wait for a message. A message that both ends have posted binds both ends."""
    posted: dict[int, set[tuple[str, str, int]]] = {}
    for rank, dump in heard.items():
        for entry in dump.entries:
            if not entry.is_p2p or not entry.stands:
                continue
            match, ranks = _MESSAGE.search(entry.op), sorted(dump.groups.get(entry.group, ()))
            peer = int(match[3]) if match else len(ranks)
            if match is None or peer >= len(ranks):
                waits.opaque.add(rank)
                continue
            if stage == 1 or entry.state == "started":
                posted.setdefault(rank, set()).add((entry.group, match[1], ranks[peer]))
    for rank, messages in posted.items():
        for group, way, peer in messages:
            waits.add(rank, peer)
            if (group, "recv" if way == "send" else "send", rank) in posted.get(peer, ()):
                waits.add(peer, rank)


def _crossed(groups: Sequence[_Group], waits: _Waits) -> list[int]:
    """Return the ranks that wait for ranks which all wait for them: one against at least three."""
    found = set()
    for group in groups:
        for rank, front in group.fronts.items():
            others = {of: row for of, row in group.fronts.items() if of != rank}
            same = {row.place for row in others.values()}
            late = len(same) == 1 and min(same) > front.place and min(same)[1] > 0
            whole = set(others) == set(group.members) - {rank}
            targets = waits.targets.get(rank, set())
            surely = {of for of, row in waits.sure.items() if rank in row}
            against = len(targets) >= _UNANIMOUS and targets == surely and targets <= set(others)
            if late and whole and against and rank not in waits.opaque:
                found.add(rank)
    return sorted(found)


def _silent(
    waits: _Waits, heard: Mapping[int, Dump], unanswered: Collection[int], world: int
) -> list[int]:
    """Return the ranks without a dump at which all chains end; empty where that is open."""
    if not unanswered or 2 * len(unanswered) >= world or waits.opaque:
        return []
    ends: set[int] = set()
    for rank in heard:
        seen, open_ = {rank}, [rank]
        while open_:
            for target in waits.targets.get(open_.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    open_.append(target)
        reached = seen.difference(heard)
        if not reached:
            return []
        ends |= reached
    return sorted(ends)


def _describe_wait(groups: Sequence[_Group], waits: _Waits, late: Sequence[int]) -> Standing:
    """Return the collective that says most of ranks which are late, and its sentence."""
    waiting = [group for group in groups if group.waiting()]
    if not waiting:
        return Standing(text="every collective that was enqueued has ended")

    def weight(group: _Group) -> tuple[int, int, int, str]:
        missing = [rank for rank in late if rank in group.members and rank not in group.waiting()]
        created = min(group.at(rank).time_created_ns for rank in group.waiting())
        return -len(missing), -len(group.waiting()), created, group.name

    group = min(waiting, key=weight)
    seq = max(group.fronts[rank].seq for rank in group.waiting())
    entry = next(group.at(rank) for rank in group.waiting() if group.fronts[rank].seq == seq)
    entered = sorted(rank for rank, calls in group.calls.items() if seq in calls)
    missing = sorted(rank for rank in group.fronts if rank not in entered)
    never = [rank for rank in late if rank in group.members and rank not in group.fronts]
    missing = sorted({*missing, *(rank for rank in never if rank in waits.sure)})
    text = f"{ranks_text(entered)} enqueued {_name(group, seq, entry)}"
    if missing:
        text += f"; {ranks_text(missing)} did not"
        if more := sorted(set(late) - set(missing) & set(waits.sure) - set(missing)):
            text += f", nor did {ranks_text(more)} what others wait for"
    else:
        text += ", and it has not ended"
    return Standing(
        seq=seq, group=group.name, op=entry.op, entered=entered, missing=missing, text=text
    )


def _name(group: _Group, seq: int, entry: Entry | None = None) -> str:
    title = "" if group.title in ("", "undefined") else group.title
    what = "" if entry is None else call_text(entry)
    inside = ", ".join(filter(None, (title, what)))
    return f"collective {seq} of group {group.name}" + (f" ({inside})" if inside else "")


def differs(
    calls: Mapping[int, Entry], ranks: Mapping[int, Mapping[int, Entry]], seq: int
) -> str | None:
    """Return in what calls of one collective disagree: op, order, dtype or shape; else None.

    Args:
        calls: rank → its call of the collective.
        ranks: rank → number of a collective → call, for all collectives of the group.
        seq: number of the collective.
    """
    entries = list(calls.values())
    ops = {entry.op for entry in entries}
    if len(ops) > 1:
        following = {of[seq + 1].op for of in ranks.values() if seq + 1 in of}
        return "order" if following == ops else "op"
    if len({json.dumps(entry.input_dtypes) for entry in entries}) > 1:
        return "dtype"
    op = entries[0].op.lower()
    uneven = any(word in op for word in _UNEVEN) and not any(word in op for word in _EVEN)
    if not uneven and len({json.dumps(entry.input_sizes) for entry in entries}) > 1:
        return "shape"
    return None


def call_text(entry: Entry) -> str:
    """Return a call in words: `all_reduce 4×1024 BFloat16`."""
    shapes = " ".join("×".join(map(str, size)) for size in entry.input_sizes if size)
    dtypes = " ".join(sorted({str(dtype) for dtype in entry.input_dtypes}))
    return " ".join(filter(None, (entry.op, shapes, dtypes)))
