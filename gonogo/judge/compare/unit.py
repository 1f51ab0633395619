"""The question of a comparison, what one run contributes to the answer, and what it ran.

A run that does not report the metric on every rank does not count. `build_unit` then returns the
reason and never fills in a value.

What really differed between variants is a list of paths of the orders, such as `env.NSA_USE_FLASH`
or `command.--lr`. Different orders prove nothing: a program may ignore a variable. The processes
report what they are, and a path that they report alike is *denied*. A commit or a device that
differs without an order is listed too. Seeds belong to the repeat, not to the variant. If an order
is missing, its rules and the digest of its configuration replace it.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import JsonValue

from gonogo.contract.campaign import DifferingPath, PathEvidence
from gonogo.contract.canonical import canonical_bytes, mean_of, rounded
from gonogo.contract.criterion import Aggregate, Compared, Criterion, Metric, is_learned, own_name
from gonogo.contract.errors import Rejected, hint
from gonogo.contract.facts import Facts, Measure, MeasureRow
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order, Rules
from gonogo.judge.facts.metrics import PARTIAL_SHARE, metric_names, metric_row

MARGIN = 0.02
CONFIDENCE = 0.95
WARMUP_STEPS = 5
"""Allocator, caches and clocks settle in the first steps; the bundled plans leave out as many."""
ANY_NUMBER = -1e100
MOST_CONFIDENCE = 0.9999
"""Beyond it an interval says nothing any more."""

_HIGHER_IS_BETTER: Mapping[str, bool] = {
    **dict.fromkeys((Metric.TOKS_PER_S, Metric.GPU_UTIL), True),
    **dict.fromkeys((Metric.LOSS, Metric.VAL_LOSS, Metric.EVAL_S, Metric.DT_STEP_S), False),
    **dict.fromkeys((Metric.STEP_CV, Metric.FETCH_SHARE, Metric.GPU_MEM_RESERVED_MB), False),
    **dict.fromkeys((Metric.GPU_MEM_SLOPE, Metric.HOST_RSS_MB, Metric.FORECAST_S), False),
    **dict.fromkeys((Metric.COST, Metric.COMM_MB), False),
}
"""Metrics whose better direction is known; for another one the user has to name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question; build it with `ask`."""

    metric: str
    higher_is_better: bool
    aggregate: Compared = Compared.MEAN
    margin: float = MARGIN
    """Ratio beyond which a difference matters, 0 ≤ margin < 1."""
    confidence: float = CONFIDENCE
    """Confidence of all intervals together, 0.5 to MOST_CONFIDENCE."""
    warmup_steps: int = WARMUP_STEPS
    per_device: bool = False
    """Whether a run's value is divided by the number of its ranks."""
    shown_by: tuple[str, ...] = ()
    """Metrics that show that a variant did something else than the baseline."""
    in_campaign: bool = False
    """Whether the runs belong to a campaign. Then every run of a variant must differ in what was
    ordered, and the runs of one repeat must have used one host."""
    alike_in: Mapping[str, float] = field(default_factory=dict)
    """Metrics that show that a variant computed the same → share by which two runs of one repeat
    may differ."""

    def criteria(self) -> list[Criterion]:
        """Return criteria that every number passes, by which the judge measures the metrics."""
        row = partial(Criterion, aggregate=Aggregate.ALL_FINITE, warmup_steps=self.warmup_steps)
        best = Aggregate.MAX if self.higher_is_better else Aggregate.MIN
        how = {Compared.LAST: Aggregate.LAST, Compared.BEST: best}.get(self.aggregate)
        asked = {} if how is None else {"aggregate": how, "pass_above": ANY_NUMBER}
        rows = [row(id="compared", metric=self.metric, **asked)]
        for place, name in enumerate(row for row in self.told if row != self.metric):
            rows.append(row(id=f"shown-{place if own_name(name) else name}", metric=name))
        return rows

    @property
    def told(self) -> tuple[str, ...]:
        """Metrics besides the one that is compared."""
        return tuple(dict.fromkeys([*self.shown_by, *self.alike_in]))


