"""Are the reference pages what the code makes, and do they say something of everything?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from bench import references
from bench.references import Key, field_docs, keys
from gonogo.contract.criterion import Aggregate, Metric
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.plan import Plan
from gonogo.contract.yaml_text import parse_yaml
from gonogo.judge import words
from gonogo.judge.facts.metrics import AGGREGATES, METRICS, Owed

ROOT = Path(__file__).parents[2]
PLANS = sorted((ROOT / "gonogo/contract/plans").glob("*.yaml"))


def every_key(model: type[BaseModel] = Plan, prefix: str = "") -> Iterator[Key]:
    for key in keys(model, prefix):
        yield key
        if key.section is not None:
            yield from every_key(key.section, key.below)


def said_by(document: Any, model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Paths of the reference that a plan's document uses."""
    rows = {key.path.removeprefix(prefix): key for key in keys(model, prefix)}
    for name, value in document.items():
        key = rows[name]
        if key.section is None:
            yield key.path
        if key.section is None or value is None:
            continue
        below = value if isinstance(value, list) else [value]
        if key.path == "remedies":
            below = list(value.values())
        for part in below:
            yield from said_by(part, key.section, key.below)


@pytest.mark.parametrize("name", references.PAGES)
def test_a_generated_page_is_what_the_code_makes(name: str) -> None:
    page = (ROOT / f"docs/{name}.md").read_text()
    assert page == references.PAGES[name](), "`make made` makes it"


@pytest.mark.parametrize("key", list(every_key()), ids=lambda key: key.path)
def test_every_key_of_a_plan_says_what_it_means(key: Key) -> None:
    assert key.meaning
    assert key.meaning.endswith((".", ")"))
    assert "|" not in key.meaning


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_every_key_of_a_bundled_plan_is_in_the_reference(plan: Path) -> None:
    page = (ROOT / "docs/reference/plan.md").read_text()
    said = set(said_by(parse_yaml(plan.read_text()), Plan, ""))
    assert len(said) > 20
    missing = [path for path in said if f"|`{path}`|" not in page]
    equal = re.findall("^`(.*)` has the keys of `(.*)`", page, re.MULTILINE)
    for repeated, shown in equal:
        missing = [path.replace(f"{repeated}.", f"{shown}.") for path in missing]
    assert [path for path in missing if f"|`{path}`|" not in page] == []


def test_a_field_takes_its_note_also_from_the_class_above() -> None:
    class Above(BaseModel):
        first: int = 1
        """Written
        above."""
        second: int = 2
        """Written above, too."""

    class Below(Above):
        first: int = 3
        third: int = 4  # Written behind.
        second: int = 5
        """Written again."""

    found = {"first": "Written above.", "second": "Written again.", "third": "Written behind."}
    assert field_docs(Below) == found


def test_every_doubt_has_words_and_an_effect() -> None:
    assert [*words.WORDS] == [*DoubtKind]


@pytest.mark.parametrize("kind", DoubtKind)
def test_every_doubt_is_a_sentence(kind: DoubtKind) -> None:
    doubt = Doubt(kind=kind, rank=3, step=7, name="n", expected=[1, 2, 3, 4, 5], found=0.5)
    assert words.sentence(doubt).startswith("rank 3: ")
    assert words.sentence(Doubt(kind=kind))


def test_every_metric_is_measured_and_says_what_it_is() -> None:
    assert [Metric(name) for name in METRICS] == list(Metric)
    assert all(row.meaning.endswith(".") for row in METRICS.values())


def test_every_aggregate_is_computed_and_says_what_it_is() -> None:
    assert set(references.AGGREGATES) == set(AGGREGATES) == set(Aggregate)
    assert set(references.OWED) == set(Owed)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_names_fields_and_messages_of_the_protocol(name: str) -> None:
    named = set(re.findall(r"`(\w+)`", METRICS[name].meaning))
    assert named <= {*Heartbeat.model_fields, *Msg, *Plan.model_fields}


def test_every_system_that_is_compared_has_a_section_with_its_sources() -> None:
    page = (ROOT / "docs/explanation/comparison.md").read_text()
    head, *rows = [line for line in page.split("\n## ")[0].splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {head.count("|")}
    systems = re.findall(r"\[([^\]]+)\]\(#([^)]+)\)", head)
    assert len(systems) == 7
    sections = {
        re.sub(r"[^\w -]", "", part.splitlines()[0].lower()).replace(" ", "-"): part
        for part in page.split("\n## ")[1:]
    }
    for name, anchor in systems:
        assert "](https://" in sections[anchor], name
        assert "Together:" in sections[anchor], name
