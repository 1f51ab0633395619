"""`python -m nsa.flags [--json]`: every `NSA_*` variable and its effect (R45).

The rows are `nsa.settings.TOGGLES`, the same that check the environment.
"""

import argparse
import dataclasses
import json

from nsa.settings import PASSED_ON, TOGGLES, Toggle


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
    parser.add_argument("--json", action="store_true")
    print(json.dumps(rows(), indent=1) if parser.parse_args().json else _text())


if __name__ == "__main__":
    main()
