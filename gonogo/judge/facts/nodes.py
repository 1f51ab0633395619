"""What did the nodes of a run leave of their parts? Held against exit.json, which seals it.

A keeper of each node writes how its part ended, a follower what it saw of the processes there. The
watcher and node 0's keeper have taken from them what decides; that they still say the same is what
is looked at here. Where a release that sealed neither wrote exit.json, nothing is.
"""

from collections.abc import Iterable

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.node import NodeExit
from gonogo.contract.records import ExitRecord, Preflight
from gonogo.contract.tick import parse_rank
from gonogo.judge.facts.files import SmallFiles, begins_with, broken_seal
from gonogo.rundir import RunDir, preflight_name


def load_parts(
    run_dir: RunDir, small: SmallFiles, exit_record: ExitRecord | None, unreadable: list[Doubt]
) -> dict[int, NodeExit]:
    """Return node → how its part ended, of those that exit.json seals.

    Args:
        run_dir: the run's directory.
        small: its small files.
        exit_record: exit.json.
        unreadable: is told which file is gone, or is not the sealed one.
    """
    sealed = exit_record.nodes if exit_record is not None else None
    found = {}
    for name, seals in sorted((sealed or {}).items()):
        node = parse_rank(name)
        if node is None:
            why = f"{name[:16]!r} is no node"
            unreadable.append(Doubt(kind=DoubtKind.UNREADABLE, name="exit.json", found=why))
            continue
        path, lines = run_dir.node_exit(node), run_dir.node_watch(node)
        part = small.try_record(path, NodeExit, unreadable)
        if part is not None:
            found[node] = part
        if small.seal(path, unreadable) != seals.exit:
            unreadable.append(broken_seal(path.name))
        if seals.watch.bytes and not begins_with(lines, seals.watch):
            unreadable.append(broken_seal(lines.name))
    return found


def load_preflights(
    run_dir: RunDir, small: SmallFiles, nodes: Iterable[int], unreadable: list[Doubt]
) -> dict[int, Preflight]:
    """Return node → what was checked there before the launch.

    Args:
        run_dir: the run's directory.
        small: its small files.
        nodes: behind the first.
        unreadable: is told which record cannot be read.
    """
    found = {}
    for node in nodes:
        problems: list[Doubt] = []
        row = small.try_record(run_dir.preflight_of(node), Preflight, problems)
        unreadable += [
            doubt.model_copy(update={"name": preflight_name(node)}) for doubt in problems
        ]
        if row is not None:
            found[node] = row
    return found
