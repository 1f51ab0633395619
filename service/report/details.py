"""The details of a report, folded below its first page: each phase, then the whole experiment."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from gonogo.contract.finding import Doubt, Effect
from gonogo.contract.goodput import WORDS, seconds_of
from gonogo.contract.heartbeat import Identity
from gonogo.contract.lifecycle import ExperimentState
from gonogo.judge.words import sentence
from gonogo.planning.resolve import is_bundled
from service.report.summary import (
    decision_table,
    diagnosis_text,
    finding_list,
    gate_table,
    picture_text,
    summary_parts,
    took_s,
)
from service.report.view import SECTIONS, RankNumbers, ReportView, RunReport, phase_pictures
from service.text import (
    NONE,
    block,
    code,
    duration,
    inline,
    loss,
    number,
    percent,
    ratio_words,
    table,
)

MAX_FILES = 200
PLAN_FILE = "plan.yaml"
FIELD_PLANS = frozenset({"m7c-125m"})
"""Plans that the figures of the source reports can be compared with."""
_COMMIT = re.compile(r"([0-9a-f]{7,64})(\+[0-9a-f]+)?")
_UNSEEN = {
    "util": "device utilisation: no device line falls into a step",
    "device_mb": "device memory: no rank and no device reports any",
    "host_mb": "host memory: no rank reports any",
    "val_loss": "validation loss: no evaluation was due or reported",
    "data": "sections of a step: not reported",
}
"""Series → the sentence if no rank has it."""


def build_report(view: ReportView) -> str:
    """Return the report of an experiment as Markdown; the same view gives the same text."""
    parts = summary_parts(view)
    for phase in view.phases:
        parts += _phase(view, phase)
    parts += ["## Goodput", *_goodput(view)]
    parts += ["## Forecast", _forecast(view)]
    parts += ["## Environment", _environment(view)]
    parts += ["## Configuration: ordered and run", *_configuration(view)]
    if view.decisions:
        parts += ["## Decisions", decision_table(view.decisions)]
    parts += ["## Repeat and check", *repeat_parts(view)]
    parts += [f"Written {view.now} for {code(view.experiment.id)}, {view.url}"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _phase(view: ReportView, phase: str) -> list[str]:
    runs = view.runs_of(phase)
    many = f", {len(runs)} attempts" if len(runs) > 1 else ""
    parts = [f"## {phase}: {runs[-1].view.verdict or 'no verdict'}{many}"]
    parts.append("\n".join(map(picture_text, phase_pictures(view, phase))))
    for run in runs:
        if many:
            parts.append(f"### Attempt {run.view.attempt}: {run.view.verdict or 'no verdict'}")
        parts += _run(view, run)
    return parts


def _run(view: ReportView, run: RunReport) -> list[str]:
    outcome = run.view.outcome
    ended = f"{outcome.code} ({outcome.klass}), by {outcome.actor}" if outcome else "not ended"
    text = f" – {inline(outcome.text)}" if outcome and outcome.text else ""
    parts = [
        f"{code(run.view.id)}, {run.view.reason}, {inline(run.view.began)}, on"
        f" {inline(run.view.host or 'no host')}. Outcome: {ended}{text}."
    ]
    if run.change:
        parts.append(f"Changed: {code(json.dumps(run.change, sort_keys=True))}.")
    if run.decision is not None:
        left_out = run.order.left_out if run.order is not None else []
        reasons = "; ".join(f"{code(row.id)}: {inline(row.why)}" for row in left_out)
        parts += ["#### Gate", gate_table(run.decision.criteria)]
        parts += [f"Left out: {reasons}."] if reasons else []
        parts.append(diagnosis_text(run))
    parts += ["#### Findings", finding_list(run.findings) or "None."]
    unseen = "\n".join(f"- {inline(row)}" for row in not_observed(run))
    parts += ["#### Not observed", unseen] if unseen else []
    if run.ranks:
        parts += ["#### Time and memory of a step", step_table(run), memory_table(run)]
    if view.experiment.plan in FIELD_PLANS:
        parts += ["#### Expected", _field_table(run)]
    return [*parts, "#### Artifacts", *_artifacts(run)]


def not_observed(run: RunReport) -> list[str]:
    """Return one sentence for each thing that was not observed."""
    rows = run.decision.facts.get("doubts") if run.decision is not None else None
    doubts = map(Doubt.model_validate, rows or ())
    found = dict.fromkeys(sentence(row) for row in doubts if row.effect is Effect.NONE)
    if not run.ranks:
        return ["no rank wrote a heartbeat", *found]
    missing = (text for name, text in _UNSEEN.items() if run.most(name, "count") is None)
    found |= dict.fromkeys(missing)
    if run.artifacts.dir is not None and not run.artifacts.reachable:
        place = f"{run.artifacts.host} at {run.artifacts.dir}"
        found[f"files of the run: they lie on {place}"] = None
    return list(found)


def step_table(run: RunReport) -> str:
    """Return by rank how long steps take, and the share of each section."""
    heads = ("rank", "last step", "step, median", "p95", "longest", *SECTIONS, "tok/s", "fetch")
    return table(heads, [_step_row(rank) for rank in run.ranks])


def _step_row(rank: RankNumbers) -> tuple[str, ...]:
    steps, whole_s, seconds = rank.series.get("step_s"), rank.whole_step_s, rank.section_s
    return (
        str(rank.rank),
        str(rank.last_step),
        *(number(getattr(steps, name, None), 4, "s") for name in ("median", "p95", "highest")),
        *(
            f"{number(seconds[name], 3, 's')} ({percent(seconds[name], whole_s)})"
            if name in seconds
            else NONE
            for name in SECTIONS
        ),
        number(rank.median("tok_s") or None),
        number(rank.median("fetch_s"), 3, "s") if "fetch_s" in rank.series else NONE,
    )


def memory_table(run: RunReport) -> str:
    """Return memory and utilisation by rank; nothing if no rank reports either."""
    columns = {
        "host memory, peak": ("host_mb", "highest", 1000.0, "GB"),
        "device memory, peak": ("device_mb", "highest", 1000.0, "GB"),
        "allocated, peak": ("alloc_mb", "highest", 1000.0, "GB"),
        "device utilisation, median": ("util", "median", 1.0, "%"),
    }
    shown = {head: row for head, row in columns.items() if run.most(row[0], row[1])}
    if not shown:
        return ""
    rows = (
        (str(rank.rank), *(_amount(rank, *row) for row in shown.values())) for rank in run.ranks
    )
    return table(("rank", *shown), rows)


def _amount(rank: RankNumbers, name: str, statistic: str, per: float, unit: str) -> str:
    value = getattr(rank.series.get(name), statistic, None)
    return NONE if value is None else f"{number(value / per, 4, unit)}"


def _field_table(run: RunReport) -> str:
    memory, fetch_s = run.most("device_mb", "highest"), run.most("fetch_s", "median")
    ready_s = max((rank.loader_ready_s or 0.0 for rank in run.ranks), default=0.0)
    rows = (
        ("throughput", "37–38 tok/s (Gen4: 45–55; floor 39)", number(run.least("tok_s", "median"))),
        ("one step", "108–120 s", duration(run.most("step_s", "median"))),
        ("memory per GPU", "27 GB (batch 2), 18.9 GB (batch 1)", number(memory, 5, "MB")),
        ("first loss", "5.6877 (ln 256 = 5.545)", loss(run.first("loss", "first"))),
        ("first batch ready", "11.3 s", duration(ready_s or None)),
        ("fetching a batch", "0.5 ms", number(fetch_s, 3, "s")),
        ("50 000 steps", "claimed 35–40 h; at 38 tok/s 62 days", "see the forecast"),
    )
    return table(("", "field (A100×2 PCIe)", "measured, medians"), rows)


def _artifacts(run: RunReport) -> list[str]:
    found = run.artifacts
    listed = [row for row in found.items if not row.path.startswith(".")]
    more = len(listed) - MAX_FILES
    rows = [(code(row.path), str(row.bytes)) for row in listed[:MAX_FILES]]
    place = f"In {code(found.dir)} on {inline(found.host or 'an unknown host')}."
    return [
        place if found.dir else "It has no directory.",
        table(("file", "bytes"), rows) if rows else "",
        f"And {more} more." if more > 0 else "",
    ]


def _goodput(view: ReportView) -> list[str]:
    if view.goodput is None:
        return ["No account was taken."]
    spent = seconds_of(view.goodput)
    rows = [(WORDS[part], duration(seconds)) for part, seconds in spent.items() if seconds > 0]
    return [
        f"Effective: {ratio_words(view.goodput)} of {duration(view.goodput.wall_s)}.",
        table(("part", "time"), rows),
        "*Effective* is the share of steps that count, productive and preserved, in the time with"
        " devices (all but queue and decision); unknown time counts as lost.",
    ]


def _forecast(view: ReportView) -> str:
    """Return the measured pace, what follows from it, and what was claimed (R18)."""
    now, parts = view.experiment.forecast, []
    if view.experiment.state is not ExperimentState.FINISHED:
        parts.append(
            f"From now: {duration(now.seconds_p50)} (p90 {duration(now.seconds_p90)}),"
            f" {inline(now.basis)}."
        )
    took = took_s(view.experiment)
    if now.claimed_seconds is None:
        parts.append("Nobody claimed a duration (label `claimed_seconds`).")
    else:
        parts.append(f"Claimed: {duration(now.claimed_seconds)}.")
    return " ".join([*parts, f"It took {duration(took)}."] if took is not None else parts)


def _environment(view: ReportView) -> str:
    rows: dict[tuple[str, ...], list[str]] = {}
    for run in view.runs:
        rows.setdefault(_environment_row(run), []).append(run.title)
    heads = ("runs", "host", "worker", "torch", "git SHA", "devices", "measured peak", "preflight")
    return table(heads, [(", ".join(runs), *row) for row, runs in rows.items()])


def _environment_row(run: RunReport) -> tuple[str, ...]:
    ran = run.ran[min(run.ran)] if run.ran else Identity()
    found = run.preflight
    checks = found.checks if found else []
    texts = {row.id: row.text for row in checks}
    warned = "; ".join(
        f"{row.id} {row.outcome}: {row.text}" for row in checks if row.outcome != "pass"
    )
    devices = (
        ", ".join(f"{row.get('device')} {row.get('name')}" for row in found.devices)
        if found
        else ""
    )
    peak = found.peak_flops if found else None
    sha = ran.git_sha or texts.get("code")
    return (
        inline(run.view.host or NONE),
        inline(run.view.worker or NONE),
        inline(ran.torch or texts.get("environment") or NONE),
        code(sha) if sha else NONE,
        inline(devices or NONE),
        number(peak / 1e12, 3, "TFLOP/s") if peak else NONE,
        inline(warned or ("passed" if found else "not recorded")),
    )


def _configuration(view: ReportView) -> list[str]:
    rows: dict[tuple[str, ...], list[str]] = {}
    for run in view.runs:
        for row in _identity_rows(run):
            rows.setdefault(row, []).append(run.title)
    heads = ("field", "ordered", "reported by the ranks", "runs")
    cells = [
        (*row, "all" if len(runs) == len(view.runs) else ", ".join(runs))
        for row, runs in sorted(rows.items())
    ]
    train = json.dumps(view.train, indent=1, ensure_ascii=False, sort_keys=True)
    found = [table(heads, cells)] if cells else []
    return [*found, "The whole training configuration of the plan:", block(train, "json")]


def _identity_rows(run: RunReport) -> Iterator[tuple[str, ...]]:
    ordered = run.order.identity if run.order else Identity()
    for name in Identity.model_fields:
        wanted = getattr(ordered, name)
        ran = {rank: getattr(identity, name) for rank, identity in run.ran.items()}
        if wanted is None and not any(value is not None for value in ran.values()):
            continue
        alike = {_value(value) for value in ran.values()}
        by_rank = "; ".join(f"rank {rank}: {_value(value)}" for rank, value in ran.items())
        yield (
            name,
            _value(wanted) if wanted is not None else "not checked",
            by_rank if len(alike) > 1 else "".join(alike) or "nothing",
        )


def _value(value: Any) -> str:
    if value is None:
        return NONE
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return code(f"{text[:20]}…" if isinstance(value, str) and len(text) > 24 else text)


def repeat_parts(view: ReportView) -> list[str]:
    """Return the commands that submit the same again and check the decisions."""
    bundled = is_bundled(view.experiment.plan, view.plan)
    plan = view.experiment.plan if bundled else PLAN_FILE
    first = "." if bundled else f"; save the plan below as {code(PLAN_FILE)} first."
    parts = [
        f"**The same experiment again**{first}",
        block("\n".join(submit_lines(view, plan)), "sh"),
    ]
    checks = [f"gonogo replay {decision.id}" for decision in view.decisions]
    if checks:
        checks.append(f"gonogo verify --anchor {view.decisions[-1].hash[:16]}")
        parts += ["**Check it yourself.** This needs no service.", block("\n".join(checks), "sh")]
    if not bundled:
        text = yaml.safe_dump(dict(view.plan), sort_keys=False, allow_unicode=True, width=100)
        parts += [f"The plan ({code(view.plan_digest[:12])}):", block(text, "yaml")]
    return parts


def submit_lines(view: ReportView, plan: str) -> Iterator[str]:
    """Yield the commit to check out and the command that submits the same again."""
    sha = next((ran.git_sha for run in view.runs for ran in run.ran.values()), None)
    found = _COMMIT.fullmatch(sha or "")
    if found is not None:
        yield f"git checkout {found[1]}"
        if found[2]:
            yield f"# with changes that were not committed, of the digest {found[2][1:]}"
    words = ["gonogo", "submit", plan, "--name", view.experiment.name]
    words += ["--set", f"fault={view.fault}"] if view.fault else []
    for name, value in sorted(view.experiment.labels.items()):
        words += ["--label", f"{name}={value}"]
    origin = view.experiment.origin
    if origin is not None:
        words += ["--from", f"{origin.experiment}:{origin.phase}@{origin.step}"]
    yield shlex.join(words)
