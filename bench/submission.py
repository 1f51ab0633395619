"""What does a submission cost before anything is stored? CPU milliseconds of reading and resolving.

    python -m bench.submission [--rounds 200]

Process time, so waiting counts nothing; the median over rounds, of each bundled plan by its name
and as JSON with an override, and of a YAML file. A busy machine makes all of it slower by its
caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib import resources

from gonogo.contract.yaml_text import parse_document
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_plan, bundled_plan_names


def median_ms(work: Callable[[], object], rounds: int) -> float:
    """CPU milliseconds of one call, the median of `rounds`."""
    work()
    taken = []
    for _ in range(rounds):
        start = time.process_time_ns()
        work()
        taken.append(time.process_time_ns() - start)
    return statistics.median(taken) / 1e6


def main() -> None:
    """Print one line a measurement."""
    parser = argparse.ArgumentParser(prog="python -m bench.submission", allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    for name in bundled_plan_names():
        text = json.dumps(bundled_plan(name))
        yaml = resources.files("gonogo.contract").joinpath("plans", f"{name}.yaml").read_text()
        resolved = resolve_plan(bundled_plan(name))
        last = resolved.parsed().phases[-1].name
        measured: dict[str, Callable[[], object]] = {
            "by name": lambda name=name: resolve_plan(bundled_plan(name)),
            "as JSON": lambda text=text: resolve_plan(json.loads(text), {"train.seed": 7}),
            "YAML read": lambda yaml=yaml: parse_document(yaml),
            "an order": lambda resolved=resolved, last=last: build_order(
                resolved, last, experiment="exp", run="run", token=1
            ),
        }
        told = "  ".join(f"{what} {median_ms(work, rounds):.2f}" for what, work in measured.items())
        print(f"{name:<18} {told}  (CPU ms)")
    print("\nrepeat: python -m bench.submission --rounds", rounds)


if __name__ == "__main__":
    main()
