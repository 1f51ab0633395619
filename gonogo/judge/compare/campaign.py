"""What does a campaign do next? Begin a run, wait, or end with its comparison: a pure function.

Runs are made one at a time and in turns, forth and back (A B C, C B A, …), so that a machine that
gets slower by itself favours nobody. A run that does not count is made once more; a variant of
which both do not count is given up. After the first `repeats` of each the runs are compared; while
that decides nothing one more of each is made, up to the bound. Every such look may err, so each is
asked at the confidence at which all of them together hold.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gonogo.contract.campaign import CampaignSpec
from gonogo.contract.comparison import Answer, Comparison, Result
from gonogo.judge.compare.compare import compare
from gonogo.judge.compare.question import Question, ask
from gonogo.judge.compare.unit import NoUnit, Unit

TRIES = 2
"""Runs of one variant in one repeat, where they do not count. One that a person had made again so
often does not, either: the fastest of many is no measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One run of a campaign."""

    variant: str
    repeat: int
    brought: Unit | NoUnit | None = None
    """None: it goes on, or is not judged."""
    stopped: int = 0
    """Runs of it that a person had ended before the one that is brought."""
    replaced: int = 0
    """Runs that a person had ended of those in whose place it was made."""

    @property
    def ended(self) -> int:
        """Runs that a person had ended, of which this one takes the place."""
        return self.stopped + self.replaced

    @property
    def counted(self) -> Unit | NoUnit | None:
        """What it brings, where it was not made again until it pleased somebody."""
        if not isinstance(self.brought, Unit) or self.stopped < TRIES:
            return self.brought
        why = f"a person ended {self.stopped} runs of it before"
        return NoUnit(name=self.brought.name, why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A run is begun."""

    variant: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Something goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Nothing more is run."""

    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slots:
    """What there is of every variant in every repeat."""

    names: Sequence[str]
    rows: Mapping[tuple[str, int], Sequence[Unit | NoUnit]] = field(default_factory=dict)

    def unit(self, name: str, repeat: int) -> Unit | None:
        found = (row for row in self.rows.get((name, repeat), ()) if isinstance(row, Unit))
        return next(found, None)

    def given_up(self) -> set[str]:
        """Return the variants of which every try of some repeat did not count."""
        return {
            name
            for (name, repeat), row in self.rows.items()
            if len(row) >= TRIES and self.unit(name, repeat) is None
        }

    def missing(self, repeats: int) -> Iterator[tuple[str, int]]:
        """Yield what is to be run, in the order in which it is run."""
        lost = self.given_up()
        for repeat in range(1, repeats + 1):
            for name in self.names if repeat % 2 else reversed(self.names):
                if name not in lost and self.unit(name, repeat) is None:
                    yield name, repeat

    def brought(self, repeats: int) -> dict[str, list[Unit | NoUnit]]:
        """Return what the variants bring, each run under its repeat."""
        return {
            name: [
                row.as_repeat(repeat)
                for repeat in range(1, repeats + 1)
                for row in self.rows.get((name, repeat), ())
            ]
            for name in self.names
        }


def question_of(spec: CampaignSpec) -> Question:
    """Return what a campaign asks at each look.

    Raises:
        Rejected: no such metric, or nobody knows which way is better.
    """
    return ask(
        str(spec.metric),
        higher_is_better=None if spec.better is None else spec.better == "higher",
        margin=spec.margin,
        confidence=1.0 - (1.0 - spec.confidence) / spec.looks,
        warmup_steps=spec.warmup_steps,
        most_repeats=spec.bound,
        per_device=spec.per_device,
        shown_by=[str(name) for name in spec.shown_by],
        in_campaign=True,
        alike_in={str(name): share for name, share in spec.alike_in.items()},
    )


def next_step(spec: CampaignSpec, members: Iterable[Member]) -> Begin | Wait | End:
    """Return what a campaign does next.

    Args:
        spec: what it asks.
        members: its runs so far, in the order in which they were begun.
    """
    members = list(members)
    if any(row.brought is None for row in members):
        return Wait()
    slots = _slots_of(spec, members)
    repeats = spec.repeats
    while True:
        lost = slots.given_up()
        if slots.names[0] in lost or len(lost) >= len(slots.names) - 1:
            return End(comparison=_compared(spec, slots, repeats, members))
        begin = next(slots.missing(repeats), None)
        if begin is not None:
            return Begin(variant=begin[0], repeat=begin[1])
        found = _compared(spec, slots, repeats, members)
        if repeats >= spec.bound or not _is_open(found):
            return End(comparison=found)
        repeats += 1


def _is_open(found: Comparison) -> bool:
    """Say whether another repeat may decide something: what was not compared, none decides."""
    return found.result is Result.INCONCLUSIVE and any(
        row.answer is Answer.INCONCLUSIVE and row.basis is not None for row in found.variants
    )


def planned_runs(spec: CampaignSpec, members: Iterable[Member]) -> int:
    """Return how many runs it takes as things stand, those that were made included."""
    members = list(members)
    reached = max((row.repeat for row in members), default=0)
    going = sum(row.brought is None for row in members)
    missing = sum(1 for _ in _slots_of(spec, members).missing(max(spec.repeats, reached)))
    return len(members) - going + max(missing, going)


def _given_up(row: Unit | NoUnit) -> NoUnit:
    """Return a run of a variant that was given up: what goes wrong again and again never wins."""
    if isinstance(row, NoUnit):
        return row
    return NoUnit(name=row.name, why="its variant was given up", repeat=row.repeat)


def _slots_of(spec: CampaignSpec, members: Iterable[Member]) -> _Slots:
    """Return what has been brought."""
    rows: dict[tuple[str, int], list[Unit | NoUnit]] = {}
    for member in members:
        if (counted := member.counted) is not None:
            rows.setdefault((member.variant, member.repeat), []).append(counted)
    return _Slots(names=[row.name for row in spec.variants], rows=rows)


def _compared(
    spec: CampaignSpec, slots: _Slots, repeats: int, members: Iterable[Member]
) -> Comparison:
    """Return the comparison of the first repeats, with what to know about its looks and runs."""
    lost = slots.given_up()
    brought = {
        name: [_given_up(row) if name in lost else row for row in rows]
        for name, rows in slots.brought(repeats).items()
    }
    asked = {
        name: rows or [NoUnit(name=name, why="it was never run: the campaign ended before")]
        for name, rows in brought.items()
    }
    found = compare(asked, question_of(spec))
    notes = [
        f"{name} was given up: {TRIES} runs of one repeat do not count"
        for name in slots.names
        if name in lost
    ]
    notes += [
        f"{row.variant}, repeat {row.repeat}: a person ended"
        f" {row.ended} run{'s' * (row.ended != 1)} before the one that is compared"
        for row in members
        if row.ended and isinstance(row.counted, Unit)
    ]
    if spec.looks > 1:
        notes.append(
            f"each look is asked at {found.confidence:.4g}, so that up to {spec.looks} looks hold"
            f" together with {spec.confidence:g}"
        )
    return found.model_copy(update={"notes": [*found.notes, *notes]})
