"""What does the Grafana dashboard show? The JSON beside this file is its output.

    python docker/grafana/dashboards.py            # writes dashboards/gonogo.json anew

A panel is a row of the tables below: title, unit, queries. Every query is parsed by the tests, and
answered by a real Prometheus where one is installed. Nothing here is a judgement: thresholds are
drawn from the metrics that the service exports beside each value.
"""

from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models import dashboard as models

OUTPUT = Path(__file__).with_name("dashboards") / "gonogo.json"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="prometheus")
LINES, NUMBER, STATES = "lines", "number", "states"

#: Only runs of the chosen experiments and runs.
RUN = 'run=~"$run"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression and how its series are called in the legend."""

    expr: str
    legend: str = "{{run}}"
    dashed: bool = False  # a limit, drawn dashed


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: `unit` is a Grafana unit id, `width` counts of 24 columns."""

    title: str
    about: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = LINES
    width: int = 8
    alarm_above: float | None = None  # NUMBER only: red from here on


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Now",
        (
            Panel(
                title="Active runs",
                about="Runs between claim and end.",
                queries=(Query(expr="sum(gonogo_run_active) or vector(0)"),),
                kind=NUMBER,
                width=4,
            ),
            Panel(
                title="Lost runs",
                about="No telemetry and no proof of death: somebody must look.",
                queries=(Query(expr="sum(gonogo_run_lost) or vector(0)"),),
                kind=NUMBER,
                width=4,
                alarm_above=1,
            ),
            Panel(
                title="Awaiting a decision",
                about="Experiments that only a person can move on.",
                queries=(Query(expr='max(gonogo_experiments{state="awaiting_decision"})'),),
                kind=NUMBER,
                width=4,
                alarm_above=1,
            ),
            Panel(
                title="Queued experiments",
                about="Waiting for a free worker.",
                queries=(Query(expr='max(gonogo_experiments{state="queued"})'),),
                kind=NUMBER,
                width=4,
            ),
            Panel(
                title="Alerts not yet delivered",
                about="The outbox. More than a few for minutes means the webhook does not answer.",
                queries=(Query(expr="max(gonogo_alerts_pending)"),),
                kind=NUMBER,
                width=4,
                alarm_above=1,
            ),
            Panel(
                title="Free devices",
                about="Over all workers that answer.",
                queries=(Query(expr='sum(gonogo_worker_devices{state="free"})'),),
                kind=NUMBER,
                width=4,
            ),
        ),
    ),
    (
        "Training",
        (
            Panel(
                title="Loss",
                about="Mean over ranks, as the trainer reports it each step.",
                queries=(Query(expr=f"gonogo_run_loss{{{RUN}}}"),),
                unit="none",
            ),
            Panel(
                title="Throughput and its floor",
                about="Over all ranks; dashed: the floor of the hardware profile.",
                queries=(
                    Query(expr=f"gonogo_run_toks_per_s{{{RUN}}}"),
                    Query(
                        expr=f"gonogo_run_floor_toks_per_s{{{RUN}}} > 0",
                        legend="floor of {{run}}",
                        dashed=True,
                    ),
                ),
                unit="suffix: tok/s",
            ),
            Panel(
                title="Progress",
                about="Steps done of the steps ordered.",
                queries=(Query(expr=f"gonogo:run_progress:ratio{{{RUN}}}"),),
                unit="percentunit",
            ),
            Panel(
                title="Step duration",
                about="Over ten minutes and all ranks.",
                queries=(
                    Query(
                        expr=f"gonogo:rank_step_duration_seconds:p50{{{RUN}}}",
                        legend="{{run}} p50",
                    ),
                    Query(
                        expr=f"gonogo:rank_step_duration_seconds:p95{{{RUN}}}",
                        legend="{{run}} p95",
                        dashed=True,
                    ),
                ),
                unit="s",
            ),
            Panel(
                title="Step of each rank",
                about="Ranks that part are a hang in the making.",
                queries=(Query(expr=f"gonogo_rank_step{{{RUN}}}", legend="{{run}} rank {{rank}}"),),
            ),
            Panel(
                title="Time left at this pace",
                about="Measured over a quarter of an hour; nothing while the run stands still.",
                queries=(
                    Query(expr=f"gonogo:run_remaining:seconds{{{RUN}}}"),
                    Query(
                        expr=f"(gonogo_run_deadline_timestamp_seconds{{{RUN}}} > 0) - time()",
                        legend="deadline of {{run}}",
                        dashed=True,
                    ),
                ),
                unit="s",
            ),
        ),
    ),
    (
        "Watchdog",
        (
            Panel(
                title="Age of the last heartbeat and its limit",
                about="Exported by the service, so it goes on when a worker dies.",
                queries=(
                    Query(expr=f"gonogo:run_heartbeat_age:seconds{{{RUN}}}"),
                    Query(
                        expr=f"gonogo_run_heartbeat_age_limit_seconds{{{RUN}}}",
                        legend="limit of {{run}}",
                        dashed=True,
                    ),
                ),
                unit="s",
            ),
            Panel(
                title="Findings",
                about="What the detectors have found in the runs that are active.",
                queries=(
                    Query(
                        expr=f"sum by (run, detector, severity) (gonogo_findings_total{{{RUN}}})",
                        legend="{{run}} {{detector}} ({{severity}})",
                    ),
                ),
            ),
            Panel(
                title="Armed detectors",
                about="1: it would find something. A detector that stays at 0 is blind.",
                queries=(
                    Query(
                        expr=f"gonogo_detector_armed{{{RUN}}}",
                        legend="{{run}} {{detector}}",
                    ),
                ),
                kind=STATES,
            ),
            Panel(
                title="Age of each rank's last heartbeat",
                about="As the worker sees it.",
                queries=(
                    Query(
                        expr=f"time() - gonogo_rank_last_heartbeat_timestamp_seconds{{{RUN}}}",
                        legend="{{run}} rank {{rank}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                title="Age of the watcher's last tick",
                about="The watchdog's own pulse: it ticks at least once a second.",
                queries=(
                    Query(expr=f"time() - gonogo_watcher_last_tick_timestamp_seconds{{{RUN}}}"),
                ),
                unit="s",
            ),
            Panel(
                title="Telemetry waiting on the host",
                about="Lines not yet acknowledged by the control plane.",
                queries=(Query(expr=f"gonogo_telemetry_backlog_lines{{{RUN}}}"),),
            ),
        ),
    ),
    (
        "Judgement",
        (
            Panel(
                title="Decisions in six hours",
                about="By verdict; those by hand are a person's, and among the others.",
                queries=(
                    Query(
                        expr="sum by (verdict) (increase(gonogo_decisions_total[6h]))",
                        legend="{{verdict}}",
                    ),
                    Query(
                        expr="sum by (verdict) (increase(gonogo_decisions_by_hand_total[6h]))",
                        legend="{{verdict}} by hand",
                        dashed=True,
                    ),
                ),
            ),
        ),
    ),
    (
        "The system itself",
        (
            Panel(
                title="Experiments by state",
                about="As the database has them.",
                queries=(Query(expr="max by (state) (gonogo_experiments)", legend="{{state}}"),),
            ),
            Panel(
                title="Workers by state",
                about="As the control plane sees them.",
                queries=(Query(expr="max by (state) (gonogo_workers)", legend="{{state}}"),),
            ),
            Panel(
                title="Age of the conductor's last tick",
                about="The loop that wakes, judges and alerts.",
                queries=(
                    Query(
                        expr="time() - max(gonogo_conductor_last_tick_timestamp_seconds)",
                        legend="conductor",
                    ),
                ),
                unit="s",
            ),
        ),
    ),
)


def build_target(query: Query, ref: str) -> prometheus.Dataquery:
    """One query in Grafana's words."""
    built = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref)
    return built.datasource(SOURCE)


