"""Which processes of its own does a keeper keep going? Watcher, follower and sampler.

They are none of the run's: they have the keeper's environment without the run's token, and stay
when the run's processes are ended. Standard library only.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper.children import Child, start_child
from gonogo.supervise.keeper.sampling import (
    ALIVE_NAME,
    Sampling,
    build_sampler_command,
    is_wanted,
)
from gonogo.supervise.keeper.watching import SILENT_S, Watching
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.ordered import put_back
from gonogo.supervise.processes import TOKEN_NAME
from gonogo.supervise.release import own_module
from gonogo.supervise.weather import Weather

FOLLOWER_MODULE = "gonogo.supervise.follower"


class Staff:
    """Who looks at one node's part of a run; every call returns at once.

    Args:
        run_dir: the run's directory.
        order: the order as data.
        ordered: its bytes, which whoever is started here finds in the directory.
        slots: the devices that are held here.
        environ: environment of the keeper.
        watcher: module that watches the run.
        place: the node's.
        weather: what the disk and the host refuse is tried again.
        tell: tells who lives, after one was started.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        order: Mapping[str, Any],
        ordered: bytes,
        slots: Sequence[str],
        environ: Mapping[str, str],
        watcher: str,
        place: Place,
        weather: Weather,
        tell: Callable[[], None],
    ) -> None:
        self._dir, self._slots, self._place = run_dir, slots, place
        self._ordered = ordered
        self._watcher_module, self._weather, self._tell = watcher, weather, tell
        self.environ = {name: text for name, text in environ.items() if name != TOKEN_NAME}
        settings = (order.get("watch") or {}).get("watcher") or {}
        silent_s = settings.get("silent_s", SILENT_S)
        self._watching = Watching(self._start_watcher, silent_s) if place.leads else None
        self._following = None if place.is_whole else Watching(self._start_follower, silent_s)
        start = self._start_sampler if is_wanted(order, slots, environ) else None
        self._sampling = Sampling(run_dir, start, place.own(ALIVE_NAME))

    @property
    def failed(self) -> str | None:
        """Why the run has to end: who looks at it dies one after the other."""
        return next((row.failed for row in self._looking() if row.failed is not None), None)

    def pids(self) -> frozenset[int]:
        """Return their processes, which nobody has to end."""
        return self._sampling.pids().union(*(row.pids() for row in self._looking()))

    def document(self) -> dict[str, Any]:
        """Return what keeper.json holds of them; the follower where a run has several nodes."""
        watcher = self._watching.document() if self._watching else None
        sampler = self._sampling.child.document() if self._sampling.child else None
        found: dict[str, Any] = {"watcher": watcher, "sampler": sampler}
        if self._following is not None:
            found |= {"node": self._place.node, "follower": self._following.document()}
        return found

    def tend(self, now: float) -> None:
        """Keep watcher and follower going; `now` in monotonic seconds."""
        for watching in self._looking():
            if self._weather.tried("the watcher", partial(watching.tend, now), False):
                self._tell()

    def tend_sampler(self, now: float) -> None:
        """Keep the sampler going; whatever becomes of it is no harm to the run."""
        if self._weather.tried("the sampler", partial(self._sampling.tend, now), False):
            self._tell()

    def note(self, pid: int, ended: Ended, now: float) -> None:
        """Take note of a process that ended.

        Args:
            pid: of the process.
            ended: how it ended.
            now: monotonic seconds.
        """
        self._sampling.note(pid, ended, now)
        if any(watching.note(pid, ended, now) for watching in self._looking()):
            self._tell()

    def see_part_end(self) -> None:
        """Take note that this node's part has ended: its follower is not replaced once done."""
        if self._following is not None:
            self._following.let_go()

    def see_run_end(self) -> None:
        """Take note that the run has ended: its watcher is not replaced once done."""
        if self._watching is not None:
            self._watching.let_go()

    def are_done(self) -> bool:
        """Say whether watcher and follower have done all there was."""
        return all(row.is_done() for row in self._looking())

    def stop_sampler(self) -> None:
        """End the sampler without waiting."""
        self._sampling.stop()

    def stop(self) -> None:
        """End watcher and follower without waiting."""
        for watching in self._looking():
            watching.stop()

    def _looking(self) -> list[Watching]:
        return [row for row in (self._watching, self._following) if row is not None]

    def _start_watcher(self, signs: int) -> Child:
        """Start a watcher, which says through a descriptor that it goes on."""
        command = [*own_module(self._watcher_module), str(self._dir)]
        return self._start([*command, "--signs", str(signs)], "watcher.log", (signs,))

    def _start_follower(self, signs: int) -> Child:
        """Start the follower, who looks at this node's part of a run that has several."""
        command = [*own_module(FOLLOWER_MODULE), str(self._dir)]
        options = ["--node", str(self._place.node), "--signs", str(signs)]
        return self._start([*command, *options], self._place.own("follower.log"), (signs,))

    def _start_sampler(self) -> Child:
        command = build_sampler_command(self._dir, self._slots, self._place.node)
        return self._start(command, self._place.own("sampler.log"))

    def _start(self, command: Sequence[str], log: str, pass_fds: Sequence[int] = ()) -> Child:
        path = self._dir / log
        put_back(self._dir, self._ordered)
        return start_child(
            command, env=self.environ, log=path, pass_fds=pass_fds, deaf=True, needs_log=False
        )
