"""`make outcomes`: compare the outcome of every scenario with `tests/golden/outcomes.json`.

Exits with 1 and one line for each difference. `--write` records the outcomes instead; `--all` also
looks at the long scenarios; `--times` prints the seconds of each family.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from tests.scenarios.catalogue import GOLDEN, catalogue, recorded, write_golden
from tests.scenarios.scenario import Outcome


def main() -> int:
    """Compare or write; return the exit status."""
    parser = argparse.ArgumentParser(prog="make outcomes", description=__doc__)
    parser.add_argument("names", nargs="*", help="only scenarios whose name contains one of these")
    parser.add_argument("--all", action="store_true", help="the long ones as well")
    parser.add_argument("--write", action="store_true", help="record instead of comparing")
    parser.add_argument("--times", action="store_true", help="seconds of CPU a family")
    args = parser.parse_args()
    found: dict[str, Outcome] = {}
    spent: Counter[str] = Counter()
    for row in catalogue():
        if row.long and not args.all:
            continue
        if args.names and not any(part in row.name for part in args.names):
            continue
        began = time.process_time()
        found[row.name] = row.outcome()
        spent[row.name.partition("/")[0]] += time.process_time() - began
    if args.times:
        for family, seconds in spent.most_common():
            print(f"{seconds:8.2f} s  {family}")
    if args.write:
        write_golden(found, kept=bool(args.names), long=args.all)
        print(f"{len(found)} outcomes written")
        return 0
    return _compared(found, whole=not args.names, long=args.all)


def _compared(found: dict[str, Outcome], *, whole: bool, long: bool) -> int:
    """Print one line a difference; return 1 where there is any."""
    expected = recorded(long=long)
    names = sorted({*found, *expected} if whole else found)
    differ, unrecorded = 0, 0
    for name in names:
        was, now = expected.get(name), found.get(name)
        if was is None and long:
            unrecorded += 1
            continue
        if was != now:
            differ += 1
            print(f"{name}\n  recorded: {json.dumps(was)}\n  now:      {json.dumps(now)}")
    print(f"{len(found)} outcomes, {differ} differ from {GOLDEN.name}")
    if unrecorded:
        print(f"{unrecorded} are not recorded there: --write records them")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
