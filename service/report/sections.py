"""Which tables do phases, machine and configuration get? Each a pure function of the view."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from gonogo.contract.api import ExperimentView, RunView
from gonogo.contract.heartbeat import Identity
from service.report.field import CLAIM, FIELD_PLANS, expected_of
from service.report.files import SealedFile
from service.report.text import NONE, block, code, duration, inline, loss, number, percent, table
from service.report.view import SECTIONS, RankNumbers, ReportView, RunReport


def phase_table(view: ReportView) -> str:
    """Return one row per run, in the order of their start, and the phases that have none."""
    heads = (
        "phase", "begins", "outcome", "verdict", "steps", "first loss", "last loss", "val loss",
        "tok/s, median", "step, median", "slowest section", "peak memory", "took", "run",
    )  # fmt: skip
    rows = [_phase_row(run) for run in view.runs]
    begun = {run.view.phase for run in view.runs}
    rows += [
        (phase.name, phase.begins, phase.state.value, NONE, f"0 / {phase.steps}", *[NONE] * 9)
        for phase in view.experiment.phases
        if phase.name not in begun
    ]
    return table(heads, rows)


def _phase_row(run: RunReport) -> tuple[str, ...]:
    outcome = run.view.outcome
    return (
        run.title,
        inline(run.view.began.removeprefix("begins ")),
        outcome.code.value if outcome else run.view.state.value,
        f"**{run.view.verdict}**" if run.view.verdict else NONE,
        f"{number(run.least('final_step'))} / {run.view.steps}",
        loss(run.first("first_loss")),
        loss(run.first("last_loss")),
        loss(run.first("last_val_loss")),
        number(run.least("median_tok_s")),
        duration(run.worst("median_step_s")),
        slowest_section(run) or NONE,
        _memory(run),
        duration(took_s(run.view)),
        code(run.view.id),
    )


def _memory(run: RunReport) -> str:
    reserved, used = run.worst("peak_reserved_mb"), run.worst("peak_used_mb")
    if reserved:
        return f"{reserved / 1000:.2f} GB reserved"
    if used:
        return f"{used / 1000:.2f} GB in use"
    host = run.worst("peak_rss_mb")
    return NONE if host is None else f"{host / 1000:.2f} GB host"


def took_s(view: RunView | ExperimentView) -> float | None:
    """Return the seconds from the beginning of a run or an experiment to its end."""
    if view.started_at is None or view.ended_at is None:
        return None
    start, end = map(datetime.fromisoformat, (view.started_at, view.ended_at))
    return (end - start).total_seconds()


def slowest_section(run: RunReport) -> str | None:
    """Return the section in which the slowest rank spends most of a step, with its share."""
    ranks = [rank for rank in run.ranks if rank.sections_s and rank.median_step_s]
    if not ranks:
        return None
    slow = max(ranks, key=lambda rank: rank.median_step_s or 0)
    named = {name: value for name, value in slow.sections_s.items() if value is not None}
    if not named:
        return None
    name = max(named, key=lambda key: named[key])
    return f"{name} {percent(named[name], _whole_s(slow))}"


def _whole_s(rank: RankNumbers) -> float:
    """Return the seconds that sections are shares of: a step's, also what is in none of them.

    Of a trainer that fetches between two steps the sections are longer than the step.
    """
    return max(rank.median_step_s or 0.0, sum(value or 0.0 for value in rank.sections_s.values()))


def step_table(run: RunReport) -> str:
    """Return per rank: the median seconds of a step and the share of each of its sections."""
    heads = ("rank", "last step", "step, median", *SECTIONS, "tok/s", "fetch")
    return table(heads, [_step_row(rank) for rank in run.ranks])


def _step_row(rank: RankNumbers) -> tuple[str, ...]:
    total = _whole_s(rank)
    cells = []
    for name in SECTIONS:
        value = rank.sections_s.get(name)
        cells.append(
            NONE if value is None else f"{number(value, 3, 's')} ({percent(value, total)})"
        )
    return (
        str(rank.rank),
        str(rank.final_step),
        number(rank.median_step_s, 4, "s"),
        *cells,
        number(rank.median_tok_s),
        number(rank.median_fetch_s, 3, "s"),
    )


def environment(view: ReportView) -> str:
    """Return host, torch, code and devices of each run; equal runs share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for run in view.runs:
        rows.setdefault(_environment_row(run), []).append(run.title)
    heads = ("runs", "host", "worker", "torch", "git SHA", "devices", "measured peak", "preflight")
    return table(heads, [(", ".join(runs), *row) for row, runs in rows.items()])