def build_lines(panel: Panel) -> timeseries.Panel:
    """Lines over time; the series of a dashed query are found by its reference letter."""
    built = timeseries.Panel().title(panel.title).description(panel.about).unit(panel.unit)
    built = built.datasource(SOURCE).span(panel.width).height(8).fill_opacity(0).line_width(1)
    built = built.show_points(words.VisibilityMode.AUTO)
    legend = common.VizLegendOptions().show_legend(True)
    built = built.legend(legend.display_mode(words.LegendDisplayMode.LIST).calcs(["lastNotNull"]))
    dash = models.DynamicConfigValue(
        id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 8]}
    )
    for ref, query in zip("ABCD", panel.queries, strict=False):
        built = built.with_target(build_target(query, ref))
        if query.dashed:
            built = built.override_by_query(ref, [dash])
    return built


def build_number(panel: Panel) -> stat.Panel:
    """One big number, red from `alarm_above` on."""
    steps = [models.Threshold(value=None, color="green")]
    if panel.alarm_above is not None:
        steps.append(models.Threshold(value=panel.alarm_above, color="red"))
    limits = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
    built = stat.Panel().title(panel.title).description(panel.about).unit(panel.unit)
    built = built.datasource(SOURCE).span(panel.width).height(4).thresholds(limits)
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
    return built.reduce_options(reduce).with_target(build_target(panel.queries[0], "A"))


def build_states(panel: Panel) -> statetimeline.Panel:
    """Bands of 0 and 1 over time."""
    steps = [models.Threshold(value=None, color="orange"), models.Threshold(value=1, color="green")]
    limits = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
    built = statetimeline.Panel().title(panel.title).description(panel.about)
    built = built.datasource(SOURCE).span(panel.width).height(8).thresholds(limits)
    return built.with_target(build_target(panel.queries[0], "A"))


def build_variable(name: str, query: str) -> dashboard.QueryVariable:
    """A choice above the dashboard, filled from Prometheus; several or all may be chosen."""
    built = dashboard.QueryVariable(name).query({"query": query, "refId": name})
    built = built.datasource(SOURCE).multi(True).include_all(True).all_value(".*")
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return built.current(everything).refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)


def build_dashboard() -> dashboard.Dashboard:
    """The whole dashboard, from the tables above."""
    built = dashboard.Dashboard("gonogo").uid("gonogo").tags(["gonogo", "training"]).readonly()
    built = built.refresh("5s").time("now-1h", "now").timezone("browser")
    built = built.tooltip(models.DashboardCursorSync.CROSSHAIR)
    active = 'gonogo_run_active{experiment=~"$experiment"}'
    built = built.with_variable(
        build_variable("experiment", "label_values(gonogo_run_active, experiment)")
    )
    built = built.with_variable(build_variable("run", f"label_values({active}, run)"))
    builders = {LINES: build_lines, NUMBER: build_number, STATES: build_states}
    for title, panels in ROWS:
        built = built.with_row(dashboard.Row(title))
        for panel in panels:
            built = built.with_panel(builders[panel.kind](panel))
    return built


def render() -> str:
    """The committed JSON, byte for byte."""
    return JSONEncoder(sort_keys=True, indent=2).encode(build_dashboard().build()) + "\n"


if __name__ == "__main__":
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(render())
    print(OUTPUT)
