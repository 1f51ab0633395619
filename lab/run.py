"""What does the watch say of one simulated run? Healthy or sick; pure.

A healthy run must not be halted, from its boot to its normal end. A sick run must be answered by
the right detector, with the right rank and section, after its onset.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector
from gonogo.contract.watch import Watch, halts_asked
from gonogo.contract.workload import OURS
from gonogo.watch.registry import all_detectors, detector_names
from lab.noise import FAULTS, PLAIN, STANDARD, Fault, Noise, Script, draw_habits, draw_script
from lab.scripted import Scripted
from lab.training import Training
from lab.watcher import Watcher

STEP_S = (1.0, 2.4, 25.0, 60.0)
RANKS = (1, 2, 4, 8)
RUN_STEPS = 12_000
RUN_HOURS = (0.1, 48.0)
SICK_HOURS, SICK_LEAST, SICK_MOST = 1000.0, 2, 12
"""Each fault is simulated once per so many healthy hours, so many times at least and at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Runs of one step time and number of ranks."""

    step_s: float
    ranks: int
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run to simulate."""

    seed: str
    step_s: float
    ranks: int
    hours: float
    noise: Noise = STANDARD
    sick: str | None = None


def cells_of(hours: float, step_s: Sequence[float], ranks: Sequence[int]) -> list[Cell]:
    """Return cells that share `hours` by step time ** 1.1 over ranks."""
    weights = {(s, r): s**1.1 / r for s in step_s for r in ranks}
    whole = sum(weights.values())
    return [
        Cell(step_s=s, ranks=r, hours=hours * weight / whole) for (s, r), weight in weights.items()
    ]


POOL_HOURS = 20_001.0
MANY_STEPS = 1_000_000


def pool_cells() -> list[Cell]:
    """Return the cells that a release is judged by: 20 000 hours, and two cells of many steps.

    The first of the two has a million steps of 0.05 s on one rank. The second has 64 ranks with a
    million steps in all (15 625 of the run), because a step costs as much for each rank.
    """
    many = [
        Cell(step_s=0.05, ranks=1, hours=MANY_STEPS * 0.05 / 3600.0),
        Cell(step_s=1.0, ranks=64, hours=MANY_STEPS / 64 * 1.6 / 3600.0),
    ]
    return cells_of(POOL_HOURS, STEP_S, RANKS) + many


def fault_rows() -> list[Fault]:
    """Return the faults that a detector we have is to answer."""
    names = {row.name for row in all_detectors()}
    return [row for row in FAULTS if names.intersection(row.by)]


def plan_parts(cells: Sequence[Cell], *, seed: int, healthy_only: bool = False) -> list[Part]:
    """Return every run of the cells, and the sick ones."""
    parts = [part for cell in cells for part in _healthy_parts(cell, seed)]
    if not healthy_only:
        hours = sum(cell.hours for cell in cells)
        times = min(SICK_MOST, max(SICK_LEAST, round(hours / SICK_HOURS)))
        ranks = [cell.ranks for cell in cells if cell.ranks > 1] or [2]
        parts += [
            _sick_part(row, number, seed, sorted(set(ranks)))
            for row in fault_rows()
            for number in range(times)
        ]
    return parts


def _healthy_parts(cell: Cell, seed: int) -> list[Part]:
    least, most = RUN_HOURS
    run_h = min(most, max(least, RUN_STEPS * cell.step_s / 3600.0))
    count = max(1, round(cell.hours / run_h))
    return [
        Part(
            seed=f"{seed}/standard/{cell.step_s:g}/{cell.ranks}/{number}",
            step_s=cell.step_s,
            ranks=cell.ranks,
            hours=cell.hours / count,
        )
        for number in range(count)
    ]


def _sick_part(row: Fault, number: int, seed: int, ranks: Sequence[int]) -> Part:
    step_s = row.step_s[number % len(row.step_s)]
    return Part(
        seed=f"{seed}/standard/{row.name}/{number}",
        step_s=step_s,
        ranks=min(ranks[number % len(ranks)], 8),
        hours=(row.onset_step * 3.0 * step_s + row.within_s) / 3600.0,
        sick=row.name,
    )


