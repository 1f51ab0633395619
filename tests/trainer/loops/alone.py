"""A script without torch that does as the order's `train` says, attached in three lines.

`{"step_s": seconds, "hang_at": step, "section": where}`.
"""

from __future__ import annotations

import time
from typing import Any

import gonogo.trainer


class Weights:
    """As much of a torch module as is counted."""

    requires_grad = True

    class device:
        type = "cpu"

    def numel(self) -> int:
        return 1000

    def parameters(self) -> list[Any]:
        return [self]


def hang() -> None:
    while True:
        time.sleep(0.1)


def main() -> None:
    with gonogo.trainer.attach(model=Weights(), identity={"tokens_per_step": 1000}) as beat:
        asked = beat.order["train"]
        for step in range(1, (beat.steps or 0) + 1):
            for name in ("data", "forward", "backward", "optimizer"):
                with beat.section(name):  # type: ignore[arg-type]
                    if (step, name) == (asked.get("hang_at"), asked.get("section")):
                        hang()
                    time.sleep(asked["step_s"] / 4)
            beat.step(loss=1.0 + 1.0 / step, tokens=1000)
            if beat.should_halt():
                break


if __name__ == "__main__":
    main()
