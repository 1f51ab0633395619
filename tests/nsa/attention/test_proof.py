"""The proof that lets `auto` take Triton: its verdict, and everything that can go wrong with it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from nsa.attention import proof as proofs
from nsa.attention.backends import judge_device
from nsa.attention.gpu.verdict import Proof, build_proof, judge_proof
from nsa.attention.proof import (
    describe_machine,
    load_proof,
    make_proof,
    obtain_proof,
    proof_file,
    save_proof,
)
from nsa.settings import cache_folder

ROOT = Path(__file__).parents[3]
MACHINE = {"device": "a GPU", "sources": "1"}
ROW = {"S": 33, "dtype": "bfloat16", "right": True, "out": 1e-3, "gradients": 2e-3}
FAST = {"bfloat16 2x2048": {"triton": 1.0, "torch": 9.0}}
FOUND = {"errors": [ROW], "times_ms": FAST}
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def _program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def _printing(found: object, *, counted: Path | None = None) -> list[str]:
    """A trial that prints this; each of its runs adds a line to a file."""
    count = f"open({str(counted)!r}, 'a').write('ran\\n'); " if counted else ""
    return _program(f"{count}print('noise'); print({json.dumps(found)!r})")


def _found(*, right: bool = True, **times: tuple[float, float]) -> dict:
    rows = {name.replace("_", " "): {"triton": a, "torch": b} for name, (a, b) in times.items()}
    return {"errors": [ROW | {"right": right}], "times_ms": rows}


FASTER = _found(bfloat16_2x2048=(1, 9), bfloat16_1x8192=(2, 20), float32_2x2048=(9, 8))


@pytest.mark.parametrize(
    ("found", "dtype", "call_reason", "backend", "word"),
    [
        (FASTER, "bfloat16", None, "triton", ""),
        (FASTER, None, None, "triton", ""),
        (FASTER, "float32", None, "torch", "not faster here in float32"),
        (FASTER, "float16", None, "torch", "not faster here in float16"),
        (FASTER, "bfloat16", "its tiles end at D = 256", "torch", "D = 256"),
        (_found(bfloat16_2x2048=(1, 9), bfloat16_1x8192=(9, 8)), "bfloat16", None, "torch", "not"),
        (_found(bfloat16_2x2048=(1, 1)), None, None, "torch", "not faster"),
        (_found(bfloat16_2x2048=(float("nan"), 1)), None, None, "torch", "not faster"),
        (_found(), None, None, "torch", "not faster"),
        (_found(right=False, bfloat16_2x2048=(1, 9)), "bfloat16", None, "torch", "S = 33"),
        ({"errors": [], "times_ms": FAST}, "bfloat16", None, "torch", "wrong"),
    ],
    ids=[
        "proven", "for the device", "slower in this dtype", "dtype not timed", "not this call",
        "slower when long", "equal", "time is NaN", "not timed", "wrong", "nothing compared",
    ],
)  # fmt: skip
def test_triton_serves_only_what_it_was_right_and_faster_in(
    found, dtype, call_reason, backend, word
):
    verdict = judge_proof(build_proof(found, MACHINE), dtype, call_reason)
    assert verdict.backend == backend
    assert word in verdict.reason
    assert bool(verdict.reason) == (backend != "triton")


@pytest.mark.parametrize(
    ("device", "proof", "backend", "word"),
    [
        ("cpu", None, "torch", ""),
        ("cuda", build_proof(FASTER, MACHINE), "triton", ""),
        ("cuda", "Triton is not installed", "torch", "not installed"),
        ("cuda", Proof(right=False, reason="hung", times_ms={}, machine={}), "torch", "hung"),
        ("mps", None, "reference", "mps"),
    ],
    ids=["cpu", "proven", "no Triton", "trial failed", "another device"],
)
def test_auto_follows_device_and_proof(device, proof, backend, word):
    chosen = judge_device(torch.device(device), proof)
    assert chosen.backend == backend
    assert word in chosen.reason


def test_a_call_on_a_gpu_counts_why_triton_did_not_serve_it(monkeypatch):
    from torch._subclasses import FakeTensorMode

    from nsa.attention import backends

    monkeypatch.setattr(backends, "_proof", lambda _device: build_proof(FASTER, MACHINE))
    monkeypatch.setattr(backends, "_shared_bytes", lambda _device: 227 * 1024)
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 4, 12, 64, dtype=torch.bfloat16, device="cuda:0")
        assert backends.choose_for_call("auto", q, 2, 64) == ("triton", "")
        wide = torch.empty(1, 4, 12, 300, dtype=torch.bfloat16, device="cuda:0")
        assert backends.choose_for_call("auto", wide, 2, 64)[0] == "torch"
        assert "D = 256" in backends.choose_for_call("auto", wide, 2, 64)[1]
        assert "float64" in backends.choose_for_call("auto", q.double(), 2, 64)[1]
        assert "float32" in backends.choose_for_call("auto", q.float(), 2, 64)[1]


def test_a_trial_that_ends_well_is_judged_by_what_it_printed():
    assert make_proof(MACHINE, _printing(FOUND)) == build_proof(FOUND, MACHINE)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (_program("import os, sys; print('CUDA error: it burns', file=sys.stderr, flush=True); "
                  "os.abort()"), ("-6", "it burns", "--again")),
        (_program("raise RuntimeError('no kernel image')"), ("1", "no kernel image")),
        (_program("print('nothing')"), ("no result",)),
        (_program("print('{\"errors\": 3}')"), ("no result",)),
        (_program(""), ("no result",)),
        (["/nowhere/python"], ("could not be started",)),
    ],
    ids=["crash", "exception", "no JSON", "wrong JSON", "silence", "no program"],
)  # fmt: skip
def test_a_trial_that_fails_is_a_proof_of_not_here_with_its_reason(command, words):
    proof = make_proof(MACHINE, command)
    assert not proof.right
    assert judge_proof(proof).backend == "torch"
    for word in words:
        assert word in judge_proof(proof).reason


def _is_running(pid):
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_trial_that_hangs_is_killed_with_what_it_started(tmp_path):
    pids = tmp_path / "pids"
    command = _program(
        "import os, subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)']); "
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); time.sleep(100)"
    )
    proof = make_proof(MACHINE, command, limit_s=3.0)
    assert "no end after 3 s" in judge_proof(proof).reason
    deadline = time.monotonic() + 60.0  # a killed process ends when the kernel comes to it
    for pid in map(int, pids.read_text().split()):
        while _is_running(pid):
            assert time.monotonic() < deadline, f"{pid} still runs"
            time.sleep(0.01)


@pytest.mark.parametrize(
    "command",
    [_printing(FOUND), _program("import os; os.abort()")],
    ids=["a good trial", "a crashed trial"],
)
def test_a_proof_is_made_once_and_kept_whatever_it_says(command, tmp_path):
    first = obtain_proof(MACHINE, command, tmp_path)
    unused = ["/nowhere/trial"]
    assert obtain_proof(MACHINE, unused, tmp_path) == first
    assert "could not be started" in obtain_proof(MACHINE, unused, tmp_path, again=True).reason
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json", ".lock"]


def test_another_machine_or_other_sources_need_another_proof(tmp_path):
    counted = tmp_path / "runs"
    for machine in (MACHINE, MACHINE | {"sources": "2"}, MACHINE | {"device": "b"}, MACHINE):
        obtain_proof(machine, _printing(FOUND, counted=counted), tmp_path / "proofs")
    assert counted.read_text().count("ran") == 3


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[]", b"null", b'{"errors": []}', b'{"errors": [{}], "times_ms": {}}'],
    ids=["empty", "no text", "a list", "null", "half", "no rows"],
)
def test_a_broken_proof_is_made_anew_and_the_log_says_so(content, tmp_path, caplog):
    proof_file(tmp_path, MACHINE).write_bytes(content)
    assert obtain_proof(MACHINE, _printing(FOUND), tmp_path).right
    assert "made anew" in caplog.text
    assert load_proof(proof_file(tmp_path, MACHINE), MACHINE) == build_proof(FOUND, MACHINE)


def test_the_proof_of_another_machine_under_this_name_is_not_believed(tmp_path, caplog):
    file = proof_file(tmp_path, MACHINE)
    save_proof(file, build_proof(FOUND, MACHINE | {"sources": "2"}))
    assert load_proof(file, MACHINE) is None
    assert "another machine" in caplog.text


@pytest.mark.parametrize(
    ("folder", "word"),
    [("a file", "cannot be kept"), (None, "no home")],
    ids=["a file in its place", "no home"],
)
def test_where_nothing_can_be_written_the_proof_still_serves_this_process(
    folder, word, tmp_path, caplog
):
    if folder is not None:
        (tmp_path / folder).write_text("")
    where = None if folder is None else tmp_path / folder / "nsa-proof"
    assert obtain_proof(MACHINE, _printing(FOUND), where).right
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert word in caplog.text


@pytest.mark.long
def test_processes_that_start_together_make_one_proof(tmp_path):
    counted, folder = tmp_path / "runs", tmp_path / "proofs"
    slow = _program(
        f"import time; open({str(counted)!r}, 'a').write('ran\\n'); time.sleep(2); "
        f"print({json.dumps(FOUND)!r})"
    )
    text = (
        "from pathlib import Path; from nsa.attention.proof import obtain_proof; "
        f"print(obtain_proof({MACHINE!r}, {slow!r}, Path({str(folder)!r})).right)"
    )
    racers = [
        subprocess.Popen(_program(text), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [racer.communicate(timeout=120)[0].strip() for racer in racers] == ["True", "True"]
    assert counted.read_text() == "ran\n"


def test_a_lock_that_stays_busy_leaves_torch_and_no_record(tmp_path, caplog):
    with proof_file(tmp_path, MACHINE).with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        proof = obtain_proof(MACHINE, _printing(FOUND), tmp_path, lock_limit_s=0.2)
    assert "busy" in judge_proof(proof).reason
    assert "busy" in caplog.text
    assert obtain_proof(MACHINE, _printing(FOUND), tmp_path).right


def test_the_machine_names_versions_and_every_source_of_the_kernels(monkeypatch, tmp_path):
    machine = describe_machine(torch.device("cpu"))
    assert machine["torch"] == torch.__version__
    copy = tmp_path / "attention"
    (copy / "gpu").mkdir(parents=True)
    here = Path(proofs.__file__)
    for file in (here, *(here.parent / "gpu").glob("*.py")):
        (copy / file.relative_to(here.parent)).write_bytes(file.read_bytes())
    monkeypatch.setattr(proofs, "__file__", str(copy / "proof.py"))
    assert describe_machine(torch.device("cpu")) == machine
    with (copy / "gpu" / "visits.py").open("a") as kernel:
        kernel.write("\n")
    assert describe_machine(torch.device("cpu"))["sources"] != machine["sources"]


def test_proofs_are_kept_under_the_users_cache(tmp_path):
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "gonogo"
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == cache_folder({})
    assert cache_folder({}) == Path.home() / ".cache" / "gonogo"


def test_on_a_cpu_auto_starts_and_imports_nothing_of_it(tmp_path):
    text = (
        "import sys, torch\n"
        "from nsa.attention import nsa_attention, counters\n"
        "x = lambda h: torch.randn(1, 9, h, 8)\n"
        "nsa_attention(x(2), *(x(1) for _ in range(6)), torch.rand(1, 9, 2, 3))\n"
        "assert counters.snapshot()[0][:3] == ('attention', 'torch', ''), counters.snapshot()\n"
        "print([m for m in sys.modules if m in ('triton', 'nsa.attention.proof')])"
    )
    done = subprocess.run(
        _program(text), cwd=ROOT, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@needs_triton
def test_the_interpreted_trial_is_right_and_says_nothing_about_speed(tmp_path):
    trial = ["env", "TRITON_INTERPRET=1", sys.executable, "-m", "nsa.attention.proof"]
    proof = obtain_proof(MACHINE, [*trial, "--trial", "cpu"], tmp_path)
    assert proof.reason == ""
    assert proof.right
    assert {row["dtype"] for row in proof.errors} == {"float32", "float16"}
    assert judge_proof(proof) == ("torch", "Triton was not faster here")
    assert "right  dtype=float32" in proofs.table(proof)


@pytest.mark.long
@needs_triton
@pytest.mark.parametrize(
    "sabotage",
    [
        "launch.mix = function.mix = lambda outs, gate, mix=launch.mix: mix(outs, gate) * 1.001",
        "function.dots = lambda outs, grad, dots=launch.dots: dots(outs, grad) + 0.01",
        "function.dots = lambda outs, grad, dots=launch.dots: dots(outs, grad) * float('nan')",
        "function.mix = lambda outs, gate: torch.empty_like(outs[0])",
    ],
    ids=["output", "gradients", "NaN", "memory that nobody wrote"],
)
def test_the_trial_finds_kernels_that_are_slightly_wrong(sabotage):
    text = (
        "import json, torch\n"
        "from nsa.attention.gpu import function, launch, trial\n"
        f"{sabotage}\n"
        "case = trial.INTERPRETED[torch.float32][1]\n"
        "print(json.dumps(trial.compare(case, torch.float32, torch.device('cpu'))))"
    )
    done = subprocess.run(
        ["env", "TRITON_INTERPRET=1", *_program(text)], cwd=ROOT,
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["right"] is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_that_nothing_can_be_proven(capsys):
    assert proofs.main([]) == 3
    assert "nothing can be proven" in capsys.readouterr().out


@pytest.mark.gpu
@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_real_proof_of_this_gpu_says_right(tmp_path, capsys, caplog):
    device = torch.device("cuda", torch.cuda.current_device())
    machine, command = describe_machine(device), proofs._trial_command(device)
    with caplog.at_level(logging.INFO):
        proof = obtain_proof(machine, command, tmp_path)
    with capsys.disabled():
        print(f"\n{proofs.table(proof)}")
    assert proof.reason == ""
    assert proof.right, [row for row in proof.errors if not row["right"]]
    assert set(proof.times_ms) >= {"bfloat16 2x2048", "bfloat16 1x8192"}
    assert obtain_proof(machine, ["/nowhere/trial"], tmp_path) == proof