def ask(
    metric: str = Metric.TOKS_PER_S,
    *,
    higher_is_better: bool | None = None,
    aggregate: Compared | None = None,
    shown_by: Sequence[str] = (),
    alike_in: Mapping[str, float] | None = None,
    **options: Any,
) -> Question:
    """Return a question that can be answered.

    Args:
        higher_is_better: None: what everybody wants of this metric.
        aggregate: None: the last value of a program's own metric, and the mean of another.
        options: other fields of a question.

    Raises:
        Rejected: no such metric; the better direction is unknown; a number out of its range.
    """
    for name in (metric, *shown_by, *(alike_in or {})):
        if metric_row(name) is None:
            raise Rejected(f"there is no metric {name!r}; {hint(name, metric_names())}")
    if higher_is_better is None:
        higher_is_better = _HIGHER_IS_BETTER.get(metric)
    if higher_is_better is None:
        raise Rejected(f"which is better of {metric}? Say lower or higher (--lower, --higher)")
    asked = Question(
        metric=str(metric),
        higher_is_better=higher_is_better,
        aggregate=aggregate or (Compared.LAST if own_name(metric) else Compared.MEAN),
        shown_by=tuple(map(str, shown_by)),
        alike_in={str(name): share for name, share in (alike_in or {}).items()},
        **options,
    )
    if not 0.0 <= asked.margin < 1.0:
        raise Rejected(f"margin: found {asked.margin:g}; expected 0 to 1 (0.02 is 2 %)")
    if not 0.5 <= asked.confidence <= MOST_CONFIDENCE:
        raise Rejected(
            f"confidence: found {asked.confidence!r};"
            f" expected 0.5 to {MOST_CONFIDENCE} (0.95 is 95 %)"
        )
    if asked.warmup_steps < 0:
        raise Rejected(f"warmup: found {asked.warmup_steps}; expected a number of steps")
    return asked


CONFIG = "config_digest"
"""The path that stands for a whole training configuration."""
Paths = Mapping[str, JsonValue]
_IDENTITY = frozenset(Identity.model_fields) - {CONFIG, "nsa_env"}
_FOLLOW_FROM_CONFIG = frozenset({"params", "tokens_per_step"})
"""What the processes report of a configuration under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What was ordered of a run, and what its processes reported."""

    ordered: Paths | None = None
    """Paths of the order; None if only its rules are at hand."""
    by_rules: Paths = field(default_factory=dict)
    """The same, as far as rules and facts hold it."""
    told: Paths = field(default_factory=dict)
    """Identity as every rank reported it: `git_sha`, `env.NSA_…`, …"""


def build_ran(facts: Facts, rules: Rules, order: Order | None) -> Ran:
    """Return what a run ran, by its facts, its rules and its order."""
    digest = facts.config_digest or rules.identity.config_digest
    return Ran(
        ordered=None if order is None else dict(_order_paths(order)),
        by_rules={
            CONFIG: digest,
            "world_size": rules.world_size,
            "profile": rules.profile,
            "steps": rules.steps,
            **{f"env.{key}": value for key, value in (rules.identity.nsa_env or {}).items()},
        },
        told=_told(facts),
    )


def _order_paths(order: Order) -> Iterator[tuple[str, JsonValue]]:
    train = {key: value for key, value in order.train.items() if key != "steps"}
    yield from _leaves("train", train)
    yield from _leaves("env", order.env)
    yield from _command(order.command or ())
    yield from _leaves("checkpoint", order.checkpoint.model_dump(mode="json"))
    yield from _leaves("heartbeat", order.heartbeat.model_dump(mode="json"))
    for name in ("entry", "cwd", "init_from", "profile", "steps", "world_size", "fault"):
        yield name, getattr(order, name)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, JsonValue]]:
    """Yield the values of nested mappings by their dotted paths; a list is one value."""
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _leaves(f"{path}.{key}", value[key])
    elif not isinstance(value, Mapping):
        yield path, value


def _command(words: Sequence[str]) -> Iterator[tuple[str, JsonValue]]:
    """Yield a command's options by name, its other words by position.

    `train.py --lr 3e-4 --fast` is `command.0: train.py`, `command.--lr: 3e-4`,
    `command.--fast: true`.
    """
    place, waiting = 0, None
    for word in words:
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            if waiting is not None:
                yield f"command.{waiting}", True
            name, equals, value = word.partition("=")
            waiting = None if equals else name
            if equals:
                yield f"command.{name}", value
        elif waiting is not None:
            yield f"command.{waiting}", word
            waiting = None
        else:
            yield f"command.{place}", word
            place += 1
    if waiting is not None:
        yield f"command.{waiting}", True


