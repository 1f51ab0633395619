"""Advice at the end of `gonogo run`: what keeps the verdict open, and the option that helps."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gonogo.contract.decision import CriterionOutcome, Verdict
from gonogo.contract.facts import ExitFacts
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.patterns import PATTERNS, fitting
from gonogo.contract.plan import DRIFTS
from gonogo.rundir import RunDir, read_tail
from gonogo.supervise.launch.printed_steps import Doubt, PrintedSteps, float_number
from gonogo.supervise.processes import SHELLS
from gonogo.trainer.line_file import ATTACHED

MOST_SHOWN = 60
"""Characters of a line that are shown."""
_LOG_BYTES = 2**18
_LEAST_LINES = 3
"""Lines of one shape with a growing number that count as steps."""
_BEFORE = 24
"""Characters before a number that a suggested pattern names."""
_ANY_NUMBER = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?")
_WHOLE = re.compile(r"(?<![\w.:/,-])\d{1,9}(?![\w:%]|[.,-]\d)")
"""A number that may be a step: no part of a date, a time, a duration or a decimal."""
_LOSS = re.compile(r"(?i)(?:loss|cost|error)[\w/]*\W{1,4}(?=[\d.+-]|nan|inf)")
_TOTAL = re.compile(r"(?<![\d.])\d+/(\d+) \[\d+:\d")
_REMEDY = "give a --pattern for a number that counts the whole run, or attach it"
_DOUBTS = {
    Doubt.NO_NUMBER: "its lines show no step and were counted: that shows that it moves, not that"
    f" it is complete; {_REMEDY}",
    Doubt.WENT_BACK: f"a number in its lines went back (epochs, or a restart): {_REMEDY}",
    Doubt.OTHER_TOTAL: "its lines count to {total}, and {steps} steps were ordered: correct"
    f" --steps, or {_REMEDY}",
}


def advise_run(
    order: Order, run_dir: RunDir, document: Mapping[str, Any], *, planned: bool, stopped: bool
) -> list[str]:
    """Return advice on a run, the most useful first."""
    read = not (run_dir.path / ATTACHED).exists()
    return Advice(
        order=order,
        facts=document["facts"],
        criteria=document["criteria"],
        heard=sorted(run_dir.ranks()),
        planned=planned,
        read=read,
        printed=printed_lines(run_dir) if read else [],
    ).all(failed=document["verdict"] == Verdict.NO_GO, stopped=stopped)


def printed_lines(run_dir: RunDir) -> list[str]:
    """Return the last lines that the program printed; states of a progress bar are lines, too."""
    return re.split(r"[\r\n]+", read_tail(run_dir.rank_log(0), _LOG_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A run, as advice sees it."""

    order: Order
    facts: Mapping[str, Any]
    criteria: Sequence[Mapping[str, Any]]
    heard: Sequence[int]
    """Ranks of which any line came."""
    planned: bool
    read: bool
    """Whether the program is known by its output alone."""
    printed: Sequence[str]

    def all(self, *, failed: bool = False, stopped: bool = False) -> list[str]:
        """Return all advice; little for a failed run, and for one that a person stopped."""
        rows = [*self._ranks(), *self._loss(), *self._drift()]
        code = (self.facts["outcome"] or {}).get("code")
        if stopped or code == OutcomeCode.PREFLIGHT_FAILED:
            return rows
        resumed = None if self.read else resumed_after(self.facts["ranks"], self.facts["boots"])
        counted: list[str] = []
        if resumed is None and (failed or not self.read):
            counted = list(self._counted_steps())
        rows += counted
        if failed or not self._open():
            return rows
        if resumed is not None:
            rows += self._checkpoint(resumed)
        return [*rows, *self._end(), *self._unread(bool(counted)), *self._gate()]

    def _open(self) -> set[str]:
        rows = self.criteria
        return {row["id"] for row in rows if row["outcome"] == CriterionOutcome.INCONCLUSIVE}

    def _clean_exit(self) -> ExitFacts | None:
        """Return the ends of a command that exited with 0."""
        found = self.facts["exit"]
        ended = None if found is None else ExitFacts.model_validate(found)
        clean = ended is not None and ended.agent is not None and ended.agent.clean
        return ended if clean else None

    def _ranks(self) -> Iterator[str]:
        many = max(self.heard, default=-1) + 1
        if many > self.order.world_size:
            what = f"say --world-size {many}"
            if self.planned:
                what = "correct workload.world_size in the plan"
            yield f"{many} ranks were heard and {self.order.world_size} ordered: {what}"

    def _loss(self) -> Iterator[str]:
        own = [] if self.order.patterns_guessed else self.order.patterns
        rows = [re.compile(text) for text in own if text not in PATTERNS.values()]
        hits = [r.search(line) for r in rows if "loss" in r.groupindex for line in self.printed]
        found = [hit["loss"] for hit in hits if hit is not None and hit["loss"] is not None]
        if found and all(float_number(text) is None for text in found):
            yield (
                f"no loss was read: (?P<loss>…) finds {found[0][:40]!r}, which is no number;"
                " correct --pattern: (?P<loss>\\S+)"
            )

    def _drift(self) -> Iterator[str]:
        rows = [row for row in self.criteria if row["id"] == "identity"]
        failed = [row for row in rows if row["outcome"] == CriterionOutcome.FAIL]
        fields = [name for row in failed for name in DRIFTS if name in (row.get("observed") or {})]
        if fields:
            what = " ".join(f"--allow-drift {name}" for name in fields)
            if self.planned:
                what = f"in the plan, allow_drift: [{', '.join(fields)}]"
            yield f"if {' and '.join(fields)} may differ: {what} (CONDITIONAL_GO then)"

    def _counted_steps(self) -> Iterator[str]:
        """Yield the number of steps to order, if all ranks agree on another one."""
        ranks = self.facts["ranks"].values()
        counts = {max(row["done_step"] or 0, row["last_step"]) for row in ranks}
        count = counts.pop() if len(counts) == 1 else 0
        if count <= 0 or count == self.order.steps or self._clean_exit() is None:
            return
        remedy = f"correct the steps of the plan to {count}"
        if not self.planned:
            remedy = f"say --steps {count} before the --"
        what = "1 step was" if count == 1 else f"{count} steps were"
        yield f"{what} counted: {remedy} if that is a whole run"

    def _checkpoint(self, after: int) -> Iterator[str]:
        """Yield what to do about a script that resumed from a checkpoint of another run."""
        if self.order.steps is None or "coverage" not in self._open():
            return
        came = f"the script resumed after step {after}, from a checkpoint of its own"
        if after >= self.order.steps:
            more = "steps of the plan" if self.planned else "--steps"
            yield (
                f"{came}, and nothing was left of the {self.order.steps} ordered steps: remove that"
                f" checkpoint, or raise {more}"
            )
            return
        waiver = "waive: [coverage]" if self.planned else "--waive coverage"
        yield (
            f"{came}, but a run must show every step from the first on: remove that checkpoint, or"
            f" waive the steps before: {waiver} (CONDITIONAL_GO at best)"
        )

    def _unread(self, counted: bool) -> Iterator[str]:
        """Yield how the program's output can be read, and what is missing about it."""
        open_, order = self._open(), self.order
        if self.read and not self.heard:
            yield from advise_unread(order, self.printed)
        elif self.read and len(self.heard) < order.world_size and not self.planned:
            ranks = ", ".join(map(str, self.heard))
            yield (
                f"only rank {ranks} of {order.world_size} was heard: if one prints for all, leave"
                " --world-size out"
            )
        if order.steps is None and not counted:
            yield "the last step of a whole run is unknown: say --steps N before the --"
        missing = [n for n in ("identity", "coverage") if n in open_ and n not in order.waive]
        if self.read and self.heard and missing and (self.planned or "completed" not in open_):
            waivers = " ".join(f"--waive {name}" for name in missing)
            accept = "take CONDITIONAL_GO for success: --accept conditional"
            yield (
                f"a program that is only read cannot report {' and '.join(missing)}: attach it"
                " (three lines, docs/how-to/attach.md), or"
                f" {f'go without: {waivers}' if self.planned else accept}"
            )

    def _end(self) -> Iterator[str]:
        if "completed" not in self._open():
            return
        ranks, steps = self.facts["ranks"].values(), self.order.steps
        last = max((row["last_step"] for row in ranks), default=None)
        if self.read and self.heard and steps is not None and last is not None:
            yield from advise_end(self.order, self.printed, last)
        whole = [row for row in ranks if steps is not None and row["last_step"] >= steps]
        if not self.read and any(row["done_step"] is None for row in whole):
            yield (
                "a script reports its end by leaving its block without an error: with"
                " gonogo.trainer.attach() as beat (docs/how-to/attach.md)"
            )

    def _gate(self) -> Iterator[str]:
        open_ = [row for row in self.criteria if row["id"] in self._open()]
        empty = {row["id"] for row in open_ if row.get("samples") == 0}
        evals = [r.id for r in self.order.gate if r.id in empty and r.metric == "val_loss"]
        if evals and not self.read:
            yield (
                f"{', '.join(evals)} waits for an evaluation: beat.eval(loss) after its step"
                " (docs/how-to/attach.md)"
            )
        for row in open_ if self.read and self.heard else ():
            if _is_sparse(row) and row["id"] not in self.order.waive:
                yield (
                    f"{row['id']} needs a sample of every step, and the lines have some: print each"
                    f" step, or waive it: --waive {row['id']} (in a plan: waive: [{row['id']}])"
                )


