"""What does a program's output tell of its steps? For a program that knows nothing of gonogo.

The wrapper reads the log that the program writes, and says in the rank's heartbeat file what a
pattern finds: `progress` for each step that is new, `alive` while the program lives, `done` when it
has left with 0 and shown the last ordered step. Nothing stands between program and log: a reader
that is slow, or dies, holds nobody up. What no line tells (who runs, sections, when a step began)
is not said.

A pattern is a regular expression with named groups `step loss lr grad_norm tokens toks_per_s rank`.
Without the group `step` each match is the next step, unless another pattern of the user's tells
steps: then it tells more of the last one (a record of several lines). Where the first step told is
0, one is added to all: steps count from 1 here. A number that does not go on where the last one
stopped counts only once the next one goes on from it (`Count`): a banner is no step, a counter that
begins anew in each epoch is added up. A number that is printed again, by a thread that shows the
last step while the next one hangs or by each of eight ranks, is no further step. A counter that
begins anew because a shell has started the program again, which had failed, is no further epoch. A
progress bar (`8/80 [`) shows how many steps are done, again and again, and 0 before the first. What
is counted up to the ordered number of steps (`8/80`) is the run: bars and loops of another length
are then of an evaluation or of the data. Where several lengths were counted and none is the ordered
one, nobody knows which are steps, and the end is not known either. A program that says its
heartbeats itself is left alone, also when it begins late.

What the program calls its step (`Episode 10`, `10 games`) is said beside it: some such are of no
length of their own.

Lines that come together (the reader looks now and then, and many programs write in blocks) are
taken to have come at equal distances since the last one: when each of them was printed nobody can
know, and steps that last no time at all would be worse. Standard library only.
"""

import math
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gonogo.plain_file import next_data, open_plain, read_plain
from gonogo.supervise.launch.counting import TOGETHER_S, Count, Held, is_lost, loss_of
from gonogo.supervise.launch.programs import Programs
from gonogo.supervise.processes import TICKS_PER_S
from gonogo.trainer.line import build_line
from gonogo.trainer.line_file import ATTACHED, LAST_S, OBSERVED, READ, SHOW_EVERY_S, LineFile, Taken

