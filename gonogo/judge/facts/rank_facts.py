"""The facts of one rank: its lines counted, what of them is missing, and its pace."""

import hashlib
import math
import statistics
from collections.abc import Sequence

from gonogo.contract.canonical import canonical_bytes, rounded
from gonogo.contract.facts import Missing, PaceFacts, RankFacts
from gonogo.contract.heartbeat import Msg
from gonogo.contract.rules import Rules
from gonogo.judge.facts.measure import quantile
from gonogo.timeline.columns import NEVER, SECTIONS, STEP_MESSAGES
from gonogo.timeline.lines import LineRecord
from gonogo.timeline.rank_steps import RankSteps

EXAMPLES = 3
"""How many missing lines are named per rank."""

BLOCK_STEPS = 8
"""Number of consecutive steps in one block of the pace."""


def build_rank_facts(steps: RankSteps, lines: LineRecord | None, rules: Rules) -> RankFacts:
    """Return what one rank's lines come to."""
    boots = {} if lines is None else lines.boots
    digests = [
        (boot, boots[boot].count, boots[boot].digest())
        for boot in sorted(row.boot for row in steps.boots)
        if boot in boots
    ]
    table, boot = steps.steps, steps.last_boot
    last = None if boot is None else boot.last
    tokens = {table.tokens[row] for _, row in table.steps_of(Msg.STEP_END)} - {NEVER}
    return RankFacts(
        count=steps.count,
        digest=hashlib.sha256(canonical_bytes(digests)).hexdigest(),
        blocks=[digest[:16] for _, _, digest in digests],
        boots=len(steps.boots),
        gaps=steps.gaps,
        last_step=steps.last_step,
        last_msg=None if last is None else last.msg,
        last_section=None if last is None else last.section,
        done_step=steps.done_step,
        tokens=sorted(tokens)[:EXAMPLES],
        missing=_missing(steps, rules) if rules.known else None,
        without_loss=_without_loss(steps, rules) if rules.known else None,
        with_loss=sum(map(math.isfinite, steps.samples("loss").values())) if rules.known else None,
    )


def _missing(steps: RankSteps, rules: Rules) -> Missing:
    """Return how many of the owed lines are not there, and the first of them."""
    owed, table = rules.owed_steps(), steps.steps
    there = sum(1 for msg in STEP_MESSAGES for step, _ in table.steps_of(msg) if step in owed)
    count = len(STEP_MESSAGES) * len(owed) - there
    return Missing(count=count, first=_first_missing(steps, owed) if count else [])


def _first_missing(steps: RankSteps, owed: range) -> list[str]:
    found: list[str] = []
    for step in owed:
        found += [f"{msg.value} {step}" for msg in STEP_MESSAGES if not steps.steps.said(msg, step)]
        if len(found) >= EXAMPLES:
            break
    return found[:EXAMPLES]


def _without_loss(steps: RankSteps, rules: Rules) -> Missing:
    """Return the owed steps whose progress line tells no finite loss; fp16 may skip a step."""
    table, owed = steps.steps, rules.owed_steps()
    excused = steps.skipped() if rules.identity.dtype == "fp16" else frozenset[int]()
    absent = [
        step
        for step, row in table.steps_of(Msg.PROGRESS)
        if step in owed and step not in excused and not _is_finite(table.number("loss", row))
    ]
    return Missing(count=len(absent), first=[f"loss {step}" for step in absent[:EXAMPLES]])


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def build_pace(steps: RankSteps) -> PaceFacts:
    """Return step times, the share of each section, and the pace with its pauses, in seconds.

    `block_s` are means per step over blocks of eight steps, pauses between steps (checkpoint,
    eval) included: their median and 90th percentile are what a forecast rests on.
    """
    times = list(steps.step_times().values())
    blocks = _block_means(steps)
    return PaceFacts(
        steps=len(times),
        median_step_s=_median(times),
        p95_step_s=rounded(quantile(times, 0.95)) if times else None,
        block_p50_s=_median(blocks),
        block_p90_s=rounded(quantile(blocks, 0.9)) if blocks else None,
        sections_s=_sections(steps),
    )


def _block_means(steps: RankSteps) -> list[float]:
    table = steps.steps
    ends = list(table.steps_of(Msg.STEP_END))
    blocks = []
    size = max(1, min(BLOCK_STEPS, len(ends) - 1))
    for (first, begin), (last, end) in zip(ends[:-size:size], ends[size::size], strict=True):
        if table.end_boot[begin] == table.end_boot[end]:
            blocks.append((table.end_mono[end] - table.end_mono[begin]) / (last - first))
    return blocks


def _sections(steps: RankSteps) -> dict[str, float | None]:
    table = steps.steps
    rows = [
        row for _, row in table.steps_of(Msg.STEP_END) if not math.isnan(table.sections[0][row])
    ]
    named = zip(SECTIONS, table.sections, strict=True)
    return {name: _median([column[row] for row in rows]) for name, column in named if rows}


def _median(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return rounded(statistics.median(finite)) if finite else None
