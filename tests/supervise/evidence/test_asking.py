"""Ranks are asked for their collectives; a silent rank costs no time."""

import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import gonogo.supervise.evidence.flight_records
from gonogo.rundir import RunDir
from gonogo.supervise.evidence.flight_records import REQUEST_NAME, gather_dumps
from gonogo.supervise.evidence.rounds import Evidence, Target

DATA = Path(__file__).parents[2] / "data" / "collectives"


class _Rank(threading.Thread):
    """A trainer's thread: answers each request with a recorded dump."""

    def __init__(self, folder: Path, rank: int, recorded: str = "desync2") -> None:
        super().__init__(daemon=True)
        self._folder, self._rank = folder, rank
        self._dump: dict[str, Any] = json.loads(
            (DATA / recorded / f"collectives_rank{rank}.json").read_text()
        )
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        request, answer = self._folder / REQUEST_NAME, f"collectives_rank{self._rank}.json"
        while not self.over.wait(0.01):
            if request.exists():
                self._dump["request"] = request.read_text()
                draft = self._folder / f".{answer}"
                draft.write_text(json.dumps(self._dump))
                draft.replace(self._folder / answer)


def _targets(count: int, **more: Any) -> dict[int, Target]:
    return {rank: Target(rank=rank, pid=2**22 - 1, **more) for rank in range(count)}


def test_a_round_gathers_the_dumps_and_says_who_strayed(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.evidence.mkdir()
    ranks = [_Rank(run_dir.evidence, rank) for rank in (0, 1)]
    evidence = Evidence(run_dir)
    found = evidence.start_round("stall", _targets(2), 41.5)
    assert found is not None
    for thread in found.threads:
        thread.join(20)
    for rank in ranks:
        rank.over.set()
    folder = run_dir.evidence / "01_stall"
    assert (folder / "collectives.txt").read_text().startswith("rank 1 alone entered")
    assert json.loads((folder / "collectives_rank1.json").read_text())["rank"] == 1
    seen = evidence.take_observations()["collectives"]
    assert (seen["only"], seen["entered"], seen["asked_mono"]) == (1, [1], 41.5)
    assert json.loads(json.dumps(seen)) == seen
    assert evidence.take_observations() == {}


def test_a_rank_that_does_not_answer_is_said_and_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gonogo.supervise.evidence.flight_records, "LIMIT_S", 0.3)
    run_dir = RunDir(tmp_path)
    run_dir.evidence.mkdir()
    rank = _Rank(run_dir.evidence, 1)
    evidence = Evidence(run_dir)
    found = evidence.start_round("stall", _targets(2), 0.0)
    assert found is not None
    for thread in found.threads:
        thread.join(20)
    rank.over.set()
    folder = run_dir.evidence / "01_stall"
    assert "no answer from rank 0" in (folder / "collectives.txt").read_text()
    assert "no answer" in (folder / "collectives_rank0.json").read_text()
    seen = evidence.take_observations()["collectives"]
    assert (seen["only"], seen["unanswered"]) == (None, [0])


def test_stopped_and_single_ranks_are_not_asked(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    evidence = Evidence(run_dir)
    for targets in (_targets(2, stopped=True), _targets(1)):
        found = evidence.start_round("stall", targets, 0.0)
        assert found is not None
        assert not [path for path in found.paths if "collectives" in path]
        for thread in found.threads:
            thread.join(20)
    assert not (run_dir.evidence / REQUEST_NAME).exists()


@pytest.mark.parametrize(
    "change", [{"request": "6"}, {"rank": 0}, {"entries": 3}], ids=["earlier", "other", "torn"]
)
def test_an_answer_to_something_else_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(gonogo.supervise.evidence.flight_records, "LIMIT_S", 0.1)
    dump = json.loads((DATA / "desync2" / "collectives_rank1.json").read_text())
    told = {**dump, "request": "7", **change}
    (tmp_path / "collectives_rank1.json").write_text(json.dumps(told))
    assert gather_dumps(tmp_path, "7", [1]) == {}


def test_a_rank_with_nccl_alone_answers_through_torch_s_pipe(tmp_path: Path) -> None:
    """A program that knows nothing of gonogo: torch reads a byte and writes its own record."""
    run_dir = RunDir(tmp_path)
    run_dir.evidence.mkdir()
    entry = {"process_group": ("0", ""), "input_sizes": [[4]], "input_dtypes": ["Float"]}
    calls = [{**entry, "record_id": n, "collective_seq_id": n + 1} for n in range(2)]
    done = {"profiling_name": "nccl:all_reduce", "state": "completed", "retired": True}
    waits = {"profiling_name": "nccl:all_reduce", "state": "scheduled", "retired": False}
    rows = {0: [calls[0] | done, calls[1] | waits], 1: [calls[0] | done]}
    config = {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}
    over = threading.Event()

    def torch(rank: int, pipe: int) -> None:
        while not over.wait(0.01):
            try:
                asked = os.read(pipe, 1)
            except BlockingIOError:
                continue
            if asked:
                raw = pickle.dumps({"version": "2.10", "pg_config": config, "entries": rows[rank]})
                (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(raw)

    (tmp_path / "nccl_trace_rank_0").write_bytes(b"an older record")
    os.utime(tmp_path / "nccl_trace_rank_0", (1.0, 1.0))
    pipes = []
    for rank in (0, 1):
        os.mkfifo(tmp_path / f".nccl_dump_rank_{rank}.pipe")
        pipes.append(os.open(tmp_path / f".nccl_dump_rank_{rank}.pipe", os.O_RDWR | os.O_NONBLOCK))
    threads = [threading.Thread(target=torch, args=(rank, pipes[rank])) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    evidence = Evidence(run_dir)
    found = evidence.start_round("stall", _targets(2), 41.5)
    assert found is not None
    for thread in found.threads:
        thread.join(20)
    over.set()
    for thread, pipe in zip(threads, pipes, strict=True):
        thread.join(5)
        os.close(pipe)
    seen = evidence.take_observations()["collectives"]
    assert (seen["behind"], seen["unanswered"]) == ([1], [])
    folder = run_dir.evidence / "01_stall"
    assert "rank 1 did not" in (folder / "collectives.txt").read_text()
    assert json.loads((folder / "collectives_rank1.json").read_text())["rank"] == 1