def _is_sparse(row: Mapping[str, Any]) -> bool:
    first, _, last = (row.get("window") or "").partition("..")
    return bool(last) and 0 < (row.get("samples") or 0) <= int(last) - int(first)


def resumed_after(
    ranks: Mapping[str, Mapping[str, Any]], boots: Mapping[str, Sequence[Mapping[str, Any]]]
) -> int | None:
    """Return the step after which a script resumed from a checkpoint that it found by itself.

    None if it began with the first step, if lines are missing, or if it was restarted. Takes
    `ranks` and `boots` of the facts.
    """
    found: set[int] = set()
    for rank, row in ranks.items():
        lives = boots.get(rank, [])
        if row["done_step"] is None or row["gaps"] or len(lives) != 1:
            return None
        found.add(row["done_step"] - lives[0]["ended_steps"])
    step = found.pop() if len(found) == 1 else 0
    return step if step > 0 else None


def advise_unread(order: Order, lines: Sequence[str]) -> list[str]:
    """Return what would read a program of which no step was read, by the lines it printed."""
    if not order.patterns_guessed:
        return ["no line of its output (rank0.log) fits --pattern: correct it, or leave it out"]
    totals = [int(found[1]) for line in lines if (found := _TOTAL.search(line)) is not None]
    if order.steps is None and totals:
        steps = f"--steps {totals[-1]}"
        return [f"a bar in its output counts to {totals[-1]}: {steps} reads it, if that is all"]
    if "tqdm" in fitting(lines):
        return [
            "no pattern that was tried fits a line of its output, but --pattern"
            " tqdm does: run it with that, or attach it"
        ]
    if (shape := suggest(lines)) is not None:
        line, pattern = shape
        return [f"lines like `{line[:MOST_SHOWN]}` were seen; --pattern '{pattern}' reads them"]
    return [
        "no line of its output fits a pattern: give one"
        r" (--pattern 'iter (?P<step>\d+): loss (?P<loss>\S+)'), or attach it"
        " (docs/how-to/attach.md)"
    ]


