"""`python -m nsa.flags [--json | --markdown]`: every `NSA_*` variable and its effect (R45).

The rows are `nsa.settings.TOGGLES`, the same that check the environment; `docs/reference/flags.md`
is what `--markdown` prints.
"""

import argparse
import dataclasses
import json

from nsa.settings import PASSED_ON, TOGGLES, Toggle

_HEADER = """# Flags of the trainer

Written by `python -m nsa.flags --markdown`, from the table that checks the environment. They are
set in a plan under `phases.*.env`. A variable that is not listed, a value that its row does not
allow, or two that take each other back end the trainer with exit code 4 before anything is trained.
"""


def rows() -> list[dict[str, str]]:
    """One object per variable: name, default, values, effect."""
    return [
        {
            "name": toggle.name,
            "default": toggle.default,
            "values": _values(toggle),
            "effect": toggle.effect,
        }
        for toggle in TOGGLES.values()
    ] + [dataclasses.asdict(row) for row in PASSED_ON]


def markdown() -> str:
    """The rows as the page `docs/reference/flags.md`."""
    lines = [_HEADER, "| variable | default | values | effect |", "|---|---|---|---|"]
    for row in rows():
        default = f"`{row['default']}`" if row["default"] else "–"
        lines.append(f"| `{row['name']}` | {default} | {row['values']} | {row['effect']} |")
    return "\n".join(lines) + "\n"


def _values(toggle: Toggle) -> str:
    return toggle.allowed if isinstance(toggle.allowed, str) else " or ".join(toggle.allowed)


def _text() -> str:
    widths = {key: max(len(row[key]) for row in rows()) for key in ("name", "default", "values")}
    return "\n".join(
        "  ".join([*(row[key].ljust(width) for key, width in widths.items()), row["effect"]])
        for row in rows()
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m nsa.flags", allow_abbrev=False)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    if given.json:
        print(json.dumps(rows(), indent=1))
    else:
        print(markdown() if given.markdown else _text(), end="" if given.markdown else "\n")


if __name__ == "__main__":
    main()
