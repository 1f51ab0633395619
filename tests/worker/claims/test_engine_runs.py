"""Is a run handed to its engine once, and ended only by what is proven?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.order import Order, RunReason
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.contract.workload import EngineName
from gonogo.rundir import RunDir, load_record, save_json
from gonogo.supervise.durable import load_json
from gonogo.supervise.end_request import EndRequest, ask_halt, asked_by
from gonogo.supervise.locks import DeviceLocks
from gonogo.supervise.process_records import EXIT_NAME, MET_NAME, proof_of_loss
from gonogo.supervise.processes import boot_id, find_process
from tests.supervise.orders import completed, make_order
from tests.worker.control_plane import KEY, FakeControlPlane, serving
from worker.claims.claimer import Claimer
from worker.claims.engine_runs import EngineRuns
from worker.claims.loop import StopSignal, end_runs
from worker.engine.engine import (
    Ended,
    Found,
    Handle,
    Running,
    Unknown,
    load_control_plane_url,
    load_submission,
    save_control_plane_url,
)
from worker.host.home import ClaimSecrets
from worker.host.preflight import ProbeStore
from worker.host.slots import Slots
from worker.settings import load_settings

PENDING = Running(text="Slurm: PENDING, Resources", waits=True)
RUNNING = Running(text="Slurm: RUNNING on node[1-2]")
ENDED = Ended(proof="Slurm: job 1 is FAILED, and node1, node2 answers")
UNKNOWN = Unknown(text="scontrol: Unable to contact slurm controller")


@dataclass
class Scheduler:
    """An engine with given answers that remembers its calls."""

    found: Found = PENDING
    error: Exception | None = None
    jobs: dict[tuple[str, int], str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    away: bool = False
    """Whether nobody hears what is to be stopped."""
    asked: int = 0

    def submit(self, order: Order, token: int) -> Handle:
        self.asked += 1
        if self.error is not None:
            raise self.error
        name = self.jobs.setdefault((order.run, token), str(len(self.jobs) + 1))
        return Handle(engine="slurm", name=name, run=order.run, token=token)

    def find(self, handle: Handle) -> Found:
        assert self.jobs[(handle.run, handle.token)] == handle.name
        return self.found

    def stop(self, handle: Handle) -> None:
        if self.away:
            raise Unavailable("nobody answers")
        self.stopped.append(handle.name)


@dataclass
class Room:
    """A worker of a login node, its control plane and its scheduler."""

    home: Path
    plane: FakeControlPlane
    scheduler: Scheduler
    order: Order
    claimers: list[Claimer] = field(default_factory=list)

    def claimer(self, engine: str = "slurm") -> Claimer:
        said = {"GONOGO_HOME": str(self.home), "GONOGO_URL": self.plane.url}
        settings = load_settings({**said, "GONOGO_ENGINE": engine})
        engine_runs = EngineRuns(
            engine=self.scheduler, name="slurm", runs=settings.runs, machine="a" * 32,
            secrets=ClaimSecrets(self.home), wall=lambda: 50.0, seen_limit_s=0.0,
            look_every_s=0.0,
        )  # fmt: skip
        locks = DeviceLocks(home=self.home)
        made = Claimer(
            settings=settings,
            name="w",
            machine="a" * 32,
            slots=Slots(home=self.home, names=("cpu:0", "cpu:1"), locks=locks),
            probes=ProbeStore(self.home, self.home, {}),
            engine_runs=engine_runs if settings.engine is EngineName.SLURM else None,
            wall=lambda: 50.0,
        )
        self.claimers.append(made)
        return made

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.home / "runs" / self.order.run)

    def end(self) -> ExitRecord | None:
        return load_record(self.run_dir.exit, ExitRecord)

    def states(self) -> list[str]:
        return self.plane.runs[self.order.run].events()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    (tmp_path / "worker_key").write_text(KEY)
    order = make_order(nodes=2, world_size=2)
    with serving(FakeControlPlane(orders=[order])) as plane:
        room = Room(home=tmp_path, plane=plane, scheduler=Scheduler(), order=order)
        yield room
        for claimer in room.claimers:
            claimer.close()


def test_a_claimed_run_is_submitted_exactly_once(room: Room) -> None:
    claimer = room.claimer()
    assert claimer.run_round() == [room.order.run]
    assert (room.plane.claims[0].engine, room.plane.claims[0].free) == ("slurm", ["cpu:0", "cpu:1"])
    assert claimer.free() == ("cpu:0",)
    submission = load_submission(room.run_dir.path)
    assert submission is not None
    assert submission.name == "1"
    assert room.states() == ["check"]
    save_json(room.run_dir.path / "engine.json", {"v": 1, "engine": "slurm", "name": None})
    again = room.claimer()
    again.run_round()
    again.run_round()
    assert list(room.scheduler.jobs.values()) == ["1"]
    assert load_submission(room.run_dir.path) == submission
    assert room.end() is None


def test_claims_say_what_runs_wait_for(room: Room) -> None:
    room.scheduler.error = Unavailable("sbatch: Job violates accounting/QOS policy")
    claimer = room.claimer()
    claimer.run_round()
    assert room.plane.claims[-1].waits == {
        room.order.run: "sbatch: Job violates accounting/QOS policy"
    }
    room.scheduler.error = None
    for _ in range(2):  # the first one submits
        claimer.run_round()
    assert room.plane.claims[-1].waits == {room.order.run: PENDING.text}
    room.scheduler.found = RUNNING
    claimer.run_round()
    assert room.plane.claims[-1].waits == {}


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("first", OutcomeCode.START_FAILED),
        ("rerun", OutcomeCode.START_FAILED),
        ("resume", OutcomeCode.PREFLIGHT_FAILED),  # it took the run before: a reservation ended
        ("confirm", OutcomeCode.PREFLIGHT_FAILED),
    ],
)
def test_a_refused_submission_fails_to_start(room: Room, reason: str, code: OutcomeCode) -> None:
    room.order = room.order.model_copy(update={"reason": RunReason(reason)})
    room.plane.orders[:] = [room.order]
    room.scheduler.error = Rejected("Slurm does not take this order: invalid partition specified")
    claimer = room.claimer()
    claimer.run_round()
    claimer.run_round()
    end = room.end()
    assert end is not None
    assert end.reason is code
    assert "invalid partition" in end.text
    assert room.states()[-1] == "end"
    assert claimer.free() == ("cpu:0", "cpu:1")


def test_a_second_start_by_the_engine_is_stopped(room: Room) -> None:
    claimer = room.claimer()
    claimer.run_round()
    room.scheduler.found = replace(PENDING, again=True)
    claimer.run_round()
    assert set(room.scheduler.stopped) == {"1"}
    assert room.end() is None, "that it was asked to stop proves nothing"
    room.scheduler.found = ENDED
    claimer.run_round()
    claimer.run_round()
    end = room.end()
    assert end is not None
    assert end.reason is OutcomeCode.KEEPER_LOST


@pytest.mark.parametrize("found", [PENDING, RUNNING, UNKNOWN], ids=["waits", "runs", "unknown"])
def test_only_a_proof_ends_a_run(room: Room, found: Found) -> None:
    claimer = room.claimer()
    room.scheduler.found = found
    for _ in range(3):
        claimer.run_round()
    assert room.end() is None
    assert room.scheduler.stopped == []
    assert room.plane.claims[-1].active == [room.order.run]


def test_a_proven_end_without_an_exit_record_is_a_lost_keeper(room: Room) -> None:
    claimer = room.claimer()
    assert claimer.engine_runs is not None
    claimer.engine_runs.seen_limit_s = 60.0
    claimer.run_round()
    save_json(room.run_dir.path / "keeper.json", {"pid": 1, "start_ticks": 1, "boot_id": "other"})
    save_json(room.run_dir.path / EXIT_NAME.format(1), {"v": 1, "node": 1})
    room.scheduler.found = ENDED
    claimer.run_round()
    assert room.end() is None, "what its node wrote last may not be seen yet"
    assert claimer.engine_runs.waits == {room.order.run: ENDED.proof}, "it is said meanwhile"
    claimer.engine_runs.seen_limit_s = 0.0
    claimer.run_round()
    end = room.end()
    assert end is not None
    assert (end.reason, end.ended_by) == (OutcomeCode.KEEPER_LOST, Actor.INFRA)
    assert end.text == f"the keeper was lost: {ENDED.proof}"
    assert proof_of_loss(room.run_dir.path, 0) == f"slurm says: {ENDED.proof}"
    assert load_json(room.run_dir.path / ".gone_node1.json") is None, "it spoke for itself"
    assert room.states()[-1] == "end"


def test_the_worker_reports_for_a_run_whose_end_is_pending(room: Room) -> None:
    """Cancelled behind a slow prolog it is halting, and claims are no sign of life of it."""
    claimer = room.claimer()
    assert claimer.engine_runs is not None
    claimer.engine_runs.seen_limit_s = 60.0
    claimer.run_round()
    room.scheduler.found = RUNNING
    room.plane.runs[room.order.run].command = {"kind": "cancel"}
    claimer.run_round()
    room.scheduler.found = ENDED
    claimer.run_round()
    spoken = room.plane.runs[room.order.run].telemetry
    claimer.run_round()
    assert room.plane.runs[room.order.run].telemetry > spoken
    assert room.end() is None


def test_a_run_killed_after_a_preemption_request_is_preempted(room: Room) -> None:
    """Slurm gives 30 s from TERM to KILL, and a checkpoint may take longer."""
    claimer = room.claimer()
    claimer.run_round()
    path = room.run_dir.path
    save_json(path / "keeper.json", {"pid": 1, "start_ticks": 1, "boot_id": "other"})
    ask_halt(path, EndRequest(reason="preempted", ended_by="infra", at=1.0, text="SIGTERM"))
    room.scheduler.found = Ended(proof="Slurm: job 1 is PREEMPTED, and node1 answers")
    claimer.run_round()
    claimer.run_round()
    end = room.end()
    assert end is not None
    assert (end.reason, end.ended_by) == (OutcomeCode.PREEMPTED, Actor.INFRA)
    assert end.text == f"SIGTERM; then the keeper was lost: {room.scheduler.found.proof}"


def test_the_runs_own_exit_record_wins(room: Room) -> None:
    claimer = room.claimer()
    claimer.run_round()
    save_json(room.run_dir.exit, completed().wire())
    room.scheduler.found = RUNNING
    claimer.run_round()
    assert room.states() == ["check"], "its own watcher ships it"
    room.scheduler.found = UNKNOWN
    claimer._retries.clear()
    claimer.run_round()
    assert room.states()[-1] == "end"
    end = room.end()
    assert end is not None
    assert end.reason is OutcomeCode.COMPLETED


def test_a_pending_run_can_be_cancelled(room: Room) -> None:
    claimer = room.claimer()
    claimer.run_round()
    command = {"kind": "cancel", "reason": "no need", "actor": "ada"}
    room.plane.runs[room.order.run].command = command
    claimer.run_round()
    assert room.scheduler.stopped == ["1"]
    room.scheduler.found = Ended(proof="Slurm: job 1 is CANCELLED, and no node answers")
    claimer.run_round()
    claimer.run_round()
    end = room.end()
    assert end is not None
    assert (end.reason, end.ended_by) == (OutcomeCode.CANCELLED, Actor.OPERATOR)
    assert end.text == "ada: no need"


def test_a_local_worker_leaves_an_engines_run_alone(room: Room) -> None:
    room.claimer().run_round()
    room.scheduler.found = ENDED
    local = room.claimer("local")
    local.run_round()
    local.run_round()
    assert room.end() is None
    assert room.plane.claims[-1].active == [room.order.run]


def test_a_worker_leaves_runs_of_another_engine_alone(room: Room) -> None:
    """It asks where no such job is, which proves nothing of one that trains elsewhere."""
    claimer = room.claimer()
    claimer.run_round()
    other = {"v": 1, "engine": "jobset", "name": "gonogo-run-1"}
    save_json(room.run_dir.path / "engine.json", other)
    room.scheduler.found = Ended(proof="JobSet gonogo-run-1 is gone")
    asked = room.scheduler.asked
    for _ in range(3):
        claimer.run_round()
    assert room.end() is None
    assert (room.scheduler.asked, room.scheduler.stopped) == (asked, [])
    told = "it is a run of engine jobset, and this worker asks slurm"
    assert room.plane.claims[-1].waits == {room.order.run: told}
    save_json(room.run_dir.exit, completed().wire())
    claimer.run_round()
    assert "end" in room.states(), "its own record of its end is still sent"


def test_an_attempt_whose_token_is_stale_starts_nothing(room: Room) -> None:
    """The scheduler may have it already; its keeper finds the request to end."""
    room.scheduler.error = Unavailable("sbatch: Unable to contact slurm controller")
    claimer = room.claimer()
    claimer.run_round()
    room.plane.runs[room.order.run].token += 1
    room.scheduler.error = None
    claimer.run_round()
    claimer.run_round()
    request = asked_by(room.run_dir.path)
    assert request is not None
    assert request.reason == OutcomeCode.SUPERSEDED


def test_the_scheduler_is_not_asked_in_every_round(room: Room) -> None:
    claimer = room.claimer()
    assert claimer.engine_runs is not None
    claimer.engine_runs.look_every_s = 60.0
    claimer.run_round()
    claimer.run_round()
    room.plane.runs[room.order.run].command = {"kind": "cancel"}
    claimer.run_round()
    assert room.scheduler.stopped == []
    claimer.engine_runs.look_every_s = 0.0
    claimer.engine_runs._look_at.clear()
    claimer.run_round()
    assert room.scheduler.stopped == ["1"]


def test_a_silent_engine_does_not_delay_claims(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim speaks for all that wait: half a minute without one, and they count as lost."""
    now, took_s = 1000.0, 9.0
    other = make_order(run="run_01KXGATE000000000000000002", nodes=2, world_size=2)
    room.plane.orders.append(other)
    claimer = room.claimer()
    assert claimer.run_round() == [room.order.run, other.run]
    monkeypatch.setattr("worker.claims.engine_runs.time.monotonic", lambda: now)
    asked = []

    def find(handle: Handle) -> Found:
        nonlocal now
        asked.append(handle.run)
        now += took_s
        return UNKNOWN

    monkeypatch.setattr(room.scheduler, "find", find)
    claimer.run_round()
    assert len(asked) == 1
    now += 10.0
    claimer.run_round()
    assert len(asked) == 1, "of no other either"
    now, took_s = now + 10.0, 0.1
    claimer.run_round()
    assert len(asked) == 3, "it says at once that it knows nothing"


