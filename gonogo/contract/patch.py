"""What may be changed of a run without another plan? Its environment, what it trains, and how.

One patch serves a phase's own settings, the variants of a confirmation, remedies and campaigns. It
is laid over what it changes: mappings key by key, everything else whole; a variable that is null
is taken away.

    env: {NSA_TB_DISABLE: 0, NSA_DDP_STATIC_GRAPH: null}
    train: {data: synthetic, optim: {lr: 1e-4}}
    workload: {parallel: fsdp}
"""

from typing import Any

from pydantic import ConfigDict, JsonValue

from gonogo.contract.environment import EnvName, EnvText
from gonogo.contract.wire import Submitted
from gonogo.contract.workload import Argv, Parallel, WorldSize


class WorkloadPatch(Submitted):
    """What a patch may change of how the program is started."""

    world_size: WorldSize | None = None
    """Number of ranks."""
    parallel: Parallel | None = None
    """How ranks share the work."""
    command: Argv | None = None
    """Another program and its arguments."""


class Patch(Submitted):
    """A change of environment, training configuration and workload."""

    env: dict[EnvName, EnvText | None] = {}
    """Variables that are set; null takes one away."""
    train: dict[str, JsonValue] = {}
    """Laid over the training configuration; `data` and `parallel` too, but not `steps`."""
    workload: WorkloadPatch = WorkloadPatch()
    """What changes of how the program is started."""

    def document(self) -> dict[str, Any]:
        """Return the JSON form: what was said, nothing else."""
        return self.model_dump(mode="json", exclude_unset=True)

    def text(self) -> str:
        """Return the changes as words: `NAME=value …`."""
        workload = self.workload.model_dump(exclude_none=True)
        pairs = [*self.env.items(), *self.train.items()]
        pairs += [(f"workload.{name}", value) for name, value in workload.items()]
        return " ".join(f"{name}={value}" for name, value in pairs) or "no change"


class RecordedPatch(Patch):
    """A patch that some release recorded: what is unknown today is ignored."""

    model_config = ConfigDict(extra="ignore")
