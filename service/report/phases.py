"""What does a phase show besides its pictures? Tables of times, memory, devices, gates, hot spots.

Each is a pure function that returns Markdown, or None where nothing was observed.
"""

from collections.abc import Sequence
from itertools import islice

from service.report.courses import Course
from service.report.devices import DeviceNumbers
from service.report.distribution import Distribution, build_distribution
from service.report.health import LayerColumn, LayerHealth
from service.report.profile import HotSpot
from service.report.text import NONE, block, code, inline, number, percent, table
from service.report.view import ReportView, RunReport

MAX_SPOTS = 15


def spread_table(rows: Sequence[tuple[str, Sequence[float]]]) -> str | None:
    """Return how step times are spread, one row for each name and its seconds."""
    found = [(name, build_distribution(seconds)) for name, seconds in rows]
    cells = [_spread_row(name, spread) for name, spread in found if spread is not None]
    heads = ("", "steps", "least", "median", "p95", "p99", "most", "over twice the median")
    return table(heads, cells) if cells else None


def _spread_row(name: str, spread: Distribution) -> tuple[str, ...]:
    seconds = (spread.least, spread.median, spread.p95, spread.p99, spread.most)
    told = (number(value, 4, "s") for value in seconds)
    return (inline(name), str(spread.samples), *told, str(spread.slow))


def course_spread(courses: Sequence[Course]) -> str | None:
    """Return the spread of a phase's step times by rank, of each of its lines."""
    rows = []
    for course in courses:
        of = f"{course.title}, " if len(courses) > 1 else ""
        rows += [(f"{of}rank {rank}", course.step_times(rank)) for rank in course.ranks]
    return spread_table(rows)


def phases_spread(view: ReportView, courses: Sequence[tuple[str, Course]]) -> str | None:
    """Return the spread of the step times of all ranks, one row a phase."""
    return spread_table(
        [
            (phase, [value for rank in course.ranks for value in course.step_times(rank)])
            for phase, course in courses
        ]
    )


def memory_table(run: RunReport) -> str | None:
    """Return memory and utilisation by rank; None where nobody says anything of either."""
    columns = (
        ("host memory, peak", "peak_rss_mb", "GB"),
        ("device memory reserved, peak", "peak_reserved_mb", "GB"),
        ("allocated, peak", "peak_alloc_mb", "GB"),
        ("in use on its device, peak", "peak_used_mb", "GB"),
        ("device utilisation, median", "median_util", "%"),
    )
    shown = [row for row in columns if run.worst(row[1])]
    if not shown:
        return None
    rows = (
        (str(rank.rank), *(_amount(getattr(rank, name), unit) for _, name, unit in shown))
        for rank in run.ranks
    )
    return table(("rank", *(head for head, _, _ in shown)), rows)


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return NONE
    return f"{value / 1000:.2f} GB" if unit == "GB" else f"{value:.0f} %"


def device_table(devices: Sequence[DeviceNumbers]) -> str | None:
    """Return what each device said over the run."""
    heads = (
        "device", "rank", "samples", "utilisation, median", "memory, peak", "of",
        "temperature, peak", "power, median", "clock held down by", "Xid", "ECC",
    )  # fmt: skip
    rows = [
        (
            code(row.uuid if row.index is None else f"{row.index} {row.uuid}"),
            NONE if row.rank is None else str(row.rank),
            str(row.samples),
            number(row.median_util, 3, "%"),
            _amount(row.peak_used_mb, "GB"),
            _amount(row.total_mb, "GB"),
            number(row.peak_temp_c, 3, "°C"),
            number(row.median_power_w, 3, "W"),
            inline(", ".join(row.throttled)) or "nothing",
            f"**{', '.join(map(str, row.xids))}**" if row.xids else "none",
            number(row.ecc_uncorrected),
        )
        for row in devices
    ]
    return table(heads, rows) if rows else None


def gate_parts(run: RunReport) -> list[str]:
    """Return how gates and selection stood, layer by layer, and which path served."""
    parts = [_said_gates(run)]
    if run.layers:
        parts += ["By layer, at the last step that tells it:", _layer_table(run.layers)]
    if run.served:
        rows = (
            (inline(row.operation), inline(row.path), inline(row.reason) or NONE, str(row.calls))
            for row in run.served
        )
        parts += ["Which path served:", table(("operation", "path", "why", "calls"), rows)]
    return [part for part in parts if part]