BOUND_PART = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """A healthy run that was halted: enough to simulate it again."""

    detector: str
    seed: str
    step_s: float
    ranks: int
    hour: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a sick run got."""

    sick: str
    by: str
    """Detector that answered, or the one that ought to."""
    latency_s: float | None
    """From the onset; None when it was missed."""
    wrong: str | None = None
    """What was found instead of what is due."""
    seed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What one part, or all of them, found."""

    run_hours: float = 0.0
    steps: int = 0
    lines: int = 0
    halts: tuple[Halt, ...] = ()
    warnings: Counter[str] = field(default_factory=Counter)
    answers: tuple[Answer, ...] = ()

    @classmethod
    def of(cls, tallies: Iterable["Tally"]) -> "Tally":
        """Return the sum of tallies, in a fixed order."""
        parts = list(tallies)
        warnings: Counter[str] = Counter()
        for part in parts:
            warnings.update(part.warnings)
        return cls(
            run_hours=math.fsum(part.run_hours for part in parts),
            steps=sum(part.steps for part in parts),
            lines=sum(part.lines for part in parts),
            halts=tuple(sorted((h for p in parts for h in p.halts), key=lambda h: h.seed)),
            warnings=warnings,
            answers=tuple(sorted((a for p in parts for a in p.answers), key=lambda a: a.seed)),
        )


def upper_bound(events: int, hours: float) -> float:
    """Return the exact 95 % upper bound of a Poisson rate, in events per hour.

    It is half the chi-square quantile at 0.95 with 2·(events + 1) degrees of freedom, over the
    hours; for no event that is 3.0 / hours.
    """
    if hours <= 0:
        return math.inf
    low, high = 0.0, 10.0 + 4.0 * (events + 1)
    for _ in range(200):
        middle = (low + high) / 2
        if _at_most(events, middle) > BOUND_PART:
            low = middle
        else:
            high = middle
    return high / hours


def _at_most(events: int, mean: float) -> float:
    """Return the probability of at most so many events."""
    log_mean = math.log(mean) if mean else -math.inf
    terms = (k * log_mean - mean - math.lgamma(k + 1) if k else -mean for k in range(events + 1))
    return math.fsum(math.exp(term) for term in terms)


def quantile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def report_of(tally: Tally) -> dict[str, Any]:
    """Return the report as plain JSON values; rates are per 1000 run-hours."""
    hours = tally.run_hours
    halts = Counter(halt.detector for halt in tally.halts)
    names = sorted({*halts, *(answer.by for answer in tally.answers), *tally.warnings})
    count = len(tally.halts)
    warned = sum(n for name, n in tally.warnings.items() if name != Detector.WATCHER)
    bound = upper_bound(count, hours) if hours else None
    return {
        "run_hours": round(hours, 3),
        "steps": tally.steps,
        "lines": tally.lines,
        "false_halts": count,
        "per_1000h": round(1000.0 * count / hours, 4) if hours else None,
        "upper95_per_1000h": None if bound is None else round(1000.0 * bound, 4),
        "warnings_per_1000h": round(1000.0 * warned / hours, 4) if hours else None,
        "sick_runs": len(tally.answers),
        "missed": sum(answer.latency_s is None for answer in tally.answers),
        "by_detector": {name: _row(tally, name, halts[name]) for name in names},
        "misses": [
            {"sick": a.sick, "due": a.by, "found": a.wrong, "seed": a.seed}
            for a in tally.answers
            if a.latency_s is None
        ],
        "halts": [
            {
                "detector": halt.detector,
                "seed": halt.seed,
                "step_s": halt.step_s,
                "ranks": halt.ranks,
                "hour": round(halt.hour, 3),
                "text": halt.text,
            }
            for halt in tally.halts
        ],
    }


