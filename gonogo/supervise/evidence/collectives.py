"""Find the collective in which a run stands, from the dumps of torch's flight recorder. Pure.

The result names the first collective that some ranks of its group have entered and others have not,
and whether the calls agree. A rank is alone in its collective (`only`) if every other rank stands
in another one: a collective too many, or one that the others skipped. A rank that stands in none is
`behind` if every other rank would continue once it came.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gonogo.contract.collectives import Dump, Entry, Standing
from gonogo.contract.stack_trace import ranks_text
from gonogo.supervise.evidence.nccl_collectives import (
    analyse_enqueued,
    call_text,
    differs,
    runs_ahead,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One collective of one group."""

    group: str
    seq: int
    entered: Mapping[int, Entry]
    missing: tuple[int, ...]
    last: Mapping[int, int]
    """Rank → its last collective of the group; 0: none in its dump."""

    @property
    def began_ns(self) -> int:
        """When the first rank entered it."""
        return min(entry.time_created_ns for entry in self.entered.values())


def analyse(dumps: Mapping[int, Dump], world_size: int) -> Standing | None:
    """Return where the run stands; None if no dump has entries.

    Args:
        dumps: rank → its dump.
        world_size: ranks of the run.
    """
    if runs_ahead(dumps):
        return analyse_enqueued(dumps, world_size)
    heard = {rank: dump for rank, dump in sorted(dumps.items()) if dump.entries}
    if not heard:
        return None
    unanswered = [rank for rank in range(world_size) if rank not in heard]
    disagreement = _disagreement(heard)
    standing = list(_standing(heard))
    alone = None if unanswered else _alone(heard, standing)
    if disagreement is not None:
        return disagreement.model_copy(update={"unanswered": unanswered})
    if not standing:
        text = f"every collective that was entered has ended; {_heard_text(heard, unanswered)}"
        return Standing(unanswered=unanswered, text=text)
    call = alone or _decisive(standing)
    only = next(iter(call.entered)) if alone else None
    return Standing(
        seq=call.seq,
        group=call.group,
        op=_op(call),
        entered=sorted(call.entered),
        missing=list(call.missing),
        only=only,
        behind=[] if unanswered else _behind(heard, standing),
        unanswered=unanswered,
        text=_sentence(call, only, unanswered),
    )


def _by_group(heard: Mapping[int, Dump]) -> dict[str, dict[int, dict[int, Entry]]]:
    """Return group → rank → seq → entry, without point-to-point messages."""
    found: dict[str, dict[int, dict[int, Entry]]] = {}
    for rank, dump in heard.items():
        for entry in dump.entries:
            if not entry.is_p2p:
                ranks = found.setdefault(entry.group, {})
                ranks.setdefault(rank, {})[entry.collective_seq_id] = entry
    return found


def _members(heard: Mapping[int, Dump], group: str) -> list[int]:
    """Return the ranks of a group that answered; all of them if the group is unknown."""
    said = {rank for dump in heard.values() for rank in dump.groups.get(group, ())}
    return [rank for rank in heard if not said or rank in said]


def _standing(heard: Mapping[int, Dump]) -> Iterator[_Call]:
    """Yield the first pending collective of every group."""
    for group, ranks in sorted(_by_group(heard).items()):
        members = _members(heard, group)
        last = {rank: max(ranks.get(rank, {}), default=0) for rank in members}
        pending = [seq for of in ranks.values() for seq, entry in of.items() if entry.stands]
        if not pending or not last:
            continue
        seq = min(min(last.values()) + 1, min(pending))
        if not any(seq in ranks.get(rank, {}) for rank in members):
            seq = min(pending)  # the recorder has dropped older calls
        entered = {r: ranks[r][seq] for r in members if seq in ranks.get(r, {})}
        if entered:
            missing = tuple(rank for rank in members if last[rank] < seq)
            yield _Call(group=group, seq=seq, entered=entered, missing=missing, last=last)