def _told(facts: Facts) -> dict[str, JsonValue]:
    """Return what every rank reported; a list of values if ranks differ."""
    found: dict[str, list[JsonValue]] = {}
    for rank in sorted(facts.identity, key=int):
        for path, value in _said(facts.identity[rank].said()):
            found.setdefault(path, []).append(value)
    alike = {
        path: values[0] if all(value == values[0] for value in values) else values
        for path, values in found.items()
        if len(values) == len(facts.identity)
    }
    return dict(sorted(alike.items()))


def _said(identity: Mapping[str, Any]) -> Iterator[tuple[str, JsonValue]]:
    for name, value in identity.items():
        if name == "nsa_env":
            yield "env", True  # shows that the environment was reported, even if it is empty
            yield from ((f"env.{key}", text) for key, text in value.items())
        else:
            yield name, value


def find_paths(variants: Mapping[str, Sequence[Ran]]) -> list[DifferingPath]:
    """Return every path in which variants differ, by name."""
    whole = all(_all_known(rows) for rows in variants.values())
    ordered = {name: _ordered_of(rows, whole=whole) for name, rows in variants.items()}
    told = {name: [row.told for row in rows] for name, rows in variants.items()}
    found = {
        path: DifferingPath(path=path, values=values, evidence=_evidence(path, told))
        for path, values in _differing(ordered)
    }
    explained = {path.rpartition(".")[2] for path in found}
    if any(path in (CONFIG, "steps") or path.startswith("train.") for path in found):
        explained |= _FOLLOW_FROM_CONFIG
    for path, values in _differing(told):
        # a digest of the configuration only confirms what was ordered: it differs by the seed, too
        if path == CONFIG or path in found or path in explained or not _everybody_told(path, told):
            continue
        found[path] = DifferingPath(
            path=path, values=values, evidence=PathEvidence.TOLD, ordered=False
        )
    return [found[path] for path in sorted(found)]


def ordered_alike(rows: Sequence[Ran]) -> bool:
    """Say whether several runs have the same order, the seed included."""
    known = _ordered_of(rows, whole=_all_known(rows))
    return len(known) > 1 and all(row == known[0] for row in known)


def _all_known(rows: Iterable[Ran]) -> bool:
    return all(row.ordered is not None for row in rows)


def _ordered_of(rows: Sequence[Ran], *, whole: bool) -> list[Paths]:
    """Return the paths of the orders, or of the rules if an order is missing."""
    return [row.ordered if whole and row.ordered is not None else row.by_rules for row in rows]


def _is_seed(path: str) -> bool:
    return path.rpartition(".")[2].lstrip("-") == "seed"


def _values(rows: Iterable[Paths], path: str) -> list[JsonValue]:
    """Return the different values of a path in a stable order; None: not set."""
    found = {canonical_bytes(row.get(path)): row.get(path) for row in rows}
    return [found[key] for key in sorted(found)]


def _differing(
    rows: Mapping[str, Sequence[Paths]],
) -> Iterator[tuple[str, dict[str, list[JsonValue]]]]:
    """Yield the paths of which variants have different sets of values."""
    paths = {path for others in rows.values() for row in others for path in row}
    for path in sorted(paths):
        if _is_seed(path):
            continue
        values = {name: _values(others, path) for name, others in rows.items()}
        if len({canonical_bytes(row) for row in values.values()}) > 1:
            yield path, values


def _evidence(path: str, told: Mapping[str, Sequence[Paths]]) -> PathEvidence:
    """Return what shows that an ordered path differs."""
    telling = _telling(path)
    if telling is None or not _everybody_told("env" if path.startswith("env.") else telling, told):
        return PathEvidence.ORDERED
    values = {canonical_bytes(_values(rows, telling)) for rows in told.values()}
    return PathEvidence.TOLD if len(values) > 1 else PathEvidence.DENIED


def _telling(path: str) -> str | None:
    """Return under which name processes report an ordered path; None if they do not."""
    last = path.rpartition(".")[2]
    if path.startswith("env."):
        return path if last.startswith("NSA_") else None
    if path.startswith("train.") or path in _IDENTITY:
        return last if last in _IDENTITY else CONFIG
    return CONFIG if path == CONFIG else None


def _everybody_told(path: str, told: Mapping[str, Sequence[Paths]]) -> bool:
    if path.startswith("env."):
        path = "env"
    return all(path in row for rows in told.values() for row in rows)


