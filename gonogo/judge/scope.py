"""Which steps does a run owe? The part of the rules that measuring needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gonogo.contract.criterion import Criterion


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What was ordered, as far as it decides which samples must be there."""

    first_step: int
    """First step of this attempt: 1, or the one after the checkpoint it resumed from."""
    last_step: int
    world_size: int
    tokens_per_step: int | None = None
    eval_every_steps: int | None = None
    steps_after: int = 0
    """Steps of the phases after this one."""

    def steps(self) -> range:
        """Return the steps that this attempt owes."""
        return range(self.first_step, self.last_step + 1)

    def window(self, criterion: Criterion) -> range:
        """Return the steps that a criterion looks at: after warm-up, the last `window` of them.

        Warm-up counts from the first step of the attempt: a resumed process warms up again.
        """
        first = self.first_step + criterion.warmup_steps
        if criterion.window:
            first = max(first, self.last_step - criterion.window + 1)
        return range(first, self.last_step + 1)

    def evals(self, window: range) -> list[int]:
        """Return the steps in `window` after which an evaluation is due."""
        every = self.eval_every_steps
        return [step for step in window if every and step % every == 0]


def build_scope(rules: Mapping[str, Any]) -> Scope | None:
    """Return the scope that rules name, or None when nobody said what was ordered."""
    if rules.get("steps") is None or rules.get("world_size") is None:
        return None
    return Scope(
        first_step=rules["first_step"],
        last_step=rules["steps"],
        world_size=rules["world_size"],
        tokens_per_step=rules.get("tokens_per_step"),
        eval_every_steps=rules.get("eval_every_steps"),
        steps_after=sum(row["steps"] for row in rules.get("phases_after", [])),
    )
