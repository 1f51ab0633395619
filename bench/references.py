"""The pages of docs/ that are made from the code: `make made` writes them all.

    python -m bench.references

The text around the tables is in `pages/` beside this file. A test compares pages and code.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import typer.main
from fastapi import FastAPI

from bench import plan_reference
from gonogo import contract
from gonogo.cli.app import app as command_line
from gonogo.cli.exits import EXIT_WORDS
from gonogo.contract.criterion import DEVICE_METRICS, Aggregate
from gonogo.contract.finding import IN_WEIGHTS, DoubtKind, Effect
from gonogo.contract.patience import MEANING, SETTING, TABLE, Cell, ProgramKind
from gonogo.contract.watch import Action, CanHalt, IdentityCheck, Watch
from gonogo.contract.yaml_text import parse_yaml
from gonogo.judge.facts.measure import FULL_COVERAGE, PARTIAL_SHARE
from gonogo.judge.facts.metrics import METRICS, MetricRow, Owed
from gonogo.judge.words import WORDS
from gonogo.settings import TABLE as SETTINGS
from gonogo.watch.registry import REGISTRY, Kind
from nsa import flags
from service.app import API

_TOLD = itemgetter("name", "default", "values", "effect")
_FRAMES = Path(__file__).parent / "pages"
_DOCS = Path(__file__).parents[1] / "docs"
_PLANS = Path(contract.__file__).parent / "plans"
OWED = {
    Owed.EVERY_STEP: "every step",
    Owed.EVERY_EVAL: "every evaluation",
    Owed.ONCE: "once",
    Owed.AS_TOLD: "those reported",
}
AGGREGATES = {
    Aggregate.MIN: "The smallest sample.",
    Aggregate.MAX: "The largest sample.",
    Aggregate.MEAN: "The mean of the samples.",
    Aggregate.MEDIAN: "The median; the default.",
    Aggregate.P95: "The value that 95 % of the samples do not exceed, interpolated.",
    Aggregate.LAST: "The sample of the last step.",
    Aggregate.COUNT: "How many samples there are.",
    Aggregate.SLOPE: "Least-squares slope over the steps: by how much it rises a step; two samples"
    " at least.",
    Aggregate.ALL_FINITE: "Passes when no sample is NaN or infinite; takes no threshold.",
}


def detectors() -> str:
    """Return docs/detectors.md."""
    return _framed("detectors", patience=_patience(), detectors=_detectors())


def _patience() -> str:
    columns: dict[tuple[Cell, ...], list[str]] = {}
    for kind in ProgramKind:
        columns.setdefault(tuple(row[kind] for row in TABLE.values()), []).append(kind)
    rows = (
        (
            f"`{place}`",
            *(_cell(cells[number]) for cells in columns),
            MEANING[place],
            f"`{SETTING[place]}`" if place in SETTING else "",
        )
        for number, place in enumerate(TABLE)
    )
    heads = (", ".join(kinds) for kinds in columns.values())
    return _table(("place", *heads, "where a rank is", "setting"), rows)


def _cell(cell: Cell) -> str:
    seconds = "none" if cell.seconds is None else f"{cell.seconds:g} s"
    return seconds if cell.multiple is None else f"{seconds}, {cell.multiple:g} × {cell.of}"


def _detectors() -> str:
    head = ("", "detector", "what it sees", "action", "halts in")
    return _table(head, (_row(number, row) for number, row in enumerate(REGISTRY, start=1)))


def _row(number: int, row: Kind) -> tuple[str, ...]:
    settings = getattr(Watch(), str(row.name), None)
    halts = isinstance(settings, IdentityCheck) or (
        isinstance(settings, CanHalt) and settings.action is Action.HALT
    )
    action, where = (Action.HALT, "all plans") if halts else (Action.WARN, _asked(row.name))
    return f"D{number}", f"`{row.name}`", row.sentence, str(action), where


def _asked(detector: str) -> str:
    """Return which bundled plans ask for the detector's halt."""
    plans = {path.stem: parse_yaml(path.read_text()) for path in sorted(_PLANS.glob("*.yaml"))}
    asked = [
        name
        for name, plan in plans.items()
        if plan.get("watch", {}).get(detector, {}).get("action") == Action.HALT
    ]
    return "all bundled plans" if len(asked) == len(plans) else ", ".join(asked)


def metrics() -> str:
    """Return docs/reference/metrics.md."""
    rows = _table(
        ("metric", "unit", "what it is", "required", "aggregate", "devices"),
        (_cells(name, row) for name, row in METRICS.items()),
    )
    aggregates = _table(
        ("aggregate", "what it is", "needed"),
        (
            (f"`{name}`", text, f"{1.0 if name in FULL_COVERAGE else PARTIAL_SHARE:.0%}")
            for name, text in AGGREGATES.items()
        ),
    )
    return _framed("metrics", metrics=rows, aggregates=aggregates)