SMALLEST, LARGEST = 1e-100, 1e100
"""Bounds of a value that is compared; ratios of values between them stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One run that counts."""

    name: str
    run: str
    """Id and attempt: the same run is never two units."""
    value: float
    """Mean over blocks and ranks, in the metric's unit."""
    blocks: tuple[float, ...] = ()
    """Means of blocks of consecutive steps, over the ranks; empty if ranks differ in their number.
    """
    window: str = ""
    samples: int = 0
    repeat: int | None = None
    host: str | None = None
    ran: Ran = field(default_factory=Ran)
    shown: Mapping[str, float] = field(default_factory=dict)
    """Means of the metrics of `shown_by` and `alike_in` that every rank reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoUnit:
    """One run that does not count."""

    name: str
    why: str
    repeat: int | None = None


def build_unit(
    name: str,
    facts: Facts,
    rules: Rules,
    measures: Mapping[str, Measure],
    question: Question,
    *,
    order: Order | None = None,
) -> Unit | NoUnit:
    """Return what a run contributes."""
    measure = measures.get(question.metric)
    why = _began_late(rules, question) or _lack(question.metric, measure, rules, question)
    if why is not None or measure is None:
        return NoUnit(name=name, why=why or "")
    rows = [measure.ranks[str(rank)] for rank in rules.ranks()]
    value = _mean(question.metric, rows, question.aggregate)
    if question.per_device:
        value /= len(rows)
    if not SMALLEST <= value <= LARGEST:
        return NoUnit(name=name, why=f"{question.metric} is {value:g}, of which no ratio is made")
    alike = question.aggregate is Compared.MEAN and len({len(row.blocks) for row in rows}) == 1
    blocks = zip(*(row.blocks for row in rows), strict=True) if alike else ()
    return Unit(
        name=name,
        run=f"{rules.run or facts.ranks['0'].digest}/{rules.attempt or 1}",
        value=rounded(value),
        blocks=tuple(rounded(mean_of(row)) for row in blocks),
        window=measure.window,
        samples=min(row.samples for row in rows),
        ran=build_ran(facts, rules, order),
        shown={
            metric: rounded(_mean(metric, [found.ranks[str(rank)] for rank in rules.ranks()]))
            for metric in question.told
            if (found := measures.get(metric)) and _lack(metric, found, rules, question) is None
        },
    )


def measure_of(facts: Facts, rules: Rules, asked: Criterion) -> Measure | None:
    """Return a metric as recorded facts hold it after just this warm-up; None if they do not."""
    found = sorted(
        row.id
        for row in rules.gate
        if (row.metric, row.warmup_steps, row.window) == (asked.metric, asked.warmup_steps, 0)
        and asked.aggregate in (Aggregate.ALL_FINITE, row.aggregate)
        and row.id in facts.measures
    )
    return facts.measures[found[0]] if found else None


def _began_late(rules: Rules, question: Question) -> str | None:
    """Return why a resumed run of a campaign does not count: a loss that begins later is lower."""
    names = [name for name in (question.metric, *question.told) if is_learned(name)]
    if not question.in_campaign or rules.first_step == 1 or not names:
        return None
    return f"it resumed after step {rules.first_step - 1}, and {names[0]} is compared of all steps"


def _lack(name: str, measure: Measure | None, rules: Rules, question: Question) -> str | None:
    """Return what the run does not report of a metric; None if every rank reports it."""
    warmup = question.warmup_steps
    if measure is None:
        return (
            f"its facts do not hold {name} after {warmup} steps of warm-up, and its run directory"
            " is not here"
        )
    if measure.window == "none":
        return f"it has no step after the {warmup} of the warm-up"
    for rank in rules.ranks():
        row = measure.ranks.get(str(rank), MeasureRow())
        if row.samples == 0:
            return f"rank {rank} reports no {name}"
        if row.non_finite:
            return f"{row.non_finite} samples of {name} of rank {rank} are not finite"
        if row.samples < PARTIAL_SHARE * row.owed or not row.blocks:
            return f"rank {rank} reports {row.samples} of {row.owed} samples of {name}"
    return None


def _mean(metric: str, rows: Sequence[MeasureRow], how: Compared = Compared.MEAN) -> float:
    """Return a metric's mean over blocks and ranks; one number of the whole run has no blocks.

    Speeds are averaged harmonically, so a slow block has the weight of its time.
    """
    known = metric_row(metric)
    if how is not Compared.MEAN or (known is not None and known.statistic is not None):
        return mean_of([row.value for row in rows if row.value is not None])
    if metric == Metric.TOKS_PER_S and min(min(row.blocks) for row in rows) > 0.0:
        return mean_of([statistics.harmonic_mean(row.blocks) for row in rows])
    return mean_of([mean_of(row.blocks) for row in rows])
