"""What do the step numbers count that a program prints? Of a program that is only read.

`Count` takes one number after the other, with what its line tells, and says which steps have
ended. It knows no lines, files, clocks or ranks (`output_lines`). Standard library only.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

JUMP_X = 10
REPEATS = 4
MOST_WRITERS = 256
"""Ranks that print one step without saying who they are."""
TOGETHER_S = 600.0
"""They do so within that time of each other; less than any step has that is not told to be short.
"""

Held = tuple[int, dict[str, Any]]
Loss = tuple[str, str]
"""Loss and gradient norm, as text: one that is not finite equals itself."""


class Count:
    """What do printed step numbers count?

    A number goes on from the last where it is larger, by at most `JUMP_X` times the largest stride
    so far. Any other is kept until the next one: does that go on from it, both count; else it was
    no step (`training to step 300`, `best loss at step 40`). Two in a row below the last are
    a counter that begins anew: from the first number ever, or in an epoch that their lines call
    a later one, they are added to what was counted; else the program has gone back to a checkpoint.
    Without a failure it may show other steps of each epoch instead (each hundredth of the whole
    run): then nobody knows of a line that is owed, nor where a number of an epoch of its own stands
    alone. The same number again is
    the same step, unless it is the first ever and its line names a later epoch. Where the number
    goes on as that begins anew (`iteration 2 epoch 1`), the epochs lay within it, and were none.

    A loss of it that is not finite is told again, for it may be another rank's. So is one of a
    number that lies a little below the last: that rank is late.

    A number that never goes on names no steps, where its lines tell one loss after the other: after
    `REPEATS` of them each line is a step. Several ranks may print so, too: once the number goes on
    after all, what its lines were counted for is taken back. Of a later one as many lines as
    `MOST_WRITERS` ranks print are that step, and whatever comes within `TOGETHER_S`; where more
    come, it is an epoch, or the like (`by_lines`). Of a bar it is still that step, and 0 is none.

    A program that failed and was started again begins its counter anew, too: it has gone back to
    where that began, unless it names a later epoch. After epochs without names nobody knows, nor
    where nobody knows whether it failed.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0
        self.stride = 1
        """The largest so far."""
        self._strode = False
        """Whether a number has gone on from another within an epoch."""
        self._widest = 1
        """The largest stride that may be: a number that was kept may have been one."""
        self.anew = 0
        """How often the counter has begun anew, in another epoch."""
        self.unsure = False
        """Whether steps may have been counted twice: of a program that failed in between, or of a
        count of the whole run that began anew before its end."""
        self._shortest: int | None = None
        self._longest = 0
        """The last numbers of epochs that ended without a line that named a later one."""
        self._uneven = False
        self._base = 0
        self._held: Held | None = None
        self._held_alone = False
        """Whether that number may be the only one that its epoch shows."""
        self._epoch: int | None = None
        self._epochs = 0
        """From the first that a line has named to the last."""
        self._first_epoch: int | None = None
        self._from_zero = False
        """Whether an epoch has begun at 0."""
        self._unclear = False
        """Whether epochs may have gone by that were taken for something else."""
        self._before_epochs: tuple[int, int] | None = None
        """What was added up, and how often, before epochs of the first number alone."""
        self._losses: set[Loss] = set()
        """What the lines of the last number have told."""
        self._loss: Loss | None = None
        """The last of them."""
        self._lines = 0
        """Lines of the last number that were counted as steps."""
        self._goes_on = False
        """Whether any number has gone on."""
        self.by_lines = False
        """Whether one that goes on is told by more lines than ranks print, each with a loss of its
        own: these show that the program moves, and the numbers only whether it has come to its end.
        """
        self.step = 0
        """The last step that counted, from 1."""

    def take(
        self,
        printed: int,
        fields: dict[str, Any],
        *,
        bar: bool = False,
        epoch: int | None = None,
        of: int | None = None,
        failed: bool | None = False,
        late: bool = False,
    ) -> Iterator[Held | None]:
        """Take a printed number; yield the steps that now count, and None before a going back.

        Args:
            printed: the number.
            fields: what else its line tells.
            bar: whether it is how many steps of a progress bar are done.
            epoch: the number of the epoch that its line names.
            of: of how many it is, as its line tells.
            failed: whether the program has failed, and begun again, since the last step; None
                where nobody knows.
            late: whether no rank can still be printing that step.
        """
        begin = 0 if bar else 1
        held, self._held = self._held, None
        fields = _both(held, printed, fields)
        alone, self._held_alone = self._held_alone, False
        later = self._is_later(epoch)
        if self._first is None:
            if printed > 1 and (held is None or printed <= held[0]):
                self._held = printed, fields
                return
            begun = held if held is not None and held[0] < printed else None
            self._first = begun[0] if begun else printed
            self._base = begin if self._first == 0 else 0
            if begun:
                yield self._counted(*begun)
                self.stride = self._widest = printed - begun[0]
                self._strode = self._goes_on = True
            yield self._counted(printed, fields)
        elif printed == self._last and (held is None or held[0] > self._first):
            if not bar:
                yield from self._again(printed, fields, epoch, failed=failed, late=late)
        elif self._last < printed <= self._last + JUMP_X * self.stride:
            self._unclear = self._unclear or alone
            yield from self._taken_back(epoch)
            yield self._next(printed, fields, later=later)
        elif held is None or held[0] >= printed or held[0] < self._last < printed:
            self._held = printed, fields
            self._held_alone = printed < self._last and (later or of is not None)
            self._unclear = self._unclear or alone
            self._widest = max(self._widest, printed - self._last)
            yield from self._late(printed, fields)
            return
        elif held[0] > self._last:  # it had jumped, and goes on from there
            yield from self._taken_back()
            yield self._next(*held)
            yield self._next(printed, fields)
        elif (later or held[0] <= self._first) and not self._is_back(epoch, failed=failed):
            yield from self._taken_back()
            self._begin_epoch(begin, later=later)
            yield self._counted(*held)
            yield self._next(printed, fields)
        else:
            self._unclear = self._unclear or failed is False
            self._base -= self._lines
            yield None
            yield self._counted(*held)
            yield self._next(printed, fields)
        self._name(epoch)

    def _again(
        self,
        printed: int,
        fields: dict[str, Any],
        epoch: int | None,
        *,
        failed: bool | None,
        late: bool,
    ) -> Iterator[Held | None]:
        """Take the last number once more; yield what it counts, if anything."""
        if self._is_later(epoch) and printed == self._first:
            yield from self._taken_back()
            before = self._before_epochs or (self._base, self.anew)
            self._begin_epoch(1, later=True)
            self._before_epochs = before
            yield self._counted(printed, fields)
            return
        if printed == self._first and self._is_back(epoch, failed=failed):
            self._base -= self._lines
            yield None
            yield self._counted(printed, fields)
            return
        loss = loss_of(fields)
        if loss is None or (loss == self._loss if self._lines else loss in self._losses):
            return
        if not self._lines and is_lost(fields):
            yield self.step, fields  # of another rank: it is that step's all the same
        self._loss = loss
        if len(self._losses) <= MOST_WRITERS:
            self._losses.add(loss)
        if self._goes_on:
            self.by_lines = self.by_lines or late or len(self._losses) > MOST_WRITERS
        elif self._lines or late or len(self._losses) > REPEATS:
            self._lines += 1
            self._base += 1
            self.step += 1
            yield self.step, fields

    def _late(self, printed: int, fields: dict[str, Any]) -> Iterator[Held]:
        """Yield a loss that is not finite, of a rank that may be behind the one told last."""
        least = max(self._first or 0, self._last - JUMP_X * self.stride)
        if least <= printed < self._last and is_lost(fields):
            yield self.step, fields

    def _is_back(self, epoch: int | None, *, failed: bool | None) -> bool:
        """Say whether a counter that begins anew has gone back: no later epoch, after a failure."""
        if failed is False or self._is_later(epoch):
            return False
        back = self.anew == 0 or (epoch is not None and epoch == self._epoch)
        self.unsure = self.unsure or not back or failed is None
        return back

    def _is_later(self, epoch: int | None) -> bool:
        """Say whether a line names a later epoch than the last one did."""
        return epoch is not None and self._epoch is not None and epoch > self._epoch

    def _name(self, epoch: int | None) -> None:
        """Keep the number of the epoch that a line names."""
        if epoch is None:
            return
        self._epoch = epoch
        self._first_epoch = epoch if self._first_epoch is None else self._first_epoch
        self._epochs = max(self._epochs, epoch - self._first_epoch + 1)

    def _begin_epoch(self, begin: int, *, later: bool) -> None:
        """Begin the counter anew behind the last step; `later`: in an epoch that a line names."""
        if not later:
            self._longest = max(self._longest, self._last)
            self._shortest = min(self._shortest or self._last, self._last)
        self._base = self.step + (begin if self._first == 0 else 0)
        self._before_epochs = None
        self.anew += 1
        self._goes_on = True

    def _taken_back(self, epoch: int | None = None) -> Iterator[None]:
        """Take back what was counted for lines of the last number, which has gone on after all.

        Args:
            epoch: the number of the epoch that it goes on in.
        """
        anew = epoch is not None and self._epoch is not None and epoch < self._epoch
        if self._before_epochs is not None and anew:
            self._base, self.anew = self._before_epochs
            yield None
        elif self._lines:
            self._base -= self._lines
            self.step -= self._lines
            yield None

    @property
    def counts_lines(self) -> bool:
        """Whether the number does not go on, and each line of it is counted."""
        return self._lines > 0

    def are_alike(self, steps: int) -> bool:
        """Say whether what was added up may be epochs, of one length, of a run of some steps.

        It is not where the counter came further after it had begun anew, without a line that named
        an epoch, than before; nor where it then broke off, beyond these steps, before it had come
        as far. A last number that was ordered is the whole run's.

        Args:
            steps: of the run; 0 where nobody says.
        """
        beyond = 0 < steps < self.step - self.stride - 1
        broke_off = beyond and self._last + self._widest < self._longest
        whole = self._last + (self._first == 0) == steps
        return whole or not (self._uneven or broke_off)

    def shown_whole(self, length: int) -> bool:
        """Say whether the last number was that of a loop of some length, but for a stride."""
        return self._last + self._widest > length - (self._first == 0)

    def owes(self, steps: int, length: int | None) -> bool:
        """Say whether a further line was to come before a run of some steps is at its end.

        A single loop that came to its own end has made all that it meant to: its number may be that
        of its epochs. Where epochs may have shown nothing, nobody knows how many there were.

        Args:
            steps: of the run.
            length: to what number its lines count, which may be that of an epoch.
        """
        if self._unclear or self._first is None:
            return False
        named = self._epochs in (0, self.anew + 1)
        one_based = not self._from_zero and self._begins_at_one
        if length is None:
            knows = self._strode or (not self.anew and not self._epochs)
            uncounted = self.anew * (self._widest - 1) + (0 if one_based else self.anew)
            return knows and named and self.step + uncounted + self.stride <= steps
        held = self._last if self._held is None else self._held[0]
        shown = held if self._held_alone else max(self._last, held)
        in_epoch = self._strode and shown + self._widest <= length - (not one_based)
        all_seen = self._strode and 2 * self._widest <= length
        whole = self.anew > 0 and (self.anew + 1 + self._held_alone) * length < steps
        return in_epoch or (whole and named and (all_seen or self._epochs > 0))

    @property
    def _begins_at_one(self) -> bool:
        """Whether its first number says that it counts from 1; 1 and 3 may be of either."""
        return self._first == self.stride or (self._first == 1 and self.stride != 2)

    @property
    def waiting(self) -> Held | None:
        """The number that is kept until the next one, and what its line tells."""
        return self._held

    def _next(self, printed: int, fields: dict[str, Any], *, later: bool = False) -> Held:
        self.stride = max(self.stride, printed - self._last)
        self._widest = max(self._widest, self.stride)
        self._strode = self._strode or not later
        self._goes_on = True
        if self._shortest is not None and printed > self._shortest + self._widest:
            self._uneven = True
        self._before_epochs = None
        return self._counted(printed, fields)

    def _counted(self, printed: int, fields: dict[str, Any]) -> Held:
        self._loss = loss_of(fields)
        self._losses = set() if self._loss is None else {self._loss}
        self._last, self._lines = printed, 0
        self._from_zero = self._from_zero or printed == 0
        self.step = self._base + printed
        return self.step, fields


def is_lost(fields: Mapping[str, Any]) -> bool:
    """Say whether a line tells a loss that is not finite."""
    return not math.isfinite(fields.get("loss") or 0.0)


def _both(held: Held | None, printed: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return what a number tells that was kept before: a loss that is not finite stays."""
    if held is None or held[0] != printed or not is_lost(held[1]):
        return fields
    return held[1]


def loss_of(fields: Mapping[str, Any]) -> Loss | None:
    """Return what only a step computes anew; None where a line tells none of it."""
    told = str(fields.get("loss")), str(fields.get("grad_norm"))
    return None if told == ("None", "None") else told
