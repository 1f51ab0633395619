"""What did each rank do? Numbers from its heartbeats, by the functions that facts are made with."""

import math
import statistics
from array import array
from collections.abc import Iterable, Mapping, Sequence

from gonogo.contract.canonical import rounded
from gonogo.contract.criterion import Metric
from gonogo.contract.device import DeviceSample
from gonogo.contract.heartbeat import Msg
from gonogo.contract.order import Order
from gonogo.contract.rules import Rules
from gonogo.judge.facts.devices import lay_over
from gonogo.judge.facts.measure import quantile
from gonogo.judge.facts.metrics import METRICS
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps
from service.evidence.series import downsample
from service.report.view import SECTIONS, RankNumbers, Series, StepTimes

POINTS = 1_000
"""Points of a curve, at most."""


def build_numbers(
    order: Order | None, ranks: Mapping[int, RankSteps], samples: Sequence[DeviceSample] = ()
) -> tuple[RankNumbers, ...]:
    """Return the numbers of every rank of a run, by rank.

    Args:
        order: what was ordered; None leaves out what depends on it.
        ranks: rank → its steps.
        samples: what the devices said.
    """
    rules = build_rules(order)
    lay_over(ranks, samples, order)
    return tuple(_numbers(rank, ranks[rank], rules) for rank in sorted(ranks))


def _numbers(rank: int, steps: RankSteps, rules: Rules) -> RankNumbers:
    times = sorted(steps.steps.step_times().items())
    seconds = [value for _, value in times]
    losses = list(steps.samples("loss").items())
    tok_s = sorted(METRICS[Metric.TOKS_PER_S].samples(steps, rules).items()) if rules.known else []
    sections = _sections(steps)
    evals = sorted(steps.evals.items())
    util = METRICS[Metric.GPU_UTIL].samples(steps, rules)
    used = steps.told_by_devices.get(Metric.GPU_MEM_RESERVED_MB.value, {})
    loader_s = [boot.loader_s for boot in steps.boots if boot.loader_s is not None]
    memory = METRICS[Metric.GPU_MEM_RESERVED_MB].samples(steps, rules)
    return RankNumbers(
        rank=rank,
        final_step=steps.last_step,
        first_loss=losses[0][1] if losses else None,
        last_loss=losses[-1][1] if losses else None,
        last_val_loss=evals[-1][1] if evals else None,
        median_tok_s=_median(value for _, value in tok_s),
        median_step_s=_median(seconds),
        p95_step_s=rounded(quantile(seconds, 0.95)) if seconds else None,
        median_fetch_s=_median(steps.samples("dt_fetch_s").values()),
        loader_ready_s=loader_s[0] if loader_s else None,
        peak_reserved_mb=_peak(steps.samples("gpu_mem_reserved").values()),
        peak_alloc_mb=_peak(steps.samples("gpu_mem_alloc").values()),
        peak_rss_mb=_peak(steps.samples("host_rss_mb").values()),
        peak_used_mb=_peak(used.values()),
        median_util=_median(util.values()),
        sections_s={name: _median(value for _, value in rows) for name, rows in sections.items()},
        loss=_curve(losses),
        val_loss=_curve(evals),
        tok_s=_curve(tok_s),
        host_mb=_curve(steps.samples("host_rss_mb").items()),
        device_mb=_curve(sorted(memory.items())),
        util=_curve(sorted(util.items())),
        gate_entropy=_curve(steps.samples("gate_entropy").items()),
        gate_max=_curve(steps.samples("gate_max").items()),
        gate_collapse_frac=_curve(steps.samples("gate_collapse_frac").items()),
        sections={name: _curve(rows) for name, rows in sections.items()},
        step_times=StepTimes(array("q", (step for step, _ in times)), array("d", seconds)),
    )


def _sections(steps: RankSteps) -> Mapping[str, list[tuple[int, float]]]:
    ended, sections = steps.steps.steps_of(Msg.STEP_END), steps.steps.sections()
    rows = [(step, row) for step, row in ended if not math.isnan(sections[0][row])]
    if not rows:
        return {}
    named = zip(SECTIONS, sections, strict=True)
    return {name: [(step, column[row]) for step, row in rows] for name, column in named}


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _median(values: Iterable[float | None]) -> float | None:
    found = _finite(values)
    return rounded(statistics.median(found)) if found else None


def _peak(values: Iterable[float | None]) -> float | None:
    return max(_finite(values), default=None)


def _curve(rows: Iterable[tuple[int, float]]) -> Series:
    return tuple(downsample([row for row in rows if math.isfinite(row[1])], POINTS))
