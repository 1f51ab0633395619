"""Would a test notice? Mutants of detectors, gate and evidence checks, each run against its tests.

    make mutants                                   # goes on where it stopped, for 55 minutes
    python -m bench.mutants --only stall,slow      # modules whose name holds one of these
    python -m bench.mutants --part 1/2 & python -m bench.mutants --part 2/2   # on two cores
    python -m bench.mutants --list                 # how many there are, and what became of them
    python -m bench.mutants --again                # survivors without a reason are run once more
    python -m bench.mutants --prune                # drops the reasons of code that is gone

A mutant is one changed comparison, boolean operator, `not`, number or truth value of one module. It
is killed when a test fails that calls what was changed, and survives otherwise. Results are kept in
`.mutants.jsonl`, by the mutant's name and a digest: of the module and the test that noticed, or of
the module and its own tests. So a run can be stopped at any time, and what changed is run again.
`bench/mutants.yaml` gives the reason of each survivor that is known to make no difference; one
without a reason is exit 1 at the end.

Most take a tenth of a second; one that survives, `--seconds` of the tests that call it
(`mutant_cover`).
"""

import argparse
import ast
import functools
import hashlib
import json
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from bench.mutant_cover import (
    Measured,
    limit_s,
    measure,
    own_tests,
    tests_about,
    tests_afresh,
    tests_for,
)
from bench.mutant_process import forked, import_libraries
from bench.mutant_tests import AFRESH, Bench, noticed_afresh, with_bench
from bench.mutations import ROOT, Mutant, mutants_of

RESULTS = ROOT / ".mutants.jsonl"
REASONS = ROOT / "bench" / "mutants.yaml"
FOLDERS = ("gonogo/watch/detectors", "gonogo/timeline", "gonogo/judge/gate", "gonogo/judge/facts")
RULES = ("checkpoints", "culprit", "deadlines", "processes", "progress")
"""Modules of `gonogo/watch` in which parts of the detectors' rules stand."""
WATCHED = ("refold", "watch_record")
"""Those in which is measured whether the run was watched."""
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"


def digest_of(mutant: Mutant, by: str) -> str:
    """Return the digest for which a result holds.

    Args:
        mutant: of which something became.
        by: id of the test that noticed; empty when none did.
    """
    file, _, name = by.partition("[")[0].partition("::")
    own = own_tests(mutant.module)
    noticed = name and (ROOT / file).exists()
    tests = _functions(ROOT / file).get(name, "") if noticed else _text(own)
    return hashlib.sha256(f"{_text(mutant.path)}\0{tests}".encode()).hexdigest()[:16]


@functools.cache
def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@functools.cache
def _functions(path: Path) -> dict[str, str]:
    """Return name → source of each function of a module, with its decorators."""
    lines = _text(path).splitlines()
    return {
        node.name: "\n".join(lines[_first_line(node) - 1 : node.end_lineno])
        for node in ast.parse(_text(path)).body
        if isinstance(node, ast.FunctionDef)
    }


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(row.lineno for row in node.decorator_list)])


def load_results(mutants: Sequence[Mutant]) -> dict[str, str]:
    """Return name → what became of a mutant, where that still holds."""
    by_name = {mutant.name: mutant for mutant in mutants}
    found = {}
    for line in RESULTS.read_text().splitlines() if RESULTS.exists() else ():
        row = json.loads(line)
        mutant = by_name.get(row["name"])
        if mutant is not None and digest_of(mutant, row["by"]) == row["digest"]:
            found[mutant.name] = row["result"]
    return found


def load_noticed() -> dict[str, str]:
    """Return name → id of the test that noticed a mutant the last time that one did."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    rows = (json.loads(line) for line in lines)
    return {row["name"]: row["by"] for row in rows if row["by"]}


def load_reasons() -> dict[str, str]:
    """Return name → why a survivor makes no difference."""
    return yaml.safe_load(REASONS.read_text()) or {} if REASONS.exists() else {}


def all_mutants(only: Sequence[str]) -> list[Mutant]:
    """Return the mutants of every module, or of those whose name holds one of `only`."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]
    others = [ROOT / "gonogo" / "watch" / f"{name}.py" for name in (*RULES, *WATCHED)]
    paths += [path for path in others if path.exists()]
    chosen = [path for path in paths if not only or any(part in path.stem for part in only)]
    return [mutant for path in chosen for mutant in mutants_of(path)]


