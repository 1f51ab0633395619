"""The next step of a campaign: begin a run, wait, or end with a comparison. A pure function.

Runs are made one at a time and in turns, forth and back (A B C, C B A, …), so a machine that gets
slower favours no variant. A run that does not count is made once more. A variant of which both do
not count is given up. The variants are compared after `repeats` runs of each. While the comparison
decides nothing, one more run of each is made, up to the bound. Each of these looks may err, so
each uses the confidence at which all of them together hold.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gonogo.contract.campaign import Answer, CampaignSpec, Comparison, Result
from gonogo.contract.canonical import rounded
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.judge.compare.compare import compare
from gonogo.judge.compare.unit import NoUnit, Question, Unit, ask

TRIES = 2
"""Runs of one variant in one repeat before the variant is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One run of a campaign."""

    variant: str
    repeat: int
    brought: Unit | NoUnit | None = None
    """None: it is still active, or is not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A run is begun."""

    variant: str
    repeat: int
    beside: Sequence[tuple[str, int]] = ()
    """Runs (variant, repeat) that may be begun at the same time."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A run is active."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Nothing more is run."""

    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slots:
    """The runs of every variant in every repeat."""

    names: Sequence[str]
    rows: Mapping[tuple[str, int], Sequence[Unit | NoUnit]] = field(default_factory=dict)

    def unit(self, name: str, repeat: int) -> Unit | None:
        found = (row for row in self.rows.get((name, repeat), ()) if isinstance(row, Unit))
        return next(found, None)

    def given_up(self) -> set[str]:
        """Return the variants of which every try of one repeat does not count."""
        return {
            name
            for (name, repeat), row in self.rows.items()
            if len(row) >= TRIES and self.unit(name, repeat) is None
        }

    def missing(self, repeats: int) -> Iterator[tuple[str, int]]:
        """Yield the runs to make, in their order."""
        lost = self.given_up()
        for repeat in range(1, repeats + 1):
            for name in self.names if repeat % 2 else reversed(self.names):
                if name not in lost and self.unit(name, repeat) is None:
                    yield name, repeat

    def compared(self, repeats: int) -> dict[str, list[Unit | NoUnit]]:
        """Return the runs of the variants, each with the number of its repeat."""
        return {
            name: [
                replace(row, repeat=repeat)
                for repeat in range(1, repeats + 1)
                for row in self.rows.get((name, repeat), ())
            ]
            for name in self.names
        }


def question_of(spec: CampaignSpec) -> Question:
    """Return the question of each look of a campaign.

    Raises:
        Rejected: no such metric, or the better direction is unknown.
    """
    return ask(
        str(spec.metric),
        higher_is_better=None if spec.better is None else spec.better == "higher",
        aggregate=spec.aggregate,
        margin=spec.margin,
        confidence=1.0 - (1.0 - spec.confidence) / spec.looks,
        warmup_steps=spec.warmup_steps,
        per_device=spec.per_device,
        shown_by=[str(name) for name in spec.shown_by],
        in_campaign=True,
        alike_in={str(name): share for name, share in spec.alike_in.items()},
    )


def next_step(spec: CampaignSpec, members: Iterable[Member]) -> Begin | Wait | End:
    """Return what a campaign does next; `members` are its runs in the order of their begin."""
    members = list(members)
    if any(row.brought is None for row in members):
        return Wait()
    slots = _slots_of(spec, members)
    repeats = spec.repeats
    while True:
        lost = slots.given_up()
        if slots.names[0] in lost or len(lost) >= len(slots.names) - 1:
            return End(comparison=_compared(spec, slots, repeats))
        if begin := list(slots.missing(repeats)):
            return Begin(variant=begin[0][0], repeat=begin[0][1], beside=begin[1:])
        found = _compared(spec, slots, repeats)
        if repeats >= spec.bound or not _is_open(found):
            return End(comparison=found)
        repeats += 1


def _is_open(found: Comparison) -> bool:
    """Say whether another repeat may decide: some variant was compared and is inconclusive."""
    return found.result is Result.INCONCLUSIVE and any(
        row.answer is Answer.INCONCLUSIVE and row.basis is not None for row in found.variants
    )


def planned_runs(spec: CampaignSpec, members: Iterable[Member]) -> int:
    """Return how many runs the campaign takes as of now, with those that were made."""
    members = list(members)
    reached = max((row.repeat for row in members), default=0)
    going = sum(row.brought is None for row in members)
    missing = sum(1 for _ in _slots_of(spec, members).missing(max(spec.repeats, reached)))
    return len(members) - going + max(missing, going)


def _slots_of(spec: CampaignSpec, members: Iterable[Member]) -> _Slots:
    rows: dict[tuple[str, int], list[Unit | NoUnit]] = {}
    for member in members:
        if member.brought is not None:
            rows.setdefault((member.variant, member.repeat), []).append(member.brought)
    return _Slots(names=[row.name for row in spec.variants], rows=rows)


def _compared(spec: CampaignSpec, slots: _Slots, repeats: int) -> Comparison:
    """Return the comparison of the first repeats; a variant that was given up has no run in it."""
    lost = slots.given_up()
    asked: dict[str, Sequence[Unit | NoUnit]] = {}
    for name, rows in slots.compared(repeats).items():
        asked[name] = [
            NoUnit(name=row.name, why="its variant was given up", repeat=row.repeat)
            if name in lost and isinstance(row, Unit)
            else row
            for row in rows
        ] or [NoUnit(name=name, why="it was never run: the campaign ended before")]
    found = compare(asked, question_of(spec))
    notes = [
        Doubt(kind=DoubtKind.VARIANT_GIVEN_UP, name=name, found=TRIES)
        for name in slots.names
        if name in lost
    ]
    if spec.looks > 1:
        notes.append(
            Doubt(
                kind=DoubtKind.MANY_LOOKS,
                name=str(spec.looks),
                expected=spec.confidence,
                found=rounded(found.confidence),
            )
        )
    return found.model_copy(update={"notes": [*found.notes, *notes]})
