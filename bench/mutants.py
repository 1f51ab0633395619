"""Would a test notice? Mutants of detectors, gate and evidence checks, each run against its tests.

    make mutants                                   # goes on where it stopped, for 55 minutes
    python -m bench.mutants --only stall,slow      # modules whose name holds one of these
    python -m bench.mutants --list                 # how many there are, and what became of them
    python -m bench.mutants --prune                # drops the reasons of code that is gone

A mutant is one changed comparison, boolean operator, `not`, number or truth value of one module. It
is killed when a test fails, and survives otherwise. Results are kept in `.mutants.jsonl` until the
module or its own tests change, so a run can be stopped at any time. `bench/mutants.yaml` gives the
reason of each survivor that makes no difference; one without a reason is exit 1 at the end.
"""

import argparse
import functools
import hashlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from bench.mutant_tests import (
    ROOT,
    Mutant,
    import_libraries,
    measure,
    mutants_of,
    notices,
    own_tests,
    with_bench,
)

RESULTS = ROOT / ".mutants.jsonl"
REASONS = ROOT / "bench" / "mutants.yaml"
FOLDERS = ("gonogo/watch/detectors", "gonogo/timeline", "gonogo/judge/gate", "gonogo/judge/facts")
MODULES = ("offline_fold", "view")
"""Modules of `gonogo/watch` with a part of the rules."""
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"


def digest_of(mutant: Mutant) -> str:
    """Return the digest for which a result holds: of the module and its own tests."""
    own = ROOT / own_tests(mutant.module)
    return hashlib.sha256(f"{_text(mutant.path)}\0{_text(own)}".encode()).hexdigest()[:16]


@functools.cache
def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def load_results(mutants: Sequence[Mutant]) -> dict[str, str]:
    """Return name → what became of a mutant, where that still holds."""
    digests = {mutant.name: digest_of(mutant) for mutant in mutants}
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    rows = (json.loads(line) for line in lines)
    return {row["name"]: row["result"] for row in rows if digests.get(row["name"]) == row["digest"]}


def load_reasons() -> dict[str, str]:
    """Return name → why a survivor makes no difference."""
    return yaml.safe_load(REASONS.read_text()) or {}


def all_mutants(only: Sequence[str]) -> list[Mutant]:
    """Return the mutants of every module, or of those whose name holds one of `only`."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]
    paths += [ROOT / "gonogo" / "watch" / f"{name}.py" for name in MODULES]
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
    parser.add_argument("--seconds", type=float, default=20.0, help="of a mutant's tests")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--prune", action="store_true")
    asked = parser.parse_args()
    mutants = all_mutants([part for part in asked.only.split(",") if part])
    if asked.prune:
        prune(gone(all_mutants([]), load_reasons()))
    known, reasons = load_results(mutants), load_reasons()
    left = [row for row in mutants if row.name not in known]
    left.sort(key=lambda row: row.name in reasons)  # what is expected to survive takes longest
    if left and not asked.list and not asked.prune:
        _run_all(left, at_most_s=asked.seconds, until=time.monotonic() + 60 * asked.minutes)
    return _report(mutants)


def _run_all(mutants: Sequence[Mutant], *, at_most_s: float, until: float) -> None:
    import_libraries()
    measured = measure()

    recent: deque[str] = deque(maxlen=12)  # tests that noticed one: often they do so again

    def run(rows: Sequence[Mutant], try_out: Callable[..., str | None]) -> None:
        print(f"{len(rows)} mutants to run", flush=True)
        for number, mutant in enumerate(rows, start=1):
            if time.monotonic() >= until:
                print("time is up; the same command resumes from here")
                return
            wanted = measured.tests_for(mutant, at_most_s=at_most_s)
            wanted.sort(key=lambda name: name not in recent)
            limit_s = 10.0 + 5.0 * sum(measured.seconds[name] for name in wanted)
            by = try_out(mutant, wanted, limit_s)
            if by == "" and try_out != notices and measured.is_early(mutant):
                continue  # below, with fresh imports
            recent.extend([by] if by else [])
            result = TIMED_OUT if by is None else KILLED if by else SURVIVED
            row = {"name": mutant.name, "digest": digest_of(mutant), "result": result}
            with RESULTS.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            print(f"{number}/{len(rows)} {result:9} {mutant.name} {by or ''}", flush=True)

    if within := [mutant for mutant in mutants if mutant.within]:
        with_bench(lambda bench: run(within, bench.notices))
    known = load_results(mutants)
    run([mutant for mutant in mutants if mutant.name not in known], notices)


def _report(mutants: Sequence[Mutant]) -> int:
    known, reasons = load_results(mutants), load_reasons()
    survivors = [mutant for mutant in mutants if known.get(mutant.name) == SURVIVED]
    print(f"{len(mutants)} mutants, {len(known)} run, {len(survivors)} survived")
    for mutant in survivors:
        print(f"  {mutant.name} (line {mutant.line}): {reasons.get(mutant.name, 'NO REASON')}")
    if stale := gone(all_mutants([]), reasons):
        print(f"{len(stale)} reasons are of code that is gone (--prune drops them):")
        print("\n".join(f"  {name}" for name in stale))
    return 1 if any(mutant.name not in reasons for mutant in survivors) else 0


if __name__ == "__main__":
    sys.exit(main())
