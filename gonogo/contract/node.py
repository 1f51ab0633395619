"""What does one node of a run with several tell of its part? One line of `watch_node{K}.jsonl`.

A follower on each node looks at the processes there; the watcher on node 0 reads these lines, and
what it takes from them stands in its own ticks (`watch.jsonl`), which alone are judged.
"""

from typing import Any

from pydantic import Field

from gonogo.contract.heartbeat import Count, Finite
from gonogo.contract.records import RankExit, Unended
from gonogo.contract.tick import AgentProbe, RankProbe, StackProbe
from gonogo.contract.wire import Recorded


class NodeLine(Recorded):
    """One line of watch_node{K}.jsonl."""

    v: int = 1
    node: Count
    token: int
    """Of the attempt that is followed: lines of another one are not read."""
    host: str
    n: Count
    """Number of the look among all that this follower made."""
    mono: Finite
    """Seconds of this node's own monotonic clock."""
    ts: Finite
    ranks: list[RankProbe] = Field(default_factory=list)
    agent: AgentProbe | None = None
    stacks: list[StackProbe] = Field(default_factory=list)
    observations: dict[str, Any] = Field(default_factory=dict)
    """Kind of probe → what it saw there, such as `host_memory`."""


class Refusal(Recorded):
    """Why a node started nothing."""

    reason: str
    ended_by: str
    text: str


class NodeExit(Recorded):
    """exit_node{K}.json: how one node's part of a run ended; why the run did, exit.json says."""

    v: int = 1
    node: Count
    host: str
    boot_id: str
    run: str | None = None
    token: int | None = None
    ended_at: float
    agent: RankExit | None = None
    """How its launcher ended."""
    ranks: dict[str, RankExit] = Field(default_factory=dict)
    left: list[Unended] = Field(default_factory=list)
    """What could not be ended there."""
    oom_at: float | None = None
    """When its kernel was seen to have killed for want of memory, in Unix seconds."""
    unheld: list[Count] = Field(default_factory=list)
    """Ranks whose wrapper was killed, which took the program along."""
    refused: Refusal | None = None
