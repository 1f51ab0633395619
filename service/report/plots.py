"""Which pictures lie beside the report? One of all phases, one of each run with two steps or more.

Drawn with matplotlib's Agg canvas without pyplot, so that no state is shared between threads.
matplotlib is imported when the first picture is drawn: the service starts without it.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from service.report.view import SECTIONS, RunReport, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 110
RANK_COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#dc2626", "#0891b2")
SECTION_COLOURS = {
    "data": "#ca8a04",
    "forward": "#2563eb",
    "backward": "#7c3aed",
    "optimizer": "#16a34a",
    "wait": "#94a3b8",
}


def can_plot(run: RunReport) -> bool:
    """Say whether a run has enough steps for a curve."""
    return any(len(rank.loss) > 1 or len(rank.tok_s) > 1 for rank in run.ranks)


def draw_run(run: RunReport) -> bytes:
    """Return the PNG of one run: loss, throughput, memory, and where the time of a step goes."""
    figure, grid = _figure(2, 2, height=6.2)
    figure.suptitle(f"{run.title}, {run.view.id}", fontsize=10)
    _draw_loss(grid[0], run)
    _draw_throughput(grid[1], run)
    _draw_memory(grid[2], run)
    _draw_sections(grid[3], run)
    return _png(figure)


def draw_overview(runs: Sequence[RunReport]) -> bytes:
    """Return the PNG of all runs one after the other: loss and throughput over all steps."""
    figure, (losses, speed) = _figure(1, 2, height=3.4)
    start = 0
    for number, run in enumerate(runs):
        colour = RANK_COLOURS[number % len(RANK_COLOURS)]
        rank = run.ranks[0]
        _curve(losses, _shifted(rank.loss, start), colour, run.title)
        slow = min(run.ranks, key=lambda row: row.median_tok_s or 0.0)
        _curve(speed, _shifted(slow.tok_s, start), colour, run.title)
        start += max((row.final_step for row in run.ranks), default=0)
    if speed.lines:
        _from_zero(speed)
    _label(losses, "loss", "steps of all runs", legend=True)
    _label(speed, "tokens/s, slowest rank", "steps of all runs", legend=False)
    return _png(figure)


def _figure(rows: int, columns: int, *, height: float) -> "tuple[Figure, list[Axes]]":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def _png(figure: "Figure") -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": "gonogo"})
    return stream.getvalue()


def _curve(axes: "Axes", series: Series, colour: str, label: str, style: str = "-") -> None:
    if series:
        steps, values = zip(*series, strict=True)
        dot = "." if len(series) < 60 else ""
        axes.plot(
            steps, values, color=colour, label=label, linestyle=style, marker=dot, linewidth=1.3
        )


def _label(axes: "Axes", title: str, x: str = "step", *, legend: bool) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, alpha=0.25)
    axes.margins(x=0.02)
    if axes.lines or axes.collections:
        if legend:
            axes.legend(fontsize=7, framealpha=0.7)
    else:
        axes.text(0.5, 0.5, "not observed", ha="center", va="center", transform=axes.transAxes)


def _from_zero(axes: "Axes") -> None:
    axes.set_ylim(0, axes.get_ylim()[1] * 1.08)


def _shifted(series: Series, start: int) -> Series:
    return tuple((step + start, value) for step, value in series)


def _rank_colour(rank: int) -> str:
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def _draw_loss(axes: "Axes", run: RunReport) -> None:
    first = next((rank for rank in run.ranks if rank.loss), None)
    if first is not None:
        _curve(axes, first.loss, RANK_COLOURS[0], "loss, mean over ranks")
        _curve(axes, first.val_loss, RANK_COLOURS[1], "validation loss", "--")
    _label(axes, "loss", legend=True)


def _draw_throughput(axes: "Axes", run: RunReport) -> None:
    for rank in run.ranks:
        _curve(axes, rank.tok_s, _rank_colour(rank.rank), f"rank {rank.rank}")
    if axes.lines:
        _draw_bound(axes, run)
        _from_zero(axes)
    _label(axes, "tokens/s over all ranks, from each rank's clock", legend=True)


def _draw_bound(axes: "Axes", run: RunReport) -> None:
    floor = run.order.watch.slow.floor_tok_s if run.order else None
    if floor is not None:
        axes.axhline(floor, color="#dc2626", linewidth=1, linestyle=":", label=f"floor {floor:g}")


def _draw_memory(axes: "Axes", run: RunReport) -> None:
    on_device = run.worst("peak_reserved_mb")
    for rank in run.ranks:
        series = tuple((step, value / 1000) for step, value in rank.memory_mb)
        _curve(axes, series, _rank_colour(rank.rank), f"rank {rank.rank}")
    if axes.lines:
        _from_zero(axes)
    what = "GPU memory reserved" if on_device else "host memory (no device reports any)"
    _label(axes, f"{what}, GB", legend=True)


def _draw_sections(axes: "Axes", run: RunReport) -> None:
    """Stack the seconds of the slowest rank's sections."""
    ranks = [rank for rank in run.ranks if rank.sections]
    if ranks:
        slow = max(ranks, key=lambda rank: rank.median_step_s or 0.0)
        common = set.intersection(*({s for s, _ in slow.sections[name]} for name in SECTIONS))
        steps = sorted(common)
        rows = [[dict(slow.sections[name])[step] for step in steps] for name in SECTIONS]
        if len(steps) > 1:
            colours = [SECTION_COLOURS[name] for name in SECTIONS]
            axes.stackplot(steps, rows, labels=SECTIONS, colors=colours, alpha=0.85)
        title = f"seconds of a step by section, rank {slow.rank}"
    else:
        title = "seconds of a step by section"
    _label(axes, title, legend=True)