def _cells(name: str, row: MetricRow) -> tuple[str, ...]:
    own = "its own" if row.statistic is not None else ""
    devices = "yes" if name in DEVICE_METRICS else ""
    return f"`{name}`", row.unit, row.meaning, OWED[row.owed], own, devices


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [columns, ["-"] * len(columns), *map(list, rows)]
    return "".join(f"|{'|'.join(cells)}|\n" for cells in lines)


def doubts() -> str:
    """Return docs/doubts.md."""
    rows = (
        (f"`{kind}`", words.meaning, _effect(kind), words.advice) for kind, words in WORDS.items()
    )
    table = _table(("kind", "meaning", "effect", "what to do"), rows)
    return _framed("doubts", doubts=table)


def _effect(kind: DoubtKind) -> str:
    effect = kind.effect
    if effect is Effect.NONE:
        return "listed"
    if effect is Effect.WEAK:
        return f"CONDITIONAL_GO (`{effect}`)"
    carried = ", inherited" if kind in IN_WEIGHTS else ""
    return f"INCONCLUSIVE (`{effect}`){carried}"


def command_line_page() -> str:
    """Return docs/reference/cli.md."""
    commands: dict[str, Any] = typer.main.get_command(command_line).commands  # type: ignore[attr-defined]
    rows = (row for name, command in commands.items() for row in _commands(name, command))
    exits = ((str(int(code)), words) for code, words in EXIT_WORDS.items())
    return _framed(
        "cli",
        commands=_table(("command", "options", "what it does"), rows),
        exits=_table(("code", "means"), exits),
    )


def _commands(name: str, command: Any) -> Iterator[tuple[str, ...]]:
    """Yield the row of a command, or those of its subcommands."""
    for below, part in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {below}", part)
    if not hasattr(command, "commands"):
        arguments = [row.name.upper() for row in command.params if row.param_type_name != "option"]
        options = [
            max(row.opts, key=len) for row in command.params if row.param_type_name == "option"
        ]
        shown = " ".join(f"`{name}`" for name in options if name not in ("--json", "--help"))
        yield f"`{' '.join([name, *arguments])}`", shown, _first_sentence(command.help)


def _first_sentence(text: str | None) -> str:
    """Return the first sentence of a text, on one line, for a cell of a table."""
    line = " ".join((text or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", line)[0].replace("|", "\\|")


def rest() -> str:
    """Return docs/reference/rest.md."""
    described = FastAPI()
    for router in API:
        described.include_router(router)
    rows = (
        (f"`{method.upper()} {path}`", _first_sentence(call.get("description")))
        for path, calls in described.openapi()["paths"].items()
        for method, call in calls.items()
    )
    return _framed("rest", routes=_table(("route", "what it does"), rows))


def settings() -> str:
    """Return docs/reference/settings.md."""
    ours = (
        (f"`{row.env}`", f"`{row.default}`" if row.default else "–", ", ".join(row.read_by), text)
        for row in SETTINGS
        for text in [row.help.replace("|", "\\|") + (" (secret)" if row.secret else "")]
    )
    trainer = (
        (f"`{name}`", f"`{default}`" if default else "–", values, effect)
        for name, default, values, effect in map(_TOLD, flags.rows())
    )
    return _framed(
        "settings",
        settings=_table(("variable", "default", "read by", "meaning"), ours),
        trainer=_table(("variable", "default", "values", "effect"), trainer),
    )


def _framed(name: str, **tables: str) -> str:
    """Return a page of `pages/` with its tables in their places."""
    text = (_FRAMES / f"{name}.md").read_text()
    for place, table in tables.items():
        assert f"<!-- {place} -->\n" in text, (name, place)
        text = text.replace(f"<!-- {place} -->\n", table)
    return re.sub(r"^\|.*$", _compact, text, flags=re.MULTILINE)


def _compact(row: re.Match[str]) -> str:
    """Return a row of a table without the spaces around its cells."""
    return re.sub(r" *(?<!\\)\| *", "|", row[0]).replace("|---", "|-")


PAGES: dict[str, Callable[[], str]] = {
    "detectors": detectors,
    "doubts": doubts,
    "reference/cli": command_line_page,
    "reference/metrics": metrics,
    "reference/plan": plan_reference.page,
    "reference/rest": rest,
    "reference/settings": settings,
}
"""Page → what makes it."""


def main() -> None:
    """Write all pages."""
    for name, make in PAGES.items():
        (_DOCS / f"{name}.md").write_text(make())


if __name__ == "__main__":
    main()