def suggest(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return a line whose number grows from line to line, and a pattern that reads it; or None."""
    shapes: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        shapes[_ANY_NUMBER.sub("#", line)[:200]].append(line)
    for alike in sorted(shapes.values(), key=len, reverse=True):
        if len(alike) < _LEAST_LINES or "'" in alike[-1]:
            continue
        found = [list(_WHOLE.finditer(line)) for line in alike]
        for place in range(min(map(len, found))):
            numbers = [int(row[place][0]) for row in found]
            if all(before < after for before, after in pairwise(numbers)):
                return alike[-1], _pattern_of(alike[-1], found[-1][place])
    return None


def _pattern_of(line: str, step: re.Match[str]) -> str:
    before = line[max(0, step.start() - _BEFORE) : step.start()]
    words = re.sub(r"^[^\w\[(<]+", "", _ANY_NUMBER.split(before)[-1])
    pattern = ("" if words else "^ *") + _escaped(words) + r"(?P<step>\d+)"
    loss = _LOSS.search(line, step.end())
    return pattern if loss is None else rf"{pattern}.*?{_escaped(loss[0])}(?P<loss>\S+)"


def _escaped(text: str) -> str:
    return re.escape(text).replace(r"\ ", " ")


def advise_end(order: Order, lines: Sequence[str], last: int) -> list[str]:
    """Return what keeps the end of a program open of which `last` steps were read."""
    steps = order.steps
    printed = PrintedSteps(order.patterns, steps, guessed=order.patterns_guessed)
    for line in lines:
        for _ in printed.take(line, 0.0):
            pass
    if (doubt := printed.doubt(0)) in _DOUBTS:
        return [_DOUBTS[doubt].format(total=printed.count(0).total, steps=steps)]
    if steps is not None and last < steps:
        return [
            f"step {last} was the last that was read from its lines, of {steps}: print every"
            f" step, attach it, or say --steps {last} if that is a whole run"
        ]
    if order.command and os.path.basename(order.command[0]) in SHELLS:
        return ["only the shell saw how the program ended: write exec before its command"]
    return []