def _row(tally: Tally, name: str, false_halts: int) -> dict[str, Any]:
    answers = [answer for answer in tally.answers if answer.by == name]
    latencies = [answer.latency_s for answer in answers if answer.latency_s is not None]
    p50, p99 = quantile(latencies, 0.5), quantile(latencies, 0.99)
    return {
        "false_halts": false_halts,
        "warnings": tally.warnings[name],
        "sick": len(answers),
        "missed": len(answers) - len(latencies),
        "latency_p50_s": None if p50 is None else round(p50, 3),
        "latency_p99_s": None if p99 is None else round(p99, 3),
    }


T0 = 5000.0
SICK_STEPS = 20_000
TOKENS, VOCAB = 2**15, 256
FLOOR_SHARE = 0.85
"""Floor of a plan that has one, as a share of the run's natural speed."""
OF_NAME = {row.name: row for row in FAULTS}


def simulate_part(part: Part) -> Tally:
    """Simulate one run; the same part gives the same tally."""
    training, watcher = _watched(part)
    if part.sick:
        return Tally(answers=(_answer(part, OF_NAME[part.sick], training.onset, watcher),))
    return _healthy(part, training, watcher)


def watched(part: Part) -> tuple[list[Finding], dict[str, Near]]:
    """Simulate one run; return what its watcher found, and how near each detector is at the end."""
    watcher = _watched(part)[1]
    return watcher.findings, watcher.near()


def _watched(part: Part) -> tuple[Training, Watcher]:
    """Let one run go until its end, a halt or, of a sick one, its answer."""
    dice = random.Random(part.seed)
    noise = part.noise
    sick = OF_NAME[part.sick] if part.sick else None
    step_s = expected_step_s(noise, part.step_s, part.ranks)
    if sick is not None:
        noise = replace(noise, cut_rate=0.0)
    script = _script(noise, dice, sick, part.step_s)
    outside = sick is None and dice.random() < noise.outside_share
    outside_x = dice.uniform(*noise.outside_x) if outside else 0.0
    if script is not None and script.flows:
        outside_x = 0.0  # it is never in no section
    watch = dict(sick.watch) if sick else {}
    is_ours = script is None and not outside_x
    if is_ours:
        watch = halts_asked(watch)  # the bundled plans of our own trainer ask for them
    expected_s = step_s + outside_x * part.step_s
    order = _order(part, expected_s, sick, watch, dice, is_ours=is_ours)
    habits = PLAIN if sick is not None else draw_habits(noise, dice, part.ranks)
    of_run: dict[str, Any] = {
        "noise": noise,
        "dice": dice,
        "step_s": part.step_s,
        "sick": sick,
        "now": T0,
        "outside_x": outside_x,
        "habits": habits,
    }
    if script is None:
        training = Training(order, **of_run)
    else:
        training = Scripted(order, script=script, **of_run)
    watcher = Watcher(
        order,
        training.ranks,
        noise=noise,
        wall=training.wall,
        dice=dice,
        now=T0,
        lag_s=habits.lag_s,
        lag_from=habits.lag_from,
    )
    training.boot(watcher.probe)
    watcher.look_until(training.known_until)
    while not watcher.halted and training.step < order.last_step:
        training.advance(watcher.probe)
        watcher.look_until(training.known_until)
        if sick is not None and _settled(training, watcher, sick):
            break
    if sick is None and not watcher.halted:
        training.finish(watcher.probe)
        watcher.look_until(training.known_until)
    return training, watcher


def _script(noise: Noise, dice: random.Random, sick: Fault | None, step_s: float) -> Script | None:
    """Return what the run's script calls of our library, if it attached."""
    if sick is not None:
        return sick.script
    return draw_script(dice, step_s) if dice.random() < noise.attached_share else None


def expected_step_s(noise: Noise, step_s: float, ranks: int) -> float:
    """Return the mean time of a step of coupled ranks, pauses and stalls included."""
    dice = random.Random(0)
    draws = 200
    slowest = sum(
        max(dice.lognormvariate(0.0, noise.own_sigma) for _ in range(ranks)) for _ in range(draws)
    )
    mean_s = step_s * slowest / draws * math.exp(noise.sigma**2 / 2)
    pause_s = noise.pause_rate * sum(noise.pause_s) / 2
    stall_s = noise.stall_rate * noise.stall_least_s * noise.stall_tail / (noise.stall_tail - 1.0)
    return mean_s * (1.0 + ranks * (pause_s + stall_s) / 3600.0)