@pytest.mark.parametrize(
    ("found", "made", "asked"),
    [
        pytest.param(RUNNING, [], True, id="node 0 waits for the others, and has no watcher yet"),
        pytest.param(RUNNING, [MET_NAME], False, id="its watcher asks"),
        pytest.param(replace(RUNNING, stands=True), [MET_NAME], True, id="its watcher stands, too"),
    ],
)
def test_the_worker_obeys_commands_for_a_run_without_a_working_watcher(
    room: Room, found: Found, made: list[str], asked: bool
) -> None:
    claimer = room.claimer()
    claimer.run_round()
    for name in ("keeper.json", *made):
        save_json(room.run_dir.path / name, {"v": 1})
    room.scheduler.found = found
    claimer.run_round()
    assert room.scheduler.stopped == []
    room.plane.runs[room.order.run].command = {"kind": "cancel"}
    claimer.run_round()
    assert room.run_dir.halt.exists() is asked
    assert room.scheduler.stopped == (["1"] if asked else [])


def test_a_run_declared_dead_frees_its_slot(room: Room) -> None:
    """After NODE_FAIL a node may train on: a takeover is a person's word, and no end of its own."""
    claimer = room.claimer()
    claimer.run_round()
    room.plane.over = [room.order.run]
    room.scheduler.found = RUNNING
    for _ in range(2):  # the first one is reported
        claimer.run_round()
    assert set(room.scheduler.stopped) == {"1"}
    assert claimer.free() == ("cpu:0",), "it may run yet"
    room.scheduler.found, room.scheduler.away = UNKNOWN, True
    claimer.run_round()
    assert claimer.free() == ("cpu:0",), "nobody has heard that it is to be stopped"
    room.scheduler.away = False
    claimer.run_round()
    assert claimer.free() == ("cpu:0", "cpu:1")
    assert room.run_dir.halt.exists(), "a node that comes back ends it there"
    assert room.end() is None


