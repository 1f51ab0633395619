"""How often is `gonogo compare` wrong? Simulated runs of known truth, through its own code.

    python -m bench.compare_errors                     # the tables of docs/how-to/compare.md, 30 s
    python -m bench.compare_errors --comparisons 200   # roughly the same
    python -m bench.compare_errors --campaigns         # the table of docs/how-to/compare.md

Each comparison draws the runs of a baseline and of a variant whose true speed is `ratio` times the
baseline's. Noise is the spread between runs, normal on the log scale. Runs of the same repeat share
half of its variance, as runs in turns on one host share its state. Margin 2 %, 95 %. Not covered:
runs that are not independent repeats (one seed, one warm cache), and spreads that change during a
comparison.

*better* is the share of comparisons that name the variant the winner, *worse* the share that say it
is worse, *tie* that keep the baseline as equal; the rest is inconclusive.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Iterator

from gonogo.contract.campaign import Answer, CampaignSpec
from gonogo.judge.compare.campaign import Begin, End, Member, next_step
from gonogo.judge.compare.compare import compare
from gonogo.judge.compare.paths import Ran
from gonogo.judge.compare.question import ask
from gonogo.judge.compare.unit import Unit

RATIOS = (1.00, 1.01, 1.02, 1.05)
NOISES = (0.005, 0.01, 0.03)
REPEATS = 3
SHARED = 0.5
"""Part of the variance between runs that the runs of one repeat share."""
BLOCKS = 64
BLOCK_NOISE = 0.02
"""Spread of the blocks of one run, where it stands alone."""
COMPARISONS = 2000
QUESTION = ask(warmup_steps=0)
CAMPAIGN = CampaignSpec.model_validate(
    {"variants": [{"name": "a"}, {"name": "b"}], "warmup_steps": 0}
)
ORDERED = {"a": Ran(ordered={"x": 1}), "b": Ran(ordered={"x": 2})}


def draw_runs(
    draw: random.Random, ratio: float, noise: float, repeats: int, *, blocks: int = 0
) -> dict[str, list[Unit]]:
    """Return the runs of one comparison."""
    shared = [draw.gauss(0.0, noise * math.sqrt(SHARED)) for _ in range(repeats)]
    found: dict[str, list[Unit]] = {}
    for name, truth in (("a", 1.0), ("b", ratio)):
        found[name] = []
        for repeat, common in enumerate(shared, start=1):
            own = draw.gauss(0.0, noise * math.sqrt(1.0 - SHARED))
            value = 1000.0 * truth * math.exp(common + own)
            series = tuple(value * math.exp(draw.gauss(0.0, BLOCK_NOISE)) for _ in range(blocks))
            found[name].append(
                Unit(
                    name=f"{name}{repeat}",
                    run=f"{name}{repeat}/1",
                    value=sum(series) / blocks if blocks else value,
                    blocks=series,
                    window="1..64",
                    samples=64,
                    repeat=repeat,
                    ran=ORDERED[name],
                )
            )
    return found


def answer_of(runs: dict[str, list[Unit]]) -> Answer:
    """Return the answer about the variant."""
    answer = compare(runs, QUESTION).variants[1].answer
    assert answer is not None
    return answer


def shares(answers: Counter[Answer]) -> str:
    """Return the cells of one row: better, worse, tie."""
    total = answers.total()
    wanted = (Answer.BETTER, Answer.WORSE, Answer.TIE)
    return " | ".join(f"{100.0 * answers[row] / total:.1f} %" for row in wanted)


def row_of(ratio: float, noise: float, comparisons: int, seed: int) -> str:
    """Return one row of the table of repeats; each row has random numbers of its own."""
    draw = random.Random(f"{seed}/{ratio}/{noise}/{REPEATS}")
    found = Counter(answer_of(draw_runs(draw, ratio, noise, REPEATS)) for _ in range(comparisons))
    return f"| {ratio:.2f} | {100 * noise:g} % | {shares(found)} |"


def single_rows(comparisons: int, seed: int) -> Iterator[str]:
    """Yield the rows of one run each."""
    for ratio in (1.00, 1.15):
        for noise in NOISES:
            draw = random.Random(f"{seed}/single/{ratio}/{noise}")
            found = Counter(
                answer_of(draw_runs(draw, ratio, noise, 1, blocks=BLOCKS))
                for _ in range(comparisons)
            )
            yield f"| {ratio:.2f} | {100 * noise:g} % | {shares(found)} |"


def campaign_of(runs: dict[str, list[Unit]]) -> tuple[Answer, int]:
    """Return what the variant gets of a whole campaign, and how many repeats it took."""
    members: list[Member] = []
    while True:
        step = next_step(CAMPAIGN, members)
        if isinstance(step, End):
            answer = step.comparison.variants[1].answer
            assert answer is not None
            return answer, max(row.repeat for row in members)
        assert isinstance(step, Begin)
        brought = runs[step.variant][step.repeat - 1]
        members.append(Member(variant=step.variant, repeat=step.repeat, brought=brought))


def campaign_rows(campaigns: int, seed: int) -> Iterator[str]:
    """Yield the rows of whole campaigns."""
    for ratio in RATIOS:
        for noise in NOISES:
            draw = random.Random(f"{seed}/campaign/{ratio}/{noise}")
            rows = [
                campaign_of(draw_runs(draw, ratio, noise, CAMPAIGN.bound)) for _ in range(campaigns)
            ]
            repeats = sum(count for _, count in rows) / campaigns
            found = Counter(answer for answer, _ in rows)
            yield f"| {ratio:.2f} | {100 * noise:g} % | {shares(found)} | {repeats:.1f} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=COMPARISONS, help="of each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--campaigns", action="store_true", help="whole campaigns, nothing else")
    asked = parser.parse_args()
    if asked.campaigns:
        print("| true ratio | noise | better | worse | tie | repeats, mean |")
        print("|---|---|---|---|---|---|")
        for row in campaign_rows(asked.comparisons, asked.seed):
            print(row, flush=True)
        return
    head = "| true ratio | noise | better | worse | tie |\n|---|---|---|---|---|"
    print(f"Three repeats each, paired:\n\n{head}")
    for ratio in (1.00, 1.02, 1.05):
        for noise in NOISES:
            print(row_of(ratio, noise, asked.comparisons, asked.seed), flush=True)
    print(f"\nOne run each:\n\n{head}")
    for row in single_rows(asked.comparisons // 4, asked.seed):
        print(row, flush=True)


if __name__ == "__main__":
    main()
