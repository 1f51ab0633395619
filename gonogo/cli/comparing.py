"""`gonogo compare`: which of several variants is better, and how certain that is."""

import math
from typing import Annotated

import typer
from rich.markup import escape

from gonogo.cli.completing import complete_runs
from gonogo.cli.ledger import Keys
from gonogo.cli.output import Json, out, print_json, print_lines, print_table
from gonogo.cli.settings import load_settings
from gonogo.cli.variants import Reach, read_variants, units_of
from gonogo.contract.comparison import Answer, ComparedVariant, Comparison, DifferingPath
from gonogo.contract.criterion import Compared
from gonogo.contract.errors import Rejected
from gonogo.judge.compare.compare import compare as compare_units
from gonogo.judge.compare.question import CONFIDENCE, MARGIN, WARMUP_STEPS, ask
from gonogo.judge.words import sentence

HOW = (
    "Runs are the units: repeat each variant, best in turns (A1 B1 A2 B2 …); one run each can only"
    " show what is beyond 10 %. The exit code is 0 whatever the answer is. Error rates:"
    " docs/how-to/compare.md."
)
_STYLE = {
    Answer.BETTER: "bold green",
    Answer.WORSE: "bold red",
    Answer.TIE: "bold",
    Answer.INCONCLUSIVE: "bold magenta",
}


def compare(
    variants: Annotated[
        list[str],
        typer.Argument(
            metavar="VARIANT",
            help=(
                "Variants, the baseline first. Each is a run, or its repeats A1,A2,A3, or"
                " name=A1,A2,A3; a run is its directory, a decision (file or dec_…), a run's or an"
                " experiment's id or name (its newest run)."
            ),
            autocompletion=complete_runs,
        ),
    ],
    metric: Annotated[
        str,
        typer.Option(
            help=(
                "What is compared, as gates name it: toks_per_s, loss, dt_step_s, …, or a metric"
                " of the program's own: user/acc."
            )
        ),
    ] = "toks_per_s",
    aggregate: Annotated[
        Compared | None,
        typer.Option(
            help=(
                "What counts of a run: its last value, its best one, or the mean over the steps."
                " Default: last for user/…, else mean."
            ),
            show_default=False,
        ),
    ] = None,
    lower: Annotated[bool, typer.Option("--lower", help="Lower is better.")] = False,
    higher: Annotated[bool, typer.Option("--higher", help="Higher is better.")] = False,
    margin: Annotated[
        float, typer.Option(help="Ratio beyond which a difference matters; 0.02 is 2 %.")
    ] = MARGIN,
    confidence: Annotated[
        float, typer.Option(help="That all intervals hold, together.")
    ] = CONFIDENCE,
    warmup: Annotated[
        int, typer.Option(help="First steps of every run that are not looked at.")
    ] = WARMUP_STEPS,
    unpaired: Annotated[
        bool,
        typer.Option("--unpaired", help="The n-th runs of the variants were not made in turns."),
    ] = False,
    per_device: Annotated[
        bool, typer.Option("--per-device", help="Divide by the number of ranks, as scaling is.")
    ] = False,
    shown_by: Annotated[
        list[str] | None,
        typer.Option(help="Metric that every variant must tell otherwise than the baseline."),
    ] = None,
    alike_in: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=SHARE",
            help="Metric that every variant must tell as the baseline does, within this share.",
        ),
    ] = None,
    key: Keys = None,
    as_json: Json = False,
) -> None:
    """Compare variants: winner, tie or inconclusive, and what differed."""
    if lower and higher:
        raise Rejected("--lower and --higher exclude each other")
    question = ask(
        metric,
        higher_is_better=higher if lower or higher else None,
        aggregate=aggregate,
        margin=margin,
        confidence=confidence,
        warmup_steps=warmup,
        per_device=per_device,
        shown_by=shown_by or (),
        alike_in=dict(map(_share, alike_in or ())),
    )
    reach = Reach(settings=load_settings(), question=question, keys=key)
    try:
        units = units_of(read_variants(variants), reach.unit, paired=not unpaired)
    finally:
        reach.close()
    found = compare_units(units, question)
    if as_json:
        print_json(found.wire())
    else:
        print_comparison(found)


def _share(text: str) -> tuple[str, float]:
    """Return the metric and the share of `METRIC=SHARE`.

    Raises:
        Rejected: it has not that form.
    """
    metric, _, share = text.partition("=")
    try:
        found = float(share)
    except ValueError:
        found = math.nan
    if not metric or not 0.0 <= found < 1.0:
        raise Rejected(f"--alike-in: found {text!r}; expected METRIC=SHARE, such as loss=0.01")
    return metric, found


def print_comparison(found: Comparison) -> None:
    """Print a comparison for people: table, paths, what was left out, notes, the result."""
    rows = found.variants
    print_table(
        {
            "variant": [escape(row.name) for row in rows],
            _what(found): [_number(row.value) for row in rows],
            "ratio": ["1" if row.answer is None else _ratio(row) for row in rows],
            "answer": [_answer(row) for row in rows],
            "runs": [str(len(row.runs)) for row in rows],
        },
        cut=("variant",),
        optional=("runs",),
    )
    lines = [f"differs      {_path(row, found.baseline)}" for row in found.paths]
    lines += [f"left out     {row.name} ({row.variant}): {row.why}" for row in found.left_out]
    lines += [f"note         {sentence(row)}" for row in found.notes]
    print_lines(f"  {line}" for line in lines)
    style = "bold green" if found.winner else "bold"
    out.print(f"[{style}]{escape(found.text)}[/{style}]", highlight=False, soft_wrap=True)


def _what(found: Comparison) -> str:
    """Return what is compared: `loss`, `last user/acc`."""
    if found.aggregate is Compared.MEAN:
        return found.metric
    return f"{found.aggregate} {found.metric}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def _ratio(row: ComparedVariant) -> str:
    """Return the ratio with its interval: `1.052 (1.031 to 1.074)`."""
    if row.ratio is None:
        return "–"
    if row.low is None or row.high is None:
        return f"{row.ratio:.3f}"
    return f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})"


def _answer(row: ComparedVariant) -> str:
    if row.answer is None:
        return "[dim]baseline[/dim]"
    return f"[{_STYLE[row.answer]}]{row.answer}[/{_STYLE[row.answer]}]"


def _path(row: DifferingPath, baseline: str) -> str:
    """Return a path with what each variant has: `train.dtype: fp32 → bf16 (told)`."""
    values = {name: ", ".join(map(_value, found)) for name, found in row.values.items()}
    base = values.pop(baseline, "–")
    alone = len(values) == 1
    others = [text if alone else f"{name} {text}" for name, text in values.items() if text != base]
    return f"{row.path}: {base} → {', '.join(others)} ({row.evidence})"


def _value(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=HOW)(compare)
