"""Which collectives has a rank entered? Its own dump of torch's flight recorder, and what all say.

A trainer answers a word in `evidence/.dump_collectives` by `evidence/collectives_rank{N}.json`
(docs/reference/heartbeats.md). `Standing` is the answer to all of them; ticks carry it as the
observation `collectives`.
"""

import json

from pydantic import Field, ValidationError

from gonogo.contract.heartbeat import Count
from gonogo.contract.wire import Recorded


class Entry(Recorded):
    """One collective that a rank entered, as torch's recorder has it."""

    collective_seq_id: Count
    process_group: list[str] = Field(default_factory=list)
    profiling_name: str = ""
    input_sizes: list[list[int]] = Field(default_factory=list)
    input_dtypes: list[str] = Field(default_factory=list)
    is_p2p: bool = False
    retired: bool = False
    state: str = ""
    time_created_ns: int = 0
    time_discovered_completed_ns: int | None = None

    @property
    def group(self) -> str:
        """Name of the process group."""
        return self.process_group[0] if self.process_group else ""

    @property
    def op(self) -> str:
        """Name of the operation without its backend: `all_reduce`."""
        return self.profiling_name.rpartition(":")[2]

    @property
    def backend(self) -> str:
        """Name of the backend: `gloo`, `nccl`."""
        return self.profiling_name.rpartition(":")[0]

    @property
    def stands(self) -> bool:
        """Whether it has not ended."""
        return not self.retired and self.state != "completed"


class Dump(Recorded):
    """collectives_rank{N}.json: what one rank has entered, oldest first."""

    rank: Count
    request: str = ""
    ts: float = 0.0
    error: str | None = None
    groups: dict[str, list[int]] = Field(default_factory=dict)
    entries: list[Entry] = Field(default_factory=list)


class Standing(Recorded):
    """What the dumps of a run say; the payload of a tick's observation `collectives`."""

    seq: Count | None = None
    group: str = ""
    op: str = ""
    entered: list[int] = Field(default_factory=list)
    missing: list[int] = Field(default_factory=list)
    """Ranks of the group that have not entered it, among those that answered."""
    only: int | None = None
    """The rank that alone entered its collective while all others stand elsewhere, or whose call
    alone disagrees with those of all others."""
    behind: list[int] = Field(default_factory=list)
    """Ranks that wait for nobody and for which, in the end, others wait."""
    unfinished: list[int] = Field(default_factory=list)
    """Ranks whose device has not ended a collective that their peers have ended."""
    silent: list[int] = Field(default_factory=list)
    disagree: str | None = None
    """What the calls disagree in: op, order, shape or dtype."""
    unanswered: list[int] = Field(default_factory=list)
    asked_mono: float | None = None
    text: str


def parse_dump(raw: bytes | str) -> Dump | None:
    """Return the dump in a file, or None when it is none."""
    try:
        return Dump.model_validate(json.loads(raw))
    except (ValueError, ValidationError, RecursionError):
        return None
