"""What does a command say of nodes and ranks itself? Read from a launcher's own options; pure.

Knows torchrun (`python -m torch.distributed.run`) and `accelerate launch`, also behind `env` and
within the text of `bash -c`. Values that only a shell knows (`--nnodes $N`) are unknown.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

_NODES = ("--nnodes", "--num-machines")
_RANKS = ("--nproc-per-node",)
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """What a launcher's options say."""

    launcher: str
    """`torchrun` or `accelerate launch`."""
    nodes: int | None = None
    """Number of nodes (of `1:4` the most); None: the line does not say it as a number."""
    nodes_option: str = ""
    """The option that says it, as it was typed."""
    ranks_per_node: int | None = None
    """None: the line does not say it as a number."""
    has_ranks: bool = False
    """Whether the line says how many ranks there are on a node, as a number or not."""


def read_launch_line(command: Sequence[str]) -> LaunchLine | None:
    """Return the options of a command's launcher; None if the command names none."""
    words = list(_words(command))
    for at, word in enumerate(words):
        if PurePath(word).name == "torchrun" or word in _MODULES:
            return _read("torchrun", words[at + 1 :])
        if PurePath(word).name == "accelerate" and words[at + 1 : at + 2] == ["launch"]:
            return _read("accelerate launch", words[at + 2 :])
    return None


def _words(command: Sequence[str]) -> Iterator[str]:
    for before, word in zip(("", *command), command, strict=False):
        try:
            yield from shlex.split(word) if before == "-c" else [word]
        except ValueError:  # an open quote: the shell will say so
            yield word


def _read(launcher: str, words: Sequence[str]) -> LaunchLine:
    said: dict[str, tuple[str, str]] = {}
    for at, word in enumerate(words):
        if word.endswith(".py"):  # what follows is the script's
            break
        typed, equals, value = word.partition("=")
        option = typed.replace("_", "-")
        if option in (*_NODES, *_RANKS):
            value = value if equals else "".join(words[at + 1 : at + 2])
            said[option] = f"{typed} {value}", value
        elif option == "--standalone":
            said["--nnodes"] = typed, "1"
    nodes = next((said[name] for name in _NODES if name in said), None)
    ranks = next((said[name] for name in _RANKS if name in said), None)
    return LaunchLine(
        launcher=launcher,
        nodes=None if nodes is None else _whole(nodes[1].rpartition(":")[2]),
        nodes_option="" if nodes is None else f"{launcher} {nodes[0]}",
        ranks_per_node=None if ranks is None else _whole(ranks[1]),
        has_ranks=ranks is not None,
    )


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