def test_a_stopping_worker_leaves_an_engines_runs_alone(room: Room) -> None:
    claimer = room.claimer()
    claimer.run_round()
    me = find_process(os.getpid())
    assert me is not None
    keeper = {"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": boot_id()}
    save_json(room.run_dir.path / "keeper.json", keeper)
    end_runs(claimer, StopSignal(SimpleQueue()), now=50.0)
    assert not room.run_dir.halt.exists()
    assert room.scheduler.stopped == []


def test_nodes_find_the_present_address_of_the_control_plane(room: Room) -> None:
    """Another login node's worker, which is refused meanwhile, reports nothing to them."""
    claimer = room.claimer()
    claimer.run_round()
    path = room.run_dir.path
    assert load_control_plane_url(room.home, path) == room.plane.url
    save_control_plane_url(room.home, "http://login2:8750")
    claimer.run_round()
    assert load_control_plane_url(room.home, path) == "http://login2:8750", "written once"
    room.plane.down = True
    other = room.claimer()
    for one in (other, claimer):
        one.run_round()
    assert load_control_plane_url(room.home, path) == "http://login2:8750"
    room.plane.down = False
    claimer.run_round()
    assert load_control_plane_url(room.home, path) == room.plane.url
    (path / "engine.json").unlink()
    assert load_control_plane_url(room.home, path) is None, (
        "a run of this host's own stays where it was"
    )