GROUPS = frozenset(("step", "loss", "lr", "grad_norm", "tokens", "toks_per_s", "rank"))
MOST_RANKS = 1024
MOST_BETWEEN = 2
"""Lines of the kept pattern between two of one that takes its place: more, and those come rarely
(`saved the checkpoint of step 500, loss 2.1`)."""
MOST_STEPS = 10**9
"""A number beyond is no step, and would hide all that follow."""
FEW_DECIMALS = 6
MANY_EPOCHS = 10
"""An evaluation is not as long as so many epochs, and just as long as the run."""
LEAP_X = 2
"""So many times the largest stride a number lies ahead that may be a mention: `before step 300`."""
SOON_SHARE = 0.5
"""Of the time that as many steps took before; what is told sooner was not trained."""
_PACE_STEPS = 5
"""The last steps by which that time goes: the first may have been compiled."""
_NUMBERS = GROUPS - {"step", "rank", "tokens"}
_LINE_BYTES = 16_384
_READ_BYTES = 2**18
_RECORD_S = 10.0
"""So long a step waits for the lines of its record that are still to come: it may be named as it
begins, and its loss be told as it ends. What comes later is told of it all the same."""
_POLL_S = 0.1
_ENDS = ".,;:)]}%'\""
_BEGINS = _ENDS.replace(".", "")
"""A number may begin with its point: `.693`."""
_DIVIDES = ",_"
_UNDIVIDED = str.maketrans("", "", _DIVIDES)
_DIVIDED = re.compile(r"[-+]?[1-9]\d{0,2}(?:[,_]\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_END = re.compile(rb"[\r\n]")
_LENGTH = re.compile(r" {0,8}/ {0,8}(\d{1,3}(?:[,_]\d{3})+|\d+)\b(?!\.\d)( \[)?")
"""What follows a number that is told with how many there are, and of a progress bar."""
_BAR = re.compile(r"^.*?\d/\d+ \[\d+:\d[^\]]{0,400}\](?=[\w\[{(])")
"""A bar of tqdm that stands on the line where the program prints something else."""
_EPOCH = re.compile(r"(?i)(?<![a-z])(?:epoch|ep|episode|fold)\b\W{0,4}(\d{1,9})")
"""What a line says of the counter around the steps."""
_WORD_BEFORE = re.compile(
    r"([a-z]+)[\W_]{0,8}(?:(?:no|num|nr|number|count|id|idx|index)[\W_]{1,4})?$", re.IGNORECASE
)
_WORD_AFTER = re.compile(r"(?:st|nd|rd|th)?[ _-]{1,2}([a-z]+)", re.IGNORECASE)
"""What a step is called: `Episode: 10`, `[epoch_idx=10]`, `10th game`."""
_WORD_CHARS = 64
"""Of the line on either side of the number."""
_FAILED = re.compile(
    r"\bTraceback \(most recent call last\)"
    r"|\b(?:Segmentation fault|Killed|Aborted)(?: \(core dumped\))?(?: {2,}|$)"
)
"""What is printed where a program ends by an error, by itself or by its shell (`12 Killed` alone,
or far from the command); `Killed 3 stale workers` is no such thing."""
_IGNORED = "Exception ignored in"
"""The line before a traceback of an error that ends nothing."""
_LOSS_WORDS = ("loss", "cost", "xent")
_NO_LOSS_WORD = re.compile(r" *\d+(?:: |/\d+ +[\d.]+[GM] | +(?:\d|nan))")
"""How the lines of darknet, YOLO and fastai begin; all others that are guessed name a loss."""
_LOSS = re.compile(
    r"(?i)\b(?:(?:train(?:ing)?|total|avg|avr|step|lm)[_ ])?loss\b\W{1,4} {0,12}"
    r"(?P<loss>[-+]?(?:\d[\d,_]*\.?\d*(?:e[-+]?\d+)?|nan\b|inf(?:inity)?\b))"
)
_OF_A_KIND = re.compile(
    r"(?i)(?:\b(?!(?:train|training|total|avg|avr|step|lm)[ -])[a-z][\w-]*[ -]"
    r"|\b(?:best|lowest|min|minimum|previous|prev)\b\W?(?:\w+ ?){0,3}\W{1,3})loss\b\W{1,16}$"
)
"""How the loss of a part is told, or one of before: `kl loss`, `min loss`, `best so far: loss`."""
_EVALUATES = re.compile(
    r"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev|h[eo]ld[ -]?out)(?![a-z])"
)
"""Behind it stands no loss of the training."""
_KIND_CHARS = 96
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class OutputLines:
    """Reads one program's log and says what it tells.

    Args:
        folder: the run directory.
        order: the order as data: `patterns` (of guessed ones the first that fits is kept, and gives
            way to one before it, which is more exact, that fits about as often: a loose one fits an
            evaluation's line, too, and one that fits now and then is of a line beside the steps; to
            one behind it only before it has fitted twice), `run`, `attempt`, `heartbeat`.
        log: the file that the program writes.
        pid: of the program.
        rank: whose steps a line tells that names no rank.
        begin: bytes that the log had before it.
    """

    def __init__(
        self,
        folder: Path,
        order: Mapping[str, Any],
        log: Path,
        pid: int,
        *,
        rank: int = 0,
        begin: int = 0,
    ) -> None:
        self._folder, self._order, self._log, self._pid = folder, order, log, pid
        self._unnamed = rank
        self._patterns = [re.compile(text) for text in order.get("patterns") or ()]
        cadence = order.get("heartbeat") or {}
        self._alive_every_s = float(cadence.get("alive_every_s") or 5.0)
        parts = [set(row.groupindex) for row in self._patterns if "step" not in row.groupindex]
        is_record = 0 < len(parts) < len(self._patterns) and not order.get("patterns_guessed")
        self._parts = frozenset[str]().union(*parts if is_record else ()) - {"rank"}
        """What lines of their own tell, where a record has several."""
        self._kept: re.Pattern[str] | None = None
        self._rival: _Rival | None = None
        self._ranks: dict[int, _Rank] = {}
        self._guessed = bool(order.get("patterns_guessed"))
        self._held: int | None = None
        """The log as it was found first, which the program goes on writing whatever its name."""
        self._offset = begin
        self._rest = b""
        self._whole: deque[bytes] = deque()
        """Lines that were read and not looked at yet."""
        self._unread = False
        """Whether the disk refused the log at the last look."""
        self._others_read = int(order.get("nodes") or 1) > 1
        self._began = self._looked = self._show_at = time.monotonic()
        self._looked_ticks = _now_ticks()
        self._last_text = ""
        self._programs = Programs(pid)

    def read(self, within_s: float = math.inf) -> bool:
        """Say what has been written since the last call, and who has been silent for long.

        Args:
            within_s: how long it may take; a program may print faster than anybody reads.

        Returns:
            Whether all of it was read.
        """
        if not self._patterns:
            return True
        if (self._folder / ATTACHED).exists():
            self._yield()
            return True
        self._programs.look()
        give_up, is_all = time.monotonic() + within_s, True
        for line in self._lines():
            self._tell(_decoded(line))
            if time.monotonic() >= give_up:
                is_all = False
                break
        if is_all:
            self._looked, self._looked_ticks = time.monotonic(), _now_ticks()
        for rank in self._ranks.values():
            rank.flush(self._parts)
            rank.break_silence(self._alive_every_s)
        if self._others_read and time.monotonic() >= self._show_at:
            self._show_at = time.monotonic() + SHOW_EVERY_S
            for rank in self._ranks.values():
                rank.show()
        return is_all

    def close(self, code: int, *, asked: bool) -> None:
        """Say the rest, and `done` of each rank that left with 0, unasked, at a known step.

        Args:
            code: exit code, or minus the signal.
            asked: whether the run was asked to end.
        """
        by_itself = self._read_the_rest() and code == 0 and not asked
        if self._rest:
            self._tell(_decoded(self._rest))
        steps = self._order.get("steps") or 0
        for rank in self._ranks.values():
            rank.flush()
            if by_itself and rank.knows_its_end(steps):
                if rank.count.by_lines:
                    rank.begin_anew(self._order)  # lines were counted, and its end is a number's
                    rank.note(rank.count.step, dict(rank.shown or {}))
                    rank.flush()
                if rank.step < steps or not self._has_failed(rank):
                    rank.say("done")
            rank.close()

    def _has_failed(self, rank: "_Rank") -> bool:
        """Say whether a rank's program failed behind its last step, and its shell left with 0.

        Where nobody saw its end, what it printed since then tells.
        """
        failed = self._programs.has_failed()
        return rank.failed if failed is None else failed

    def _read_the_rest(self) -> bool:
        """Read what is left, as soon as the disk gives it; False where it has not for LAST_S."""
        give_up = time.monotonic() + LAST_S
        while True:
            with suppress(OSError):
                self.read()
                if not self._unread:
                    return True
            if time.monotonic() >= give_up:
                return False
            time.sleep(_POLL_S)

    def _yield(self) -> None:
        """Fall silent for good: the program speaks for itself."""
        for rank in self._ranks.values():
            rank.close()
        self._ranks, self._patterns = {}, []
        with suppress(OSError):
            if not (self._folder / OBSERVED).exists():
                (self._folder / READ).unlink()

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines that are new; a progress bar ends its lines with carriage returns."""
        while self._whole or (chunk := self._more()):
            if not self._whole:
                *whole, self._rest = _END.split(self._rest + chunk)
                self._rest = self._rest[-_LINE_BYTES:]
                self._whole.extend(filter(None, whole))
                continue
            yield self._whole.popleft()

    def _more(self) -> bytes:
        try:
            with self._open_log() as stream:  # a hole of it may be the keeper's
                self._offset = stream.seek(next_data(stream.fileno(), self._offset))
                chunk = stream.read(_READ_BYTES)
        except OSError as error:
            self._unread = not isinstance(error, FileNotFoundError)
            return b""
        self._unread = False
        self._offset += len(chunk)
        return chunk

    def _open_log(self) -> IO[bytes]:
        """Open the program's log, also where somebody moved or removed it (logrotate).

        By its name where it has that: a network file system shows what is new to who opens anew.

        Raises:
            OSError: nobody can just now.
        """
        if self._held is None:
            self._held = open_plain(self._log)
        try:
            its = os.path.samestat(os.stat(self._log), os.fstat(self._held))
        except FileNotFoundError:
            its = False
        return read_plain(self._log if its else Path(f"/proc/self/fd/{self._held}"))

    def _tell(self, text: str) -> None:
        guessed = self._guessed
        if guessed and (bar := _BAR.match(text)) is not None:
            self._tell(bar[0])
            text = text[bar.end() :]
        patterns = [] if guessed and not may_tell_a_loss(text) else self._patterns
        fits = (match for row in patterns if (match := row.search(text)) is not None)
        match = next(fits, None)
        before, self._last_text = self._last_text, text
        if match is None:
            if _FAILED.search(text) and _IGNORED not in before:
                for rank in self._ranks.values():
                    rank.failed = True
            return
        if not guessed:
            self._say(match.groupdict(), around(match))
            return
        for found in self._chosen(match, fits):
            said = found.groupdict()
            if "loss" in said:
                said["loss"] = own_loss(found)
            self._say(said, around(found))

    def _chosen(
        self, match: re.Match[str], others: Iterator[re.Match[str]]
    ) -> Sequence[re.Match[str]]:
        """Return what of guessed patterns' matches is told: it may be that of an earlier line.

        Args:
            match: of the most exact pattern that fits a line.
            others: of those behind it.
        """
        rival, kept = self._rival, self._kept
        if kept is None:
            self._kept = match.re
            return [match]
        if match.re is kept:
            if rival is not None:
                rival.between += 1
            self._keep(kept, rival)
            return [match]
        own = next((row for row in others if row.re is kept), None)
        if rival is not None and rival.match.re is match.re and rival.between <= MOST_BETWEEN:
            self._keep(match.re, None)
            return [match] if rival.told else [rival.match, match]
        self._rival = _Rival(match=match, told=own is not None)
        return [] if own is None else [own]

    def _keep(self, pattern: re.Pattern[str], rival: "_Rival | None") -> None:
        """Keep a pattern that has fitted twice: what is behind it is not tried any more."""
        self._patterns = self._patterns[: self._patterns.index(pattern) + 1]
        self._kept, self._rival = pattern, rival

    def _say(self, found: Mapping[str, str | None], beside: "Around") -> None:
        number = _whole(found.get("rank"))
        number = self._unnamed if number is None else number
        if not 0 <= number < MOST_RANKS:
            return
        rank = self._ranks.get(number) or self._open(number)
        if rank is None:
            return
        told: dict[str, Any] = {name: number_of(found.get(name)) for name in _NUMBERS}
        told["tokens"] = _whole(found.get("tokens"))
        told["step_word"] = beside.word
        fields = {name: seen for name, seen in told.items() if seen is not None}
        if "step" not in found:
            if not (self._parts and rank.numbered and rank.complete(fields)):
                self._count_line(rank, fields)
            return
        printed = _whole(found.get("step"))
        if printed is not None and 0 <= printed <= MOST_STEPS:
            self._count(rank, printed, fields, beside)

    def _count_line(self, rank: "_Rank", fields: dict[str, Any]) -> None:
        """Take a line that tells no number: it is the next step's, or the last one's once more."""
        rank.numbered = False
        if fields == rank.shown and _is_exact(fields.get("grad_norm")):
            return
        rank.shown = fields
        self._programs.ask()
        another = rank.program not in (None, self._programs.number)
        again = another or self._is_started_anew(rank) is not False
        rank.count.unsure = rank.count.unsure or again
        self._note(rank, rank.step + 1, fields)

    def _count(self, rank: "_Rank", printed: int, fields: dict[str, Any], beside: "Around") -> None:
        """Take a number that a rank's line tells, with what else it tells."""
        if not rank.numbered and (self._parts or self._order.get("patterns_guessed")):
            rank.begin_anew(self._order)  # what was counted so far were no steps
            rank.numbered = True
        if not rank.follows(beside.of, self._order):
            return
        within = printed < rank.step and rank.is_within(self._order.get("steps"))
        rank.failed = rank.failed or within  # it broke off, whatever it says of that
        failed, late = self._is_started_anew(rank), rank.stands_s() > TOGETHER_S
        anew, came_to_its_end = rank.count.anew, rank.came_to_its_end
        ended_by_error = failed is not False and came_to_its_end and not rank.of_run
        if ended_by_error:
            failed = False  # what begins behind its last step is another training (a seed, a fold)
        changes = [
            *rank.count.take(
                printed,
                fields,
                bar=beside.bar,
                epoch=beside.epoch,
                of=beside.of,
                failed=failed,
                late=late,
            )
        ]
        begins = rank.count.anew > anew
        unseen = within or ended_by_error
        if begins and (unseen or not (came_to_its_end or self._programs.is_one(rank.program))):
            rank.count.unsure = True  # no epoch either, or of a program whose end nobody saw
        self._programs.ask(now=begins)
        if rank.count.by_lines and None not in changes:
            if changes or loss_of(fields) not in (None, loss_of(rank.shown or {})):
                rank.shown = fields
                self._note(rank, rank.step + 1, fields, of=beside.of)
            return
        for change in changes:
            if change is None:
                rank.count.by_lines = False
                rank.begin_anew(self._order)
            elif not beside.bar or change[0] > rank.step:
                self._note(rank, *change, of=beside.of)

    def _note(
        self, rank: "_Rank", step: int, fields: dict[str, Any], *, of: int | None = None
    ) -> None:
        """Keep a step that has ended, and when it was not there yet."""
        rank.note(step, fields, of=of)
        rank.failed, rank.before_ticks = False, self._looked_ticks
        rank.program = self._programs.number

    def _is_started_anew(self, rank: "_Rank") -> bool | None:
        """Say whether a rank's program failed and was begun again; None where nobody knows."""
        return self._programs.is_begun_since(rank.before_ticks) if rank.failed else False

    def _open(self, number: int) -> "_Rank | None":
        """Begin to speak for a rank, unless it speaks for itself: then never again for any."""
        file = self._folder / f"heartbeat_rank{number}.jsonl"
        if file.exists():
            self._patterns = []
            return None
        try:
            rank = _Rank(file, number, self._pid, self._looked)
        except Taken:
            self._patterns = []
            return None
        rank.boot(self._order, at=self._began)
        with suppress(OSError):
            (self._folder / READ).touch()
        self._ranks[number] = rank
        return rank


@dataclass(slots=True)
class _Rival:
    """A more exact pattern than the one that is kept."""

    match: re.Match[str]
    told: bool
    """Whether the kept one fits that line, too: it has been told."""
    between: int = 0
    """Lines since that only the kept one fits."""


class _Rank:
    """The lines of one rank."""

    def __init__(self, file: Path, number: int, pid: int, since: float) -> None:
        self._file, self._number, self._pid = LineFile(file), number, pid
        self._boot, self._seq = secrets.token_hex(8), 0
        self._spoke = since
        self._noted: list[Held] = []
        self._noted_at = since
        self._said: Mapping[str, Any] = {}
        """What the last line told that was said of a step."""
        self._shown = 0
        self.count = Count()
        self.numbered = True
        """Whether every line has told its step; else lines were counted."""
        self._lengths: set[int] = set()
        """Of how many the steps were told to be that counted: `8/80`."""
        self.of_run = False
        """Whether these are as many as were ordered."""
        self.step = 0
        self.shown: Mapping[str, Any] | None = None
        """What the last line told, where lines are counted."""
        self.failed = False
        """Whether something was printed since the last step that says so of the program."""
        self.leapt = False
        """Whether the last step lies far ahead of the one before, and was told too soon for it."""
        self._longest = 0
        """The largest distance between two steps."""
        self._paced = deque[tuple[float, int]](maxlen=_PACE_STEPS)
        """When the last steps were noted, and which."""
        self.program: int | None = None
        """Which of a shell's programs was there as that step was noted."""
        self.before_ticks = 0
        """When that step was not there yet; processes that began later have not printed it."""

    def boot(self, order: Mapping[str, Any], *, at: float) -> None:
        """Say that a process began `at` some time: its first step may have taken since then."""
        since = self._spoke
        told = {"run": order.get("run"), "attempt": order.get("attempt", 1)}
        self._say("boot", self.step, told, at=at)
        self._spoke = since  # what is noted next has come since the last look

    def begin_anew(self, order: Mapping[str, Any]) -> None:
        """Say that the program has gone back: what comes is said by another boot."""
        self.flush()
        self._boot, self._seq, self.step = secrets.token_hex(8), 0, 0
        self._longest = 0
        self._paced.clear()
        self.boot(order, at=self._spoke)

    def follows(self, of: int | None, order: Mapping[str, Any]) -> bool:
        """Say whether a number counts steps: not where another counts those of the whole run.

        The first that does drops what was counted, unless that may have been its epochs.

        Args:
            of: how many there are, as its line tells.
            order: its `steps` is the run's length.
        """
        steps = order.get("steps")
        if of is None or steps is None:
            return True
        if self.of_run:
            return bool(of == steps)
        if of == steps and not any(may_be_epochs(other, steps) for other in self._lengths):
            self.of_run = True
            if self._lengths:
                self.count = Count()
                self._lengths.clear()
                self.begin_anew(order)  # what was counted so far were no steps
        return True

    @property
    def came_to_its_end(self) -> bool:
        """Whether its last line told a number, and of how many, and was the last of these."""
        return self.count.shown_whole(next(iter(self._lengths))) if self._lengths else False

    def is_within(self, steps: int | None) -> bool:
        """Say whether its lines count the steps of the whole run, and have not come to its end."""
        return self.of_run and steps is not None and not self.count.shown_whole(steps)

    def note(self, step: int, fields: dict[str, Any], *, of: int | None = None) -> None:
        """Keep a step that has ended since the last look; `of` how many, where its line tells."""
        now = time.monotonic()
        self.leapt = self._leaps(step, now) and of is None
        self.step = step
        self._shown += 1
        if of is not None:
            self._lengths.add(of)
        self._noted.append((step, fields))
        self._noted_at = now

    def _leaps(self, step: int, now: float) -> bool:
        """Say whether a number is too far ahead, too soon, to be a step that was made."""
        before = list(self._paced)
        self._paced.append((now, step))
        if not before:
            return False
        (since, first), (until, last) = before[0], before[-1]
        ahead, longest = step - last, self._longest
        self._longest = max(longest, ahead)
        if not 0 < longest * LEAP_X < ahead or first >= last:
            return False
        usual_s = (until - since) / (last - first)
        return now - until < SOON_SHARE * ahead * usual_s

    def stands_s(self) -> float:
        """Return for how long no further step has been told."""
        return time.monotonic() - self._noted_at

    def complete(self, fields: Mapping[str, Any]) -> bool:
        """Keep what another line of its record tells of the last step.

        Where that has been said (its number is printed as it begins, its loss as it ends), it is
        said again, with both. Of several losses the first is its own, unless one is not finite.

        Returns:
            Whether any step was told before: else such a line is counted.
        """
        last = self.count.waiting or (self._noted[-1] if self._noted else None)
        if last is not None:
            last[1].update(_joined(last[1], fields))
        elif self.step:
            both = _joined(self._said, fields)
            if both.keys() != self._said.keys() or is_lost(both) != is_lost(self._said):
                self._noted, self._noted_at = [(self.step, both)], time.monotonic()
        return last is not None or self.step > 0

    def knows_its_end(self, steps: int) -> bool:
        """Say whether the last step shown is the program's last, as far as its lines tell.

        It is not where the next line that it owed, a stride later, would be beyond `steps`, nor
        where lines were counted: of how many steps each is, nobody knows. The last steps of each
        epoch may have been printed no more, so less than a stride for each may be uncounted; where
        each epoch shows one line, nobody knows how many, unless it tells of how many it is.
        Of loops of different lengths, one may be an evaluation, and one that tells no length a run
        that was begun again; nor is it where steps may have been
        counted twice, nor where the last may be a mention of one that never came. Where each number
        has many lines, it is the last if it was ordered.
        """
        if len(self._lengths) > 1 or self.count.unsure or self.leapt:
            return False
        if self.step >= steps and not self._lengths and not self.count.are_alike(steps):
            return False
        if self.count.by_lines or self.count.counts_lines:
            return self.count.step >= steps
        beyond = 0 < steps < self.step - self.count.stride - 1
        if beyond and self.numbered and not self.count.anew:
            return False  # a stride may be the last, and one may have been added
        length = next(iter(self._lengths), None)
        owed = self.numbered and self._shown > 1 and self.count.owes(steps, length)
        return self.step >= steps or owed

    def flush(self, parts: frozenset[str] = frozenset()) -> None:
        """Say what was noted, at equal distances since the last line.

        Args:
            parts: what lines behind the last step's may still tell of it.
        """
        noted, self._noted = self._noted, []
        is_new = time.monotonic() - self._noted_at < _RECORD_S
        if noted and is_new and self.numbered and not parts <= noted[-1][1].keys():
            self._noted = [noted.pop()]
        began = self._spoke
        apart_s = (time.monotonic() - began) / len(noted) if noted else 0.0
        for number, (step, fields) in enumerate(noted, start=1):
            self._said = fields
            self._say("progress", step, fields, at=began + number * apart_s)

    def say(self, msg: str, **fields: Any) -> None:
        """Say something of now."""
        self._say(msg, self.step, fields, at=time.monotonic())

    def _say(self, msg: str, step: int, fields: Mapping[str, Any], *, at: float) -> None:
        self._seq += 1
        self._spoke = at
        self._file.append(
            build_line(
                msg,
                fields,
                pid=self._pid,
                rank=self._number,
                boot=self._boot,
                seq=self._seq,
                step=step,
                failures=self._file.failures,
                ago_s=time.monotonic() - at,
            )
        )

    def break_silence(self, after_s: float) -> None:
        if time.monotonic() - self._spoke >= after_s:
            self.say("alive")

    def show(self) -> None:
        """Let other hosts see what was said."""
        self._file.show()

    def close(self) -> None:
        self._file.finish()


@dataclass(frozen=True, slots=True)
class Around:
    """What a line says of its step beside the number."""

    of: int | None
    """How many there are: `8/80`."""
    bar: bool
    """Whether it is a progress bar's: how many are done."""
    epoch: int | None
    """The counter around the steps."""
    word: str | None
    """What it is called, in small letters."""


def around(found: re.Match[str]) -> Around:
    """Return what a line says of its step beside the number."""
    numbered = bool(found.groupdict().get("step"))
    length = _LENGTH.match(found.string, found.end("step")) if numbered else None
    epoch = _EPOCH.search(found.string)
    return Around(
        of=None if length is None else _whole(length[1]),
        bar=length is not None and length[2] is not None,
        epoch=None if epoch is None else int(epoch[1]),
        word=_word_at(found) if numbered else None,
    )


def own_loss(match: re.Match[str]) -> str | None:
    """Return the loss that a line tells: behind one of a kind, the next one that is of none."""
    found = match.groupdict().get("loss")
    line = match.string
    if found is None or not _is_of_a_kind(line, match.start("loss")):
        return found
    evaluates = _EVALUATES.search(line, match.end("loss"))
    until = len(line) if evaluates is None else evaluates.start()
    others = _LOSS.finditer(line, match.end("loss"), until)
    plain = (row["loss"] for row in others if not _is_of_a_kind(line, row.start("loss")))
    return next(plain, found)


def _is_of_a_kind(line: str, number_at: int) -> bool:
    return _OF_A_KIND.search(line[max(0, number_at - _KIND_CHARS) : number_at]) is not None


def may_tell_a_loss(text: str) -> bool:
    """Say whether a guessed pattern may fit a line: to ask each of them takes far longer."""
    small = text.lower()
    return any(word in small for word in _LOSS_WORDS) or _NO_LOSS_WORD.match(text) is not None


def may_be_epochs(length: int, steps: int) -> bool:
    """Say whether a run of some steps may be made in epochs of a length.

    Then what is counted to its own number may be an evaluation as long as they are together. That
    is no accident to reckon with where they are many: it was a warm-up, or the shards of a file.
    """
    return length > 0 and steps % length == 0 and steps // length < MANY_EPOCHS


def check_patterns(patterns: Sequence[str]) -> str | None:
    """Return what is wrong with the first pattern that cannot be used; None when all can."""
    for text in patterns:
        try:
            groups = re.compile(text).groupindex.keys()
        except re.error as error:
            return f"pattern {text!r}: {error}"
        if unknown := sorted(groups - GROUPS):
            known = ", ".join(sorted(GROUPS))
            return f"pattern {text!r}: found group {unknown[0]!r}; expected one of {known}"
        if not groups & {"step", "loss"}:
            return f"pattern {text!r}: it names neither (?P<step>…) nor (?P<loss>…)"
    return None


def _word_at(match: re.Match[str]) -> str | None:
    """Return what a line calls its step, in small letters; None where no word is at the number."""
    text, (begin, end) = match.string, match.span("step")
    before = _WORD_BEFORE.search(text[max(0, begin - _WORD_CHARS) : begin])
    found = before or _WORD_AFTER.match(text[end : end + _WORD_CHARS])
    return None if found is None else found[1].lower()


def _joined(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two lines tell of one step: a loss that is not finite is never hidden."""
    return {**more, **known, **({"loss": more["loss"]} if is_lost(more) else {})}


def _is_exact(value: float | None) -> bool:
    """Say whether a number has so many decimals that no two steps share it."""
    return value is not None and math.isfinite(value) and round(value, FEW_DECIMALS) != value


def _now_ticks() -> int:
    """Return the time by the clock that says when a process began."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


def _decoded(line: bytes) -> str:
    return _COLOUR.sub("", line[-_LINE_BYTES:].decode(errors="replace")).rstrip()


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None


def number_of(text: str | None) -> float | None:
    """Return what is printed as a number; `nan.` and `2.5]` end a sentence or a list.

    What has a comma that divides no thousands (`2,31`, `0,693`) has two readings, and is none.
    """
    try:
        bare = (text or "").rstrip(_ENDS).lstrip(_BEGINS)
        if not bare or ({*bare} & {*_DIVIDES} and _DIVIDED.fullmatch(bare) is None):
            return None
        return float(bare.translate(_UNDIVIDED))
    except ValueError:
        return None