def _alone(heard: Mapping[int, Dump], standing: list[_Call]) -> _Call | None:
    """Return the collective of the rank that stands alone while every other stands elsewhere.

    If there are several, return the one in the least used group, then the oldest.
    """
    if len(heard) < 2 or not all(dump.stands for dump in heard.values()):
        return None
    lonely = [call for call in standing if len(call.entered) == 1 and call.missing]
    return min(lonely, key=lambda call: (call.seq, call.began_ns), default=None)


def _behind(heard: Mapping[int, Dump], standing: Sequence[_Call]) -> list[int]:
    """Return the ranks that stand in none and for which all others wait; empty if that is open.

    Each of them has ended the collective before the one that waits for it. If they came, every rank
    would continue. They are fewer than half of the ranks, or a single one.
    """
    waited = {rank for call in standing for rank in call.missing}
    behind = sorted(rank for rank in waited if not heard[rank].waits)
    if not behind or (len(behind) > 1 and 2 * len(behind) >= len(heard)):
        return []
    if not all(_is_clear(call, heard, behind) for call in standing):
        return []
    return behind if _all_would_go_on(behind, standing) >= heard.keys() else []


def _is_clear(call: _Call, heard: Mapping[int, Dump], behind: Collection[int]) -> bool:
    """Whether a collective stands, and waits for ranks whose dumps are not cut."""
    late = [rank for rank in call.missing if rank in behind]
    stands = all(entry.stands for entry in call.entered.values())
    whole = all(call.last[rank] == call.seq - 1 for rank in late)
    belong = all(call.last[rank] or rank in heard[rank].groups.get(call.group, ()) for rank in late)
    return bool(call.missing) and stands and whole and belong


def _all_would_go_on(came: Collection[int], standing: Sequence[_Call]) -> set[int]:
    """Return the ranks that stand nowhere once `came` have entered what waits for them."""
    free, waiting = set(came), list(standing)
    while ends := [call for call in waiting if free.issuperset(call.missing)]:
        waiting = [call for call in waiting if call not in ends]
        held = {rank for call in waiting for rank in call.entered}
        free |= {rank for call in ends for rank in call.entered} - held
    return free


def _decisive(standing: list[_Call]) -> _Call:
    """Return the oldest collective from which ranks are missing, else the oldest."""
    return min(standing, key=lambda call: (not call.missing, call.began_ns, call.group))


def _disagreement(heard: Mapping[int, Dump]) -> Standing | None:
    """Return the first pending collective whose callers disagree."""
    for group, ranks in sorted(_by_group(heard).items()):
        for seq in sorted({seq for of in ranks.values() for seq in of}):
            calls = {rank: of[seq] for rank, of in sorted(ranks.items()) if seq in of}
            ended = not any(entry.stands for entry in calls.values())
            what = None if ended else differs(calls, ranks, seq)
            if what is None:
                continue
            told = ", ".join(f"rank {rank}: {call_text(entry)}" for rank, entry in calls.items())
            missing = [rank for rank in _members(heard, group) if rank not in calls]
            text = f"collective {seq} of group {group} is not the same on every rank ({what}): "
            return Standing(
                seq=seq,
                group=group,
                op=next(iter(calls.values())).op,
                entered=list(calls),
                missing=missing,
                disagree=what,
                text=text + told,
            )
    return None


def _op(call: _Call) -> str:
    return next(iter(call.entered.values())).op


def _sentence(call: _Call, only: int | None, unanswered: list[int]) -> str:
    shape = call_text(next(iter(call.entered.values())))
    name = f"collective {call.seq} of group {call.group} ({shape})"
    if only is not None:
        text = f"rank {only} alone entered {name}; {ranks_text(call.missing)} did not"
        text += ": one too many there, or skipped by the others"
    elif call.missing:
        text = f"{ranks_text(call.entered)} entered {name}; {ranks_text(call.missing)} did not"
    else:
        text = f"{ranks_text(call.entered)} entered {name}, and it has not ended"
    return text + (f"; no answer from {ranks_text(unanswered)}" if unanswered else "")


def _heard_text(heard: Mapping[int, Dump], unanswered: list[int]) -> str:
    text = f"{ranks_text(heard)} answered"
    return text + (f", {ranks_text(unanswered)} did not" if unanswered else "")