def _order(
    part: Part,
    step_s: float,
    sick: Fault | None,
    watch: dict[str, Any],
    dice: random.Random,
    *,
    is_ours: bool,
) -> Order:
    """Return what was ordered: half of the runs with a floor, some compiled, some in fp16."""
    if dice.random() < 0.5 and (sick is None or not sick.slows):
        watch["slow"] = {"floor_tok_s": FLOOR_SHARE * TOKENS / step_s}
    compiled = dice.random() < part.noise.compile_share
    fp16 = sick is None and dice.random() < 0.1
    well, even = sick is None, part.ranks % 2 == 0
    nodes = 2 if well and even and dice.random() < part.noise.nodes_share else 1
    return Order(
        experiment="exp_simulated",
        run="run_simulated",
        token=1,
        plan="simulated",
        plan_digest="0" * 64,
        phase="train",
        steps=max(40, round(3600.0 * part.hours / step_s)) if sick is None else SICK_STEPS,
        world_size=part.ranks,
        nodes=nodes,
        profile="simulated",
        entry=OURS if is_ours else "train.py",
        train={"engine": {"compile": compiled}},
        identity=Identity(
            config_digest="c" * 64,
            params=125_000_000,
            dim=768,
            layers=12,
            vocab=VOCAB,
            dtype="fp16" if fp16 else "bf16",
            tokens_per_step=TOKENS,
            world_size=part.ranks,
        ),
        watch=Watch.model_validate(watch),
        detectors=detector_names(),
    )


def _healthy(part: Part, training: Training, watcher: Watcher) -> Tally:
    hours = (training.known_until - T0) / 3600.0
    halts = [f for f in watcher.findings if f.severity is Severity.HALT][:1]
    warnings = Counter(f.detector for f in watcher.findings if f.severity is Severity.WARN)
    return Tally(
        run_hours=hours,
        steps=training.step,
        lines=watcher.lines,
        warnings=warnings,
        halts=tuple(
            Halt(
                detector=halt.detector,
                seed=part.seed,
                step_s=part.step_s,
                ranks=part.ranks,
                hour=hours,
                text=halt.text,
            )
            for halt in halts
        ),
    )


def _settled(training: Training, watcher: Watcher, sick: Fault) -> bool:
    """Whether the sick run has got its answer, or has waited long enough."""
    if training.onset is None:
        return False
    if training.known_until - training.onset > sick.within_s:
        return True
    return any(_due(finding, sick) for finding in watcher.findings)


def _due(finding: Finding, sick: Fault) -> bool:
    return finding.severity is sick.severity and finding.detector in sick.by


def _answer(part: Part, sick: Fault, onset: float | None, watcher: Watcher) -> Answer:
    """Return what a sick run got: the first finding that halts, or that is due, is the answer."""
    seen = zip(watcher.findings, watcher.found_mono, strict=True)
    reporting = [row for row in seen if row[0].severity is Severity.HALT or _due(row[0], sick)]
    if not reporting:
        return Answer(
            sick=sick.name, by=sick.by[0], latency_s=None, wrong="nothing", seed=part.seed
        )
    found, found_mono = reporting[0]
    latency_s = None if onset is None else found_mono - onset
    wrong = _difference(found, sick)
    if wrong is None and (latency_s is None or latency_s < -1.0):
        wrong = "found before the onset"
    return Answer(
        sick=sick.name,
        by=found.detector if wrong is None else sick.by[0],
        latency_s=None if wrong else latency_s,
        wrong=wrong,
        seed=part.seed,
    )


def _difference(found: Finding, sick: Fault) -> str | None:
    """Return how an answer differs from what is due, or None."""
    named = f"{found.detector} {found.severity} rank {found.rank} in {found.section}: {found.text}"
    if not _due(found, sick):
        return named
    if (sick.rank is not None or sick.tie) and found.rank != sick.rank:
        return named
    if sick.section is not None and found.section not in (sick.section, None):
        return named
    return None