def _environment_row(run: RunReport) -> tuple[str, ...]:
    checks = {row.id: row for row in run.preflight.checks} if run.preflight else {}
    said = run.ran[min(run.ran)] if run.ran else Identity()
    sha = said.git_sha or (checks["code"].text if "code" in checks else None)
    torch = run.environment.get("torch") or (
        checks["environment"].text if "environment" in checks else NONE
    )
    devices = run.preflight.devices if run.preflight else []
    peak = run.preflight.peak_flops if run.preflight else None
    warned = [row for row in checks.values() if row.outcome != "pass"]
    told = "; ".join(f"{row.id} {row.outcome}: {row.text}" for row in warned)
    return (
        inline(run.view.host or NONE),
        inline(run.view.worker or NONE),
        inline(torch),
        code(sha) if sha else NONE,
        inline(", ".join(f"{row.get('device')} {row.get('name')}" for row in devices) or NONE),
        NONE if not peak else number(peak / 1e12, 3, "TFLOP/s"),
        inline(told) if told else ("passed" if run.preflight else "not recorded"),
    )


def configuration(view: ReportView) -> str:
    """Return what was ordered beside what ran, equal runs together, and the configuration."""
    heads = ("field", "ordered", "what the ranks said", "counted on the model", "")
    by_run = {run.title: list(_identity_rows(run)) for run in view.runs}
    everywhere = [
        row
        for row in next(iter(by_run.values()), [])
        if all(row in rows for rows in by_run.values())
    ]
    parts = [table(heads, everywhere)] if everywhere else []
    for title, rows in by_run.items():
        own = [row for row in rows if row not in everywhere]
        if own:
            parts += [
                f"In **{title}**, where the runs differ:" if everywhere else f"**{title}**",
                table(heads, own),
            ]
    train = json.dumps(view.train, indent=1, ensure_ascii=False, sort_keys=True)
    parts += ["The whole training configuration of the plan:", block(train, "json")]
    return "\n\n".join(parts)


def _identity_rows(run: RunReport) -> Iterator[tuple[str, ...]]:
    ordered = run.order.identity if run.order else Identity()
    for name in Identity.model_fields:
        wanted = getattr(ordered, name)
        said = {rank: getattr(identity, name) for rank, identity in run.ran.items()}
        counted = getattr(run.counted, name) if run.counted else None
        if wanted is None and counted is None and not any(v is not None for v in said.values()):
            continue
        yield (
            name,
            _value(wanted) if wanted is not None else "not checked",
            _said(said),
            _value(counted),
            _agreement(wanted, list(said.values()), name),
        )


def _said(said: dict[int, Any]) -> str:
    if not said:
        return "nothing"
    if len({json.dumps(value, sort_keys=True) for value in said.values()}) == 1:
        return _value(next(iter(said.values())))
    return "; ".join(f"rank {rank}: {_value(value)}" for rank, value in said.items())


def _value(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, str) and len(value) > 24:
        return code(f"{value[:20]}…")
    return code(value if isinstance(value, str) else json.dumps(value, sort_keys=True))


def _agreement(wanted: Any, said: list[Any], name: str) -> str:
    """Return whether the ranks agree with the order, as the identity criterion counts it."""
    told = [value for value in said if value is not None]
    if wanted is None or not said:
        return ""
    if name == "params":
        near = all(abs(value - wanted) <= 0.02 * wanted for value in told)
        word = "equal within 2 %" if near else "**DIFFERS**"
    else:
        word = "equal" if all(value == wanted for value in told) else "**DIFFERS**"
    if len(told) == len(said):
        return word
    return "not told" if not told else f"{word}, where told"


def expected(view: ReportView, run: RunReport) -> list[str]:
    """Return the field's figures beside ours, where they can be compared."""
    if view.experiment.plan not in FIELD_PLANS:
        return []
    rows = [(row.what, row.field, row.measured) for row in expected_of(run)]
    heads = ("expected from the field", "field (A100×2 PCIe)", "measured")
    return ["### Expected", table(heads, rows), CLAIM]


def artifact_parts(run: RunReport) -> list[str]:
    """Return the files of a run: where they lie, how large they are, and which bytes they are."""
    found = run.artifacts
    if not run.files:
        if not found.dir:
            return ["It has no directory."]
        return [f"In {_place(run)}: nothing of it is here."]
    sealed = _sealed(run)
    rows = (
        (
            code(row.path),
            str(row.bytes),
            code(row.sha256) if row.sha256 else NONE,
            _standing(row, sealed.get(row.path)),
        )
        for row in run.files
    )
    parts = [f"In {_place(run)}." if found.dir else "Of what was shipped."]
    parts.append(table(("file", "bytes", "SHA-256", ""), rows))
    if run.more_files:
        parts.append(f"And {run.more_files} more.")
    return parts


def _place(run: RunReport) -> str:
    return f"{code(run.artifacts.dir)} on {inline(run.artifacts.host or 'an unknown host')}"


def _sealed(run: RunReport) -> dict[str, str]:
    """Return file → digest of the small files that the decision rests on."""
    said = run.decision.facts.get("files") if run.decision is not None else None
    return {name: str(row.get("sha256")) for name, row in (said or {}).items()}


def _standing(row: SealedFile, sealed: str | None) -> str:
    """Say whether a file is the one that was judged."""
    parts = [inline(row.note)] if row.note else []
    if sealed is not None and row.sha256 is not None:
        same = row.sha256 == sealed
        parts.append("as judged" if same else "**DIFFERS from the file that was judged**")
    return "; ".join(parts)
