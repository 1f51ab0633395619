"""Do rules, dashboard, documentation and code mean the same metrics by the same names?

docs/reference/metrics.md is the table that the others are held against.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import promql_parser
import pytest
import yaml

from docker.grafana import dashboards

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "docker/prometheus/rules.yml").read_text())
RULE_ROWS = [rule for group in RULES["groups"] for rule in group["rules"]]
#: Prometheus' own, and suffixes that a histogram adds.
FOREIGN = {"up", "prometheus_sd_http_failures_total"}
HISTOGRAM_PARTS = ("_bucket", "_count", "_sum")


def documented() -> dict[str, set[str]]:
    """Metric name → label names, from docs/reference/metrics.md."""
    rows = re.findall(
        r"^\|`(gonogo_\w+)`\|(?:`([\w,]+)`)?\|",
        (ROOT / "docs/reference/metrics.md").read_text(),
        re.M,
    )
    return {name: set(labels.split(",")) - {""} for name, labels in rows}


def recorded() -> set[str]:
    """Names that recording rules make."""
    return {rule["record"] for rule in RULE_ROWS if "record" in rule}


def names_in(expr: str) -> set[str]:
    """Names of the metrics that an expression reads."""
    found: set[str] = set()

    def visit(node: object) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name, f"a selector without a name in {expr}"
            found.add(node.name)
            return
        for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
            child = getattr(node, part, None)
            if child is not None:
                visit(child)
        for child in getattr(node, "args", None) or ():
            visit(child)

    visit(promql_parser.parse(expr))
    return found


def dashboard_queries() -> list[str]:
    """Every expression of the committed dashboard, variables replaced as Grafana does for All."""
    board = json.loads(dashboards.OUTPUT.read_text())
    targets = [target for panel in board["panels"] for target in panel.get("targets", [])]
    return [re.sub(r"\$\w+", ".*", target["expr"]) for target in targets]


def is_known(name: str) -> bool:
    base = name
    for part in HISTOGRAM_PARTS:
        if name.endswith(part) and name.removesuffix(part) in documented():
            base = name.removesuffix(part)
    return base in documented() or base in recorded() or base in FOREIGN


def test_the_committed_dashboard_is_what_the_script_writes() -> None:
    assert dashboards.OUTPUT.read_text() == dashboards.render(), "run `make made`"


@pytest.mark.parametrize("expr", [rule["expr"] for rule in RULE_ROWS])
def test_every_rule_reads_documented_metrics(expr: str) -> None:
    names = names_in(expr)
    assert names
    assert [name for name in names if not is_known(name)] == []


@pytest.mark.parametrize("expr", dashboard_queries())
def test_every_panel_reads_documented_metrics(expr: str) -> None:
    names = names_in(expr)
    assert names
    assert [name for name in names if not is_known(name)] == []


def test_every_metric_has_base_units() -> None:
    for name in documented():
        assert not re.search(r"_(ms|minutes|mb|gb|percent)(_|$)", name), name


def test_every_alert_has_a_case_where_it_fires_and_one_where_it_is_silent() -> None:
    files = (ROOT / "docker/prometheus").glob("rules_*test.yml")
    tests = [test for file in files for test in yaml.safe_load(file.read_text())["tests"]]
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    alerts = {rule["alert"] for rule in RULE_ROWS if "alert" in rule}
    without_wait = {rule["alert"] for rule in RULE_ROWS if "alert" in rule and "for" not in rule}
    assert fired == alerts
    assert silent >= without_wait


def test_every_alert_says_how_urgent_it_is_and_what_it_means() -> None:
    for rule in (rule for rule in RULE_ROWS if "alert" in rule):
        assert rule["labels"]["severity"] in {"page", "warning"}
        assert rule["annotations"]["summary"]


def named_in(package: str) -> set[str]:
    """Metric names that are written out in a package's sources, counters with their suffix."""
    found: set[str] = set()
    for source in (ROOT / package).rglob("*.py"):
        for name in re.findall(r"[\"'](gonogo_[a-z_]+[a-z])[\"']", source.read_text()):
            counter = f"{name}_total"
            found.add(counter if counter in documented() else name)
    return found


def section(title: str) -> set[str]:
    """Metrics documented under one heading."""
    text = (ROOT / "docs/reference/metrics.md").read_text()
    (part,) = (part for part in text.split("\n## ") if part.startswith(title))
    return set(re.findall(r"^\|`(gonogo_\w+)`", part, re.M))


@pytest.mark.parametrize(
    ("package", "title"), [("service", "The control plane"), ("worker", "A worker's exporter")]
)
def test_the_table_and_the_code_name_the_same_metrics(package: str, title: str) -> None:
    assert named_in(package) == section(title)
