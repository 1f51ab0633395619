"""Is what the documentation says still true? Links, paths, commands, settings, diagrams."""

from __future__ import annotations

import re
import runpy
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gonogo.cli.app import app
from gonogo.contract import lifecycle
from gonogo.contract.goodput import WORDS
from gonogo.contract.patterns import GUESSED, PATTERNS
from gonogo.contract.plan import KINDS
from lab.command import app as simulator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "bench/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOPS = "gonogo|service|worker|nsa|lab|migrations|docker|deploy|docs|bench|tests"
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def rows_of(page: str) -> dict[str, list[str]]:
    """First cell of each table row, without backticks → the other cells."""
    lines = (ROOT / page).read_text().splitlines()
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
        if line.startswith("|")
    ]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_external_link_is_an_address(page: Path) -> None:
    links = re.findall(r"\]\((\w+://[^)]*)\)", page.read_text())
    wrong = [link for link in links if not re.fullmatch(r"https://[\w.-]+\.\w+(/\S*)?", link)]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(rf"`((?:{TOPS})/[\w./-]*)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(rf"(?:-m |`)((?:{TOPS})(?:\.[a-z_]+)+)\b", page.read_text())
    paths = [name.replace(".", "/") for name in named if not name.endswith(".md")]
    roots = [ROOT / path for path in paths]
    missing = [path for path in roots if not path.exists() and not path.with_suffix(".py").exists()]
    # A dotted name may also end in something that its module defines.
    assert [path for path in missing if not defines(path)] == []


def test_every_row_of_where_new_things_go_names_a_path_and_a_test() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    part = page.split("## Where new things go")[1].split("\n\n")[1]
    rows = [line.strip("|").split("|") for line in part.splitlines()[2:]]
    assert len(rows) > 20
    for name, edit, also, test in rows:
        paths = re.findall(r"`([\w.-]+/[\w./-]*)`", edit + also)
        assert paths, name
        assert [path for path in paths if not (ROOT / path).exists()] == [], name
        assert re.search(r"`(tests/|make |docker/)", test), name


def defines(path: Path) -> bool:
    source = path.parent.with_suffix(".py")
    package = path.parent / "__init__.py"
    texts = [file.read_text() for file in (source, package) if file.exists()]
    return any(re.search(rf"\b{path.name}\b", text) for text in texts)


def test_the_tree_in_the_architecture_is_the_tree() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    tree = page.split("## The tree")[1].split("```")[1]
    folder, seen = "", []
    for line in tree.strip().splitlines():
        first = line.split("  ")[0] if not line.startswith(" ") else line.strip().split("  ")[0]
        names = line.split() if line.startswith("README") else [first]
        for name in names:
            path = folder + name if line.startswith(" ") else name
            seen.append(path)
            assert (ROOT / path).exists(), path
        if not line.startswith(" ") and first.endswith("/"):
            folder = first
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= {path.strip("/") for path in seen}


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    text = page.read_text()
    shown = set(re.findall(r"(?:`|bin/|api )gonogo ([a-z]+)", text))
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert shown <= known


SHELL = ("sh", "bash", "console")
"""Languages of the blocks that show what is typed."""


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, text) of every block of a page; the language is empty if there is none."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)


def typed_lines(text: str) -> list[str]:
    """Every line of the blocks that show what is typed, as it is typed."""
    shown = [block for language, block in blocks(text) if language in SHELL]
    lines = [line for block in shown for line in block.replace("\\\n", " ").splitlines()]
    return [re.sub(r"^(?:\$ )?(?:\.venv/bin/)?", "", line.strip()) for line in lines]


def command_lines(text: str) -> list[str]:
    """Every call of `gonogo` that a page shows, in its code blocks and between its lines."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose)
    calls = typed_lines(text) + [re.sub(r"^(?:\.venv/bin/)?", "", span.strip()) for span in spans]
    return [call for call in calls if call.startswith("gonogo ")]


def unknown_options(call: str) -> list[str]:
    """Options of a shown call that its command does not have; what follows `--` is another's."""
    words = re.split(r" #| \|| >| &&|;", call)[0].split()[1:]
    command: Any = typer.main.get_command(app)
    if words[:1] == ["simulate"]:  # its options are the simulator's
        command = typer.main.get_command(simulator)
        words = words[1:]
    while words and words[0] in getattr(command, "commands", ()):
        command = command.commands[words.pop(0)]
    known = {name for row in command.params for name in (*row.opts, *row.secondary_opts)}
    known |= {"--help"}
    own = words[: words.index("--")] if "--" in words else words
    said = [word.strip("[]").split("=")[0] for word in own if re.match(r"\[?-{1,2}[a-z]", word)]
    return [name for name in said if name not in known]


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_option_that_a_page_shows_is_one_of_its_command(page: Path) -> None:
    wrong = {call: unknown_options(call) for call in command_lines(page.read_text())}
    assert {call: names for call, names in wrong.items() if names} == {}


def of_compose() -> tuple[dict[str, str], set[str]]:
    """What the compose file reads: variable → default, images without digest; and its secrets."""
    text = (ROOT / "docker-compose.yml").read_text()
    read = re.findall(r"\$\{(\w+)(?::?-([^}]*))?\}", text)
    files = re.findall(r"\{file: \./docker/secrets/(\w+)\}", text)
    return {name: default.split("@")[0] for name, default in read}, set(files)


def test_the_variables_of_docker_compose_are_listed_with_their_defaults_and_no_other() -> None:
    part = (ROOT / "docs/reference/settings.md").read_text().split("## docker-compose.yml")[1]
    listed = dict(re.findall(r"^\|`([A-Z_]+)`\|([^|]+)\|", part, re.M))
    read, _ = of_compose()
    assert {name: default.strip("`–") for name, default in listed.items()} == read


def test_the_secrets_of_docker_compose_are_listed_and_made_and_no_other() -> None:
    part = (ROOT / "docs/reference/settings.md").read_text().split("## docker-compose.yml")[1]
    _, files = of_compose()
    assert set(re.findall(r"^\|`([a-z_]+)`\|", part, re.M)) == files
    made = runpy.run_path(str(ROOT / "docker/make_secrets.py"))["make"]()
    assert made.keys() == files


def diagram(table: dict[tuple[StrEnum, StrEnum], StrEnum]) -> list[str]:
    """Lines of the Mermaid diagram of a lifecycle."""
    return [f"    {before} --> {after}: {event}" for (before, event), after in table.items()]


@pytest.mark.parametrize(
    "table",
    [lifecycle.EXPERIMENT_TRANSITIONS, lifecycle.PHASE_TRANSITIONS, lifecycle.RUN_TRANSITIONS],
    ids=["experiment", "phase", "run"],
)
def test_the_lifecycle_diagrams_are_the_tables(
    table: dict[tuple[StrEnum, StrEnum], StrEnum],
) -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    diagrams = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", page, re.S)
    expected = diagram(table)
    assert any(sorted(found.rstrip("\n").split("\n")) == sorted(expected) for found in diagrams), (
        "expected a diagram of:\n" + "\n".join(expected)
    )


def test_every_decision_record_has_the_same_parts() -> None:
    records = sorted((ROOT / "docs/explanation/decisions").glob("[0-9]*.md"))
    assert len(records) >= 5
    for record in records:
        text = record.read_text()
        assert text.startswith(f"# {int(record.name[:4])}. ")
        for part in ("**Question.**", "**Decision.**", "**Why.**", "**So.**"):
            assert part in text, (record.name, part)


def test_every_fault_on_demand_is_documented_with_its_defaults() -> None:
    page = (ROOT / "docs" / "detectors.md").read_text()
    for kind, values in KINDS.items():
        pairs = ",".join(f"{key}={value}" for key, value in values.items())
        assert f"`{kind}:{pairs}`" in page or (not pairs and f"`{kind}`" in page), kind


def test_every_bundled_plan_is_listed_and_no_other() -> None:
    plans = {path.stem for path in (ROOT / "gonogo/contract/plans").glob("*.yaml")}
    campaigns = {name for name in plans if name.startswith("campaign-")}
    compare = (ROOT / "docs/how-to/compare.md").read_text()
    assert set(re.findall(r"`(campaign-\w+)`", compare)) == campaigns
    listed = set(rows_of("docs/how-to/plans.md"))
    assert {row for row in listed if re.match(r"demo$|m7c-", row)} == plans - campaigns


def test_the_bundled_patterns_are_listed_in_the_order_in_which_they_are_tried() -> None:
    page = (ROOT / "docs/how-to/run.md").read_text()
    listed = re.search(r"^Bundled: (.*?)\. All but", page, re.M)
    assert listed is not None
    assert re.findall(r"`([\w.-]+)`", listed[1]) == list(PATTERNS)
    assert list(GUESSED) == [name for name in PATTERNS if name != "tqdm"]


def test_every_part_of_the_time_is_explained() -> None:
    page = (ROOT / "docs/how-to/report.md").read_text()
    part = page.split("\n## Where the time went\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\|(\w[^|]*)\|", part, re.M)
    assert {name for cell in cells for name in cell.split(", ")} == {"part", *WORDS.values()}
