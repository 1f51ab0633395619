"""What do the rows say, for a person? The tables of one run as Markdown.

Pure: rows in, text out. Any set of rows gives a report. It is written again after every stage, so a
command that is ended early leaves one too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.on_gpu.figures import DENSE, break_even_rows, measured_ms

Row = Mapping[str, Any]
_KERNELS, _TILES = 12, 6
_MAY_FAIL = ("attention", "kernels", "trainer", "proof")
_KNOWN = (
    "kernel", "direction", "kind", "sequences", "compiled", "graphs", "B", "S",
    "dtype",
)  # fmt: skip
_WAYS = ("compiled", "graphs")


def report(rows: Sequence[Row], planned: Iterable[str]) -> str:
    """Return the report of one run, given the names of its planned comparisons."""
    parts = (
        _machine(rows), _correctness(rows, list(planned)), _failures(rows), _attention(rows),
        _kernels(rows), _trainer(rows), _tiles(rows), _proofs(rows), _left_out(rows),
    )  # fmt: skip
    return "\n".join(line for part in parts for line in part)


def _of(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["row"] == kind]


def _table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for cells in lines:
        yield f"| {' | '.join('–' if cell is None else str(cell) for cell in cells)} |"


def _machine(rows: Sequence[Row]) -> Iterator[str]:
    yield "# NSA on this machine"
    yield ""
    for row in _of(rows, "environment"):
        names = ("device", "torch", "triton", "cuda", "python", "git")
        yield ", ".join(f"{name} {row[name]}" for name in names if row.get(name))
        for gpu in row.get("gpus", ()):
            yield ", ".join(f"{name} {value}" for name, value in gpu.items())
        if row.get("changed"):
            yield "with changes that are not committed"
    for row in _of(rows, "ceiling"):
        rate = f"{row['gb_s']} GB/s" if "gb_s" in row else f"{row.get('tflop_s')} TFLOP/s"
        yield f"{row['of']}: {rate}"


def _correctness(rows: Sequence[Row], planned: Sequence[str]) -> Iterator[str]:
    made = {row["name"]: row for row in _of(rows, "correctness")}
    wrong = [row for row in made.values() if row.get("right") is not True]
    missing = [name for name in planned if name not in made]
    yield from ("", "## Correctness", "")
    if not made:
        yield "Nothing was compared."
        return
    yield (
        f"{len(made) - len(wrong)} of {len({*planned, *made})} comparisons held, "
        f"{len(wrong)} did not, {len(missing)} were not made."
    )
    for row in wrong:
        figures = ("same_selection", "out", "worst_row", "gradients")
        figures += ("worst_gradient", "gradients_alike")
        told = ", ".join(f"{name} {row[name]}" for name in figures if name in row)
        yield f"- WRONG {row['name']}: {row.get('error') or told}"
    for name in missing:
        yield f"- not made: {name}"


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    lines = []
    for row in _of(rows, "compiled"):
        lines += [f"- does not compile: {x['kernel']}: {x['error']}" for x in row.get("failed", ())]
        if row.get("error"):
            lines.append(f"- compiling: {row['error']}")
    for row in _of(rows, "stage"):
        code = row.get("code", 0)
        if row.get("broke_at") or code != 0:
            how = "was killed at its deadline" if code is None else f"ended with {code}"
            at = f" at: {row['broke_at']}" if row.get("broke_at") else ""
            lines.append(f"- stage {row['stage']} {how}{at}")
    for row in rows:
        if row.get("error") and row["row"] in _MAY_FAIL:
            what = " ".join(str(row[name]) for name in _KNOWN if name in row)
            lines.append(f"- {row['row']} {what}: {row['error']}")
    if lines:
        yield from ("", "## What failed", "", *lines)


def _attention(rows: Sequence[Row]) -> Iterator[str]:
    for (direction, batch, way), kernels in measured_ms(rows).items():
        names = sorted(kernels, key=lambda name: (name in DENSE, name != "triton", name))
        ours = names[0] if names[0] not in DENSE else None
        dense = [name for name in names if name in DENSE]
        lines = []
        for S in sorted({S for times in kernels.values() for S in times}):
            best = min((kernels[name][S] for name in dense if S in kernels[name]), default=None)
            own = kernels[ours].get(S) if ours else None
            ratio = f"{best / own:.2f}" if best and own else None
            lines.append([S, *(kernels[name].get(S) for name in names), ratio])
        yield ""
        yield f"## Attention, {direction}, batch {batch}, {way}, ms"
        yield from _table(["S", *names, "dense / NSA"], lines)
    even = break_even_rows(rows)
    if even:
        yield ""
    for row in even:
        yield (
            f"- {row['of']} against {row['against']}, {row['direction']}, batch {row['batch']}, "
            f"{row['way']}: {row['words']}"
        )


def _kernels(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "kernels"):
        if "table" in row:
            yield ""
            yield f"## Kernels, forward + backward, {row['B']} x {row['S']}"
            lines = [
                [x["kernel"], x["us"], x["launches"], f"{x['share']:.1%}", x["tflop_s"]]
                for x in row["table"][:_KERNELS]
            ]
            yield from _table(["kernel", "µs", "launches", "share", "TFLOP/s"], lines)


def _trainer(rows: Sequence[Row]) -> Iterator[str]:
    told = [row for row in _of(rows, "trainer") if "tok_s" in row]
    if told:
        yield ""
        yield "## Steps of the trainer"
        lines = [
            [row["kind"], row["sequences"], *("yes" if row[way] else "no" for way in _WAYS),
             row["tok_s"], row["step_ms"], row["reserved_mb"]]
            for row in told
        ]  # fmt: skip
        head = ["attention", "sequences", *_WAYS, "tokens/s", "step ms", "reserved MB"]
        yield from _table(head, lines)


def _tiles(rows: Sequence[Row]) -> Iterator[str]:
    told = [row for row in _of(rows, "tile") if "us" in row]
    swept = dict.fromkeys((row["kernel"], row["B"], row["S"]) for row in told)
    if swept:
        yield from ("", "## Tiles", "")
    for kernel, B, S in swept:
        these = [row for row in told if (row["kernel"], row["B"], row["S"]) == (kernel, B, S)]
        own = next((row["us"] for row in these if row["own"]), None)
        others = sorted((row for row in these if not row["own"]), key=lambda row: row["us"])
        better = [row for row in others if own and row["us"] < own]
        yield (
            f"{kernel} at {B} x {S}: the table's {own} µs; {len(better)} of {len(others)} others "
            "were faster."
        )
        yield from (f"- {own / row['us']:.3f} x: `{row['tile']}`" for row in better[:_TILES])


def _proofs(rows: Sequence[Row]) -> Iterator[str]:
    for row in _of(rows, "proof"):
        if "auto" in row:
            yield ""
            yield f"`auto` here in {row['dtype']}: {row['auto']}"


def _left_out(rows: Sequence[Row]) -> Iterator[str]:
    left = [row["what"] for row in _of(rows, "left_out")]
    left += [f"stage {row['stage']}" for row in _of(rows, "stage") if row.get("left_out")]
    if left:
        yield from ("", "## Left out for want of time", "", *(f"- {what}" for what in left))