def _said_gates(run: RunReport) -> str:
    rank = next((row for row in run.ranks if row.gate_entropy), None)
    if rank is None:
        return ""
    entropy = [value for _, value in rank.gate_entropy]
    told = [
        f"entropy {number(entropy[0])} at the first step, {number(entropy[-1])} at the last,"
        f" {number(min(entropy))} at the least (1: all branches alike, 0: one has all)"
    ]
    if rank.gate_max:
        most = max(value for _, value in rank.gate_max)
        told.append(f"largest share of a branch in any layer {number(most)}")
    if rank.gate_collapse_frac:
        worst = max(value for _, value in rank.gate_collapse_frac)
        told.append(f"collapsed layers {percent(worst, 1.0)} at the most")
    return f"Gates, as rank {rank.rank} says: {'; '.join(told)}."


_HEADS = {
    "entropy": "gate entropy (least)",
    "max_share": "largest share (most)",
    "distance_blocks": "selected blocks' distance",
    "distinct_share": "blocks chosen by any query",
    "kept_share": "kept from the query before",
}


def _layer_table(layers: Sequence[LayerHealth]) -> str:
    names = [name for name in _HEADS if any(name in row.columns for row in layers)]
    rows = (
        (str(row.layer), *(_layer_cell(name, row.columns.get(name)) for name in names))
        for row in layers
    )
    return table(("layer", *(_HEADS[name] for name in names)), rows)


def _layer_cell(name: str, column: LayerColumn | None) -> str:
    if column is None:
        return NONE
    if name == "entropy":
        return f"{number(column.last, 3)} ({number(column.low, 3)})"
    if name == "max_share":
        return f"{number(column.last, 3)} ({number(column.high, 3)})"
    if name == "distance_blocks":
        return number(column.last, 3)
    return percent(column.last, 1.0)


def profile_parts(run: RunReport) -> list[str]:
    """Return the hot spots of a profile, if the run left one."""
    found = run.profile
    if found is None:
        return []
    if found.table is None:
        return ["What `profile.txt` says:", block(found.text)]
    steps = found.table.steps
    span = "" if not steps else f" Steps {steps[0]} to {steps[-1]}; they are slower than others."
    rows = [_spot_row(row) for row in found.table.hot_spots[:MAX_SPOTS]]
    heads = ("operation", "calls", "itself, CPU", "itself, device", "share")
    parts = [f"From `profile.json`, by the time spent in the operation itself.{span}"]
    parts.append(table(heads, rows) if rows else "It names no operation.")
    if found.table.sections:
        some = islice(found.table.sections.items(), MAX_SPOTS)
        told = (f"{inline(name)} {number(s, 3, 's')}" for name, s in some)
        parts.append(f"Sections: {', '.join(told)}.")
    return parts


def _spot_row(row: HotSpot) -> tuple[str, ...]:
    return (
        code(row.name),
        str(row.calls),
        number(row.self_cpu_s, 3, "s"),
        number(row.self_device_s, 3, "s"),
        percent(row.share, 1.0),
    )


def unseen_of(run: RunReport) -> list[str]:
    """Return what of this module has nothing to show, one sentence each."""
    found = []
    here = run.artifacts.reachable or run.artifacts.dir is None
    elsewhere = "" if here else f" (its files lie on {run.artifacts.host})"
    if run.ours and not any("distance_blocks" in row.columns for row in run.layers):
        found.append(f"selection by layer: no k_stats.csv here{elsewhere}")
    if run.profile is None:
        found.append(f"hot spots: {_no_profile(run)}{elsewhere}")
    return found


def _no_profile(run: RunReport) -> str:
    engine = run.order.train.get("engine") if run.order is not None else None
    asked = engine.get("profile_steps") if isinstance(engine, dict) else None
    if asked == 0:
        return "no profile was asked for (train.engine.profile_steps is 0)"
    return "no profile.json or profile.txt here"
