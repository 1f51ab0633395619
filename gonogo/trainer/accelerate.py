"""Attach a loop with Accelerate.

with attach(accelerator, model) as beat:
    for batch in loader:
        …
        beat.step(loss=loss)
"""

from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator

from gonogo.trainer.attach import attach as attach_rank
from gonogo.trainer.beat import Beat


def attach(
    accelerator: Accelerator,
    model: Any = None,
    *,
    config: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
) -> Beat:
    """Return the beat of this process.

    Args:
        accelerator: names rank and world size.
        model: its parameters are counted.
        config: the whole configuration of the run, for its digest.
        identity: what cannot be counted, such as `dim` or `dataset`.

    Raises:
        SystemExit: as `gonogo.trainer.attach` does.
    """
    return attach_rank(
        model=model,
        config=config,
        identity=identity,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )
