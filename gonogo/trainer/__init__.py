"""The heartbeat protocol as a small library, for any training script.

    import gonogo.trainer

    with gonogo.trainer.attach(model=model) as beat:
        for inputs, targets in loader:
            loss = train_step(inputs, targets)
            beat.step(loss=loss, tokens=inputs.numel() * beat.world_size)
            if beat.should_halt():
                save(model)
                break

Under gonogo (`GONOGO_RUN_DIR` names a run directory) the lines of docs/reference/heartbeats.md are
written there; anywhere else the same calls do nothing and cost nothing. Needs the standard library
alone: of torch it uses what the script has imported itself. The adapters `gonogo.trainer.hf`,
`gonogo.trainer.lightning` and `gonogo.trainer.accelerate` import the library that they are for.

A file system that refuses a line ends nothing. A forked child never writes. What a script does not
report is not observed.
"""

from gonogo.trainer.attach import attach
from gonogo.trainer.beat import Beat

__all__ = ["Beat", "attach"]
