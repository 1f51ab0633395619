"""The heartbeat protocol as a small library, for any training script.

    import gonogo.trainer

    with gonogo.trainer.attach(model=model) as beat:
        for inputs, targets in loader:
            loss = train_step(inputs, targets)
            beat.step(loss=loss, tokens=inputs.numel() * beat.world_size)
            if beat.should_halt():
                save(model)
                break

If `GONOGO_RUN_DIR` names a run directory, the calls write the lines of
docs/reference/heartbeats.md there; otherwise they do nothing. The library needs only the standard
library. The adapters `hf` and `lightning` import the library that they are for.
"""

from gonogo.trainer.attach import attach
from gonogo.trainer.beat import Beat

__all__ = ["Beat", "attach"]
