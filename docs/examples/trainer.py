"""The smallest trainer that gonogo can supervise: docs/heartbeats.md by way of `gonogo.trainer`.

    python docs/examples/trainer.py --order RUN_DIR/order.json

Each rank fits a line to noisy points. It shows the protocol, not training: ranks do not talk, so
there is no collective, and they may leave one step apart when `.HALT` appears.
"""

import argparse
import json
import random
from pathlib import Path

import gonogo.trainer

POINTS = 20_000


def main() -> None:
    """Train as the order says; exit 0 when done, 3 when halted, 4 without a `.GO`."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--order", type=Path, required=True)
    path: Path = arguments.parse_args().order
    config = json.loads(path.read_text())["train"]
    slope = offset = 0.0
    with gonogo.trainer.attach(path.parent, config=config, identity={"params": 2}) as beat:
        points = random.Random(beat.rank)
        for _ in range(beat.steps or 0):
            with beat.section("data"):
                xs = [points.uniform(-1, 1) for _ in range(POINTS)]
            with beat.section("forward"):
                errors = [slope * x + offset - (3 * x + 1 + points.gauss(0, 0.1)) for x in xs]
                loss = sum(error * error for error in errors) / POINTS
            with beat.section("backward"):
                down = sum(error * x for error, x in zip(errors, xs, strict=True)) / POINTS
                left = sum(errors) / POINTS
            with beat.section("optimizer"):
                slope, offset = slope - down, offset - 0.5 * left
            norm = (down**2 + left**2) ** 0.5
            beat.step(loss=loss, tokens=POINTS * beat.world_size, grad_norm=norm)
            if beat.should_halt():
                break


if __name__ == "__main__":
    main()