def gone(mutants: Sequence[Mutant], reasons: Mapping[str, str]) -> list[str]:
    """Return the names with a reason that no mutant has any more: their code is gone."""
    names = {mutant.name for mutant in mutants}
    return [name for name in reasons if name not in names]


def prune(names: Sequence[str]) -> None:
    """Drop reasons from `mutants.yaml`; the other lines stay as they are."""
    lines = REASONS.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(tuple(f"{name}: " for name in names))]
    REASONS.write_text("".join(kept))


def main() -> int:
    """Run what has not been run; list the survivors."""
    parser = argparse.ArgumentParser(prog="bench.mutants")
    parser.add_argument("--minutes", type=float, default=55.0)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a mutant's tests")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--prune", action="store_true")
    parser.add_argument("--part", default="1/1", help="K/N: the Kth of N parts")
    asked = parser.parse_args()
    mutants = all_mutants([part for part in asked.only.split(",") if part])
    if asked.prune:
        prune(gone(all_mutants([]), load_reasons()))
    known = load_results(mutants)
    again = {row.name for row in mutants if asked.again and known.get(row.name) == SURVIVED}
    reasons = load_reasons()
    again -= reasons.keys()
    part, parts = map(int, asked.part.split("/"))
    left = [row for row in mutants if row.name in again or known.get(row.name) in (None, AFRESH)]
    left = [row for row in left if zlib.crc32(row.name.encode()) % parts == part - 1]
    left.sort(key=lambda row: row.name in reasons)  # what is expected to survive takes longest
    if not asked.list and not asked.prune and left:
        _run(left, time.monotonic() + 60 * asked.minutes, asked.seconds)
    return _tell(mutants)


def _run(left: Sequence[Mutant], until: float, at_most_s: float) -> None:
    print(f"{len(left)} mutants to run", flush=True)
    import_libraries()
    files = list(dict.fromkeys(path for mutant in left for path in tests_about(mutant.module)))
    measured = measure(files)
    choose = functools.partial(tests_for, measured=measured, at_most_s=at_most_s)
    again = functools.partial(tests_afresh, measured=measured, at_most_s=at_most_s)

    def with_all(bench: Bench) -> None:
        _run_each(left, choose, measured, until, bench.notices)

    forked(lambda: with_bench(files, with_all), None)
    known = load_results(left)
    doubtful = [row for row in left if known.get(row.name) in (SURVIVED, AFRESH) and again(row)]
    _run_each(doubtful, again, measured, float("inf"), noticed_afresh)


def _run_each(
    mutants: Sequence[Mutant],
    choose: Callable[[Mutant], list[str]],
    measured: dict[Path, Measured],
    until: float,
    notice: Callable[[Mutant, Sequence[str], float], str | None],
) -> None:
    noticed: dict[str, int] = {}
    before = load_noticed()
    for number, mutant in enumerate(mutants, start=1):
        if time.monotonic() >= until:
            print("time is up; the same command resumes from here")
            return
        place = f"{mutant.module}:{mutant.scope} "
        by_last = before.get(mutant.name)
        wanted = sorted(
            choose(mutant), key=lambda test: (test != by_last, -noticed.get(place + test, 0))
        )
        by = notice(mutant, wanted, limit_s(wanted, measured)) if wanted else ""
        result = TIMED_OUT if by is None else KILLED if by else SURVIVED
        if by == AFRESH:
            result = AFRESH
        noticed[place + (by or "")] = noticed.get(place + (by or ""), 0) + 1
        row = {"name": mutant.name, "digest": digest_of(mutant, by or ""), "result": result}
        with RESULTS.open("a") as stream:
            stream.write(json.dumps({**row, "by": by or ""}) + "\n")
        print(f"{number}/{len(mutants)} {result:9} {mutant.name} {by or ''}", flush=True)


def _tell(mutants: Sequence[Mutant]) -> int:
    known = load_results(mutants)
    reasons = load_reasons()
    survivors = [mutant for mutant in mutants if known.get(mutant.name) == SURVIVED]
    print(f"{len(mutants)} mutants, {len(known)} run, {len(survivors)} survived")
    unexplained = [mutant for mutant in survivors if mutant.name not in reasons]
    for mutant in survivors:
        print(f"  {mutant.name} (line {mutant.line}): {reasons.get(mutant.name, 'NO REASON')}")
    stale = gone(all_mutants([]), reasons)
    if stale:
        print(f"{len(stale)} reasons are of code that is gone (--prune drops them):")
        print("\n".join(f"  {name}" for name in stale))
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
