"""Which facts did release 0.1 see? The same JSON, to the last digit, from the same directory."""

import hashlib
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gonogo.contract.canonical import canonical_bytes, rounded, wire_value
from gonogo.ledger.v1.beats import Beat
from gonogo.ledger.v1.measure import build_measure, quantile
from gonogo.ledger.v1.outcomes import ended_as
from gonogo.ledger.v1.record import Finding, RunRecord
from gonogo.ledger.v1.rules import Json, Scope, build_scope, parse_criterion
from gonogo.ledger.v1.steps import STEP_MESSAGES, RankSteps, build_rank_steps

EXAMPLES = 3
MAX_BLOCKS = 64
BLOCK_STEPS = 8

SIGNS: dict[str, re.Pattern[str]] = {
    "marked_ready_twice": re.compile(r"mark(ed)? (a )?variable ready only once|ready twice", re.I),
    "out_of_memory": re.compile(r"out of memory|OutOfMemoryError|\bMemoryError\b", re.I),
    "index_error": re.compile(r"\bIndexError\b|index .* out of (range|bounds)", re.I),
    "no_space": re.compile(r"No space left on device|\bENOSPC\b", re.I),
    "collective_timeout": re.compile(r"collective operation timeout|Watchdog caught", re.I),
}


def build_facts(record: RunRecord, rules: Json) -> dict[str, Any]:
    """Return the facts of a run under rules that are well formed."""
    scope = build_scope(rules)
    ranks = {rank: build_rank_steps(row.in_time()) for rank, row in record.streams.items()}
    facts = {
        "v": 1,
        "source": "gonogo",
        "outcome": _outcome(record, ranks, scope),
        "exit": None
        if record.exit is None
        else {"code": record.exit.code, "signal": record.exit.signal},
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
        "signs": _signs(beat for row in record.streams.values() for beat in row.beats),
        "measures": _measures(ranks, scope, rules),
    }
    found: dict[str, Any] = wire_value(facts)
    return found


def _outcome(
    record: RunRecord, ranks: Mapping[int, RankSteps], scope: Scope | None
) -> dict[str, Any] | None:
    if record.exit is not None:
        return ended_as(record.exit.reason, record.exit.ended_by)
    halt = next((row for row in record.findings if row.severity == "halt"), None)
    if halt is not None:
        return ended_as(None, "watchdog", detector=halt.detector)
    everyone = scope is not None and all(
        rank in ranks and ranks[rank].done_step is not None for rank in range(scope.world_size)
    )
    return ended_as("completed", "trainer") if everyone else None


def block_size(count: int) -> int:
    """Return how many consecutive lines one block digest covers."""
    return max(1, math.ceil(count / MAX_BLOCKS))


def _digests(beats: Sequence[Beat]) -> tuple[str, list[str]]:
    size = block_size(len(beats))
    whole = hashlib.sha256(b"[")
    blocks = []
    for first in range(0, len(beats), size):
        rows = b",".join(
            canonical_bytes(row.model_dump(exclude_none=True)) for row in beats[first:][:size]
        )
        whole.update(b"," + rows if first else rows)
        blocks.append(hashlib.sha256(rows).hexdigest()[:16])
    whole.update(b"]")
    return whole.hexdigest(), blocks


def _preflight_facts(record: RunRecord) -> dict[str, Any] | None:
    if record.preflight is None:
        return None
    checks = record.preflight.checks
    return {
        "passed": record.preflight.passed,
        "failed": sorted(check.id for check in checks if check.outcome == "fail"),
        "warned": sorted(check.id for check in checks if check.outcome == "warn"),
        "checks": len(checks),
    }


def _finding_facts(finding: Finding) -> dict[str, Any]:
    return {
        "detector": finding.detector,
        "severity": finding.severity,
        "rank": finding.rank,
        "section": finding.section,
        "step": finding.step,
        "value": None if finding.value is None else rounded(finding.value),
        "threshold": None if finding.threshold is None else rounded(finding.threshold),
        "source": finding.source,
    }


def _rank_facts(beats: Sequence[Beat], steps: RankSteps, scope: Scope | None) -> dict[str, Any]:
    whole, blocks = _digests(beats)
    tokens = {beat.tokens for beat in steps.said["step_end"].values() if beat.tokens is not None}
    return {
        "count": len(beats),
        "digest": whole,
        "blocks": blocks,
        "boots": len(steps.boots),
        "gaps": steps.gaps,
        "last_step": steps.last_step,
        "last_msg": steps.last.msg if steps.last is not None else None,
        "last_section": steps.last.section if steps.last is not None else None,
        "done_step": steps.done_step,
        "tokens": sorted(tokens)[:EXAMPLES],
        "missing": None if scope is None else _missing(steps, scope),
    }


def _missing(steps: RankSteps, scope: Scope) -> dict[str, Any]:
    absent = [
        f"{msg} {step}"
        for step in scope.steps()
        for msg in STEP_MESSAGES
        if step not in steps.said[msg]
    ]
    return {"count": len(absent), "first": absent[:EXAMPLES]}


def _pace(steps: RankSteps) -> dict[str, Any]:
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
    ends = [beat for _, beat in sorted(steps.said["step_end"].items())]
    blocks = []
    size = max(1, min(BLOCK_STEPS, len(ends) - 1))
    for first, last in zip(ends[:-size:size], ends[size::size], strict=False):
        if first.boot == last.boot and last.step > first.step:
            blocks.append((last.mono - first.mono) / (last.step - first.step))
    return blocks


def _sections(steps: RankSteps) -> dict[str, float | None]:
    ends = steps.said["step_end"].values()
    rows = [beat.step_sections for beat in ends if beat.step_sections is not None]
    names = ("data", "forward", "backward", "optimizer", "wait")
    return {name: _median([getattr(row, name) for row in rows]) for name in names if rows}


def _median(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return rounded(statistics.median(finite)) if finite else None


def _signs(beats: Iterable[Beat]) -> list[str]:
    found: set[str] = set()
    for beat in beats:
        if beat.msg == "loader_error":
            found.add("loader_error")
        if beat.msg in ("error", "loader_error"):
            said = f"{beat.type or ''}: {beat.text or ''}"
            found |= {name for name, words in SIGNS.items() if words.search(said)}
    return sorted(found)


def _measures(ranks: Mapping[int, RankSteps], scope: Scope | None, rules: Json) -> dict[str, Any]:
    if scope is None:
        return {}
    wanted = {row["id"]: row for row in rules["gate"]}
    wanted |= {row["condition"]["id"]: row["criterion"] for row in rules["conditions"]}
    return {name: build_measure(parse_criterion(row), ranks, scope) for name, row in wanted.items()}
