"""What may a gate look at? All of it, as JSON: the same from a directory and from the database.

Facts hold no path, no raw bytes and no wall time; numbers are rounded to nine significant digits.
Heartbeats are held as their count and digest per rank, and as what the rules' criteria measure on
them, so facts stay small however long the run was.
"""

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gonogo.contract.canonical import canonical_bytes, rounded, wire_value
from gonogo.contract.criterion import Criterion
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.outcome import CODE_OF_DETECTOR, Actor, Outcome, OutcomeCode
from gonogo.contract.records import CheckOutcome
from gonogo.judge.measure import build_measure, quantile
from gonogo.judge.record import RunRecord
from gonogo.judge.rules import build_rules
from gonogo.judge.scope import Scope, build_scope
from gonogo.judge.signs import signs_of
from gonogo.judge.steps import STEP_MESSAGES, RankSteps, build_rank_steps

EXAMPLES = 3
"""How many missing lines are named per rank."""

MAX_BLOCKS = 64
"""Blocks of lines with a digest of their own, per rank."""

BLOCK_STEPS = 8
"""Number of consecutive steps in one block of the pace."""


def build_facts(record: RunRecord, rules: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the facts of a run.

    Args:
        record: what the run left behind.
        rules: whose criteria are measured; those of the record's own order when None.

    Returns:
        JSON-safe, digestable facts; `judge(facts, rules)` needs nothing else.
    """
    rules = build_rules(record.order) if rules is None else rules
    scope = build_scope(rules)
    ranks = {rank: build_rank_steps(row.in_time()) for rank, row in record.streams.items()}
    outcome = outcome_of(record, ranks, scope)
    facts = {
        "v": 1,
        "source": "predecessor" if record.predecessor else "gonogo",
        "outcome": None if outcome is None else outcome.model_dump(mode="json", exclude={"text"}),
        "exit": _exit_facts(record),
        "rank_exits": {
            str(rank): {"code": row.code, "signal": row.signal}
            for rank, row in sorted(record.rank_exits.items())
        },
        "preflight": _preflight_facts(record),
        "watched": record.watched,
        "findings": [_finding_facts(finding) for finding in record.findings],
        "ranks": {
            str(rank): _rank_facts(record.streams[rank].beats, ranks[rank], scope)
            for rank in sorted(ranks)
        },
        "identity": {
            str(rank): identity.model_dump(mode="json", exclude_none=True)
            for rank, identity in ((rank, ranks[rank].identity()) for rank in sorted(ranks))
            if identity is not None
        },
        "pace": {str(rank): _pace(ranks[rank]) for rank in sorted(ranks)},
        "signs": signs_of(beat for row in record.streams.values() for beat in row.beats),
        "measures": _measures(ranks, scope, rules),
    }
    found: dict[str, Any] = wire_value(facts)
    return found


def outcome_of(
    record: RunRecord, ranks: Mapping[int, RankSteps], scope: Scope | None
) -> Outcome | None:
    """Return why the run ended, or None when nothing says that it did.

    exit.json says it. Without one, a halt finding or every rank's `done` stands for it.
    """
    if record.exit is not None:
        return Outcome(code=record.exit.reason, actor=record.exit.ended_by, text=record.exit.text)
    halt = next((row for row in record.findings if row.severity is Severity.HALT), None)
    if halt is not None:
        code = CODE_OF_DETECTOR.get(halt.detector, OutcomeCode.STALLED)
        return Outcome(code=code, actor=Actor.WATCHDOG, text=halt.text)
    everyone = scope is not None and all(
        rank in ranks and ranks[rank].done_step is not None for rank in range(scope.world_size)
    )
    if everyone:
        return Outcome(code=OutcomeCode.COMPLETED, actor=Actor.TRAINER)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatDigests:
    """Digests of one rank's canonical heartbeats."""

    whole: str
    """SHA-256 of the RFC 8785 array of all of them."""
    blocks: list[str]
    """First 16 hex digits of the SHA-256 of each block: says where a difference lies."""


def block_size(count: int) -> int:
    """Return how many consecutive lines one block digest covers."""
    return max(1, math.ceil(count / MAX_BLOCKS))


def digest_beats(beats: Sequence[Heartbeat]) -> BeatDigests:
    """Return the digests of canonical heartbeats."""
    size = block_size(len(beats))
    whole = hashlib.sha256(b"[")
    blocks = []
    for first in range(0, len(beats), size):
        rows = b",".join(_bytes_of(row) for row in beats[first : first + size])
        whole.update(b"," + rows if first else rows)
        blocks.append(hashlib.sha256(rows).hexdigest()[:16])
    whole.update(b"]")
    return BeatDigests(whole=whole.hexdigest(), blocks=blocks)


def _bytes_of(beat: Heartbeat) -> bytes:
    """Return the bytes of `beat.canonical()`; the encoder itself names what is not finite."""
    return canonical_bytes(beat.model_dump(exclude_none=True))


def _exit_facts(record: RunRecord) -> dict[str, Any] | None:
    if record.exit is None:
        return None
    return {"code": record.exit.code, "signal": record.exit.signal}


def _preflight_facts(record: RunRecord) -> dict[str, Any] | None:
    if record.preflight is None:
        return None
    checks = record.preflight.checks
    return {
        "passed": record.preflight.passed,
        "failed": sorted(check.id for check in checks if check.outcome is CheckOutcome.FAIL),
        "warned": sorted(check.id for check in checks if check.outcome is CheckOutcome.WARN),
        "checks": len(checks),
    }


def _finding_facts(finding: Finding) -> dict[str, Any]:
    """Return a finding without its times, its texts and its paths."""
    return {
        "detector": finding.detector.value,
        "severity": finding.severity.value,
        "rank": finding.rank,
        "section": finding.section,
        "step": finding.step,
        "value": None if finding.value is None else rounded(finding.value),
        "threshold": None if finding.threshold is None else rounded(finding.threshold),
        "source": finding.source.value,
    }


def _rank_facts(
    beats: Sequence[Heartbeat], steps: RankSteps, scope: Scope | None
) -> dict[str, Any]:
    digests = digest_beats(beats)
    return {
        "count": len(beats),
        "digest": digests.whole,
        "blocks": digests.blocks,
        "boots": len(steps.boots),
        "gaps": steps.gaps,
        "last_step": steps.last_step,
        "last_msg": steps.last.msg if steps.last is not None else None,
        "last_section": steps.last.section if steps.last is not None else None,
        "done_step": steps.done_step,
        "tokens": sorted(
            {beat.tokens for beat in steps.said[Msg.STEP_END].values() if beat.tokens is not None}
        )[:EXAMPLES],
        "missing": None if scope is None else _missing(steps, scope),
    }


def _missing(steps: RankSteps, scope: Scope) -> dict[str, Any]:
    """Return how many of the owed lines are not there, and the first of them."""
    absent = [
        f"{msg.value} {step}"
        for step in scope.steps()
        for msg in STEP_MESSAGES
        if step not in steps.said[msg]
    ]
    return {"count": len(absent), "first": absent[:EXAMPLES]}


def _pace(steps: RankSteps) -> dict[str, Any]:
    """Return step times, the share of each section, and the pace with its pauses, in seconds.

    `block_s` are means per step over blocks of eight steps, pauses between steps (checkpoint,
    eval) included: their median and 90th percentile are what a forecast rests on.
    """
    times = list(steps.step_times().values())
    blocks = _block_means(steps)
    return {
        "steps": len(times),
        "median_step_s": _median(times),
        "p95_step_s": rounded(quantile(times, 0.95)) if times else None,
        "block_p50_s": _median(blocks),
        "block_p90_s": rounded(quantile(blocks, 0.9)) if blocks else None,
        "sections_s": _sections(steps),
    }


def _block_means(steps: RankSteps) -> list[float]:
    ends = [beat for _, beat in sorted(steps.said[Msg.STEP_END].items())]
    blocks = []
    size = max(1, min(BLOCK_STEPS, len(ends) - 1))
    for first, last in zip(ends[:-size:size], ends[size::size], strict=False):
        if first.boot == last.boot and last.step > first.step:
            blocks.append((last.mono - first.mono) / (last.step - first.step))
    return blocks


def _sections(steps: RankSteps) -> dict[str, float | None]:
    rows = [
        beat.step_sections
        for beat in steps.said[Msg.STEP_END].values()
        if beat.step_sections is not None
    ]
    names = ("data", "forward", "backward", "optimizer", "wait")
    return {name: _median([getattr(row, name) for row in rows]) for name in names if rows}


def _median(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return rounded(statistics.median(finite)) if finite else None


def _measures(
    ranks: Mapping[int, RankSteps], scope: Scope | None, rules: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what each criterion sees: those of the gate by id, those of conditions by theirs."""
    if scope is None:
        return {}
    wanted = {row["id"]: row for row in rules["gate"]}
    wanted |= {row["condition"]["id"]: row["criterion"] for row in rules["conditions"]}
    return {
        name: build_measure(Criterion.model_validate(row), ranks, scope)
        for name, row in wanted.items()
    }
