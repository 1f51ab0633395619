"""The proof that lets `auto` take Triton: its verdict, and everything that can go wrong with it."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

from nsa.attention import BackendUnavailableError, backends
from nsa.attention import proof as proofs
from nsa.attention.backends import choose_backend, choose_for_call
from nsa.attention.kernels import Kernels
from nsa.attention.proof import (
    RETRY_AFTER_S,
    choose_by_proof,
    describe_machine,
    make_proof,
    obtain_proof,
    proof_file,
    read_proof,
)  # fmt: skip
from tests.nsa.runs import ROOT

MACHINE = {"dtype": "bfloat16", "device": "a GPU", "sources": "1"}
ROW = {"S": 33, "dtype": "bfloat16", "right": True, "out": 1e-3, "gradients": 2e-3}
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def _program(text):
    return [sys.executable, "-c", text]


def _last_line(command, **env):
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    return done.stdout.strip().splitlines()[-1]


def _printing(found):
    """A trial that prints this."""
    return ["printf", "noise\\n%s\\n", json.dumps(found)]


def _found(*, right=True, **times):
    rows = {name.removeprefix("at_"): {"triton": a, "torch": b} for name, (a, b) in times.items()}
    return {"errors": [ROW | {"right": right}], "times_ms": rows}


FASTER = _found(at_2x2048=(1, 9), at_1x8192=(2, 20))


@pytest.mark.parametrize(
    ("found", "backend", "word"),
    [
        (FASTER, "triton", ""),
        (_found(at_2x2048=(1, 9), at_1x8192=(9, 8)), "torch", "not faster here in bfloat16"),
        (_found(at_2x2048=(1, 1)), "torch", "not faster"),
        (_found(at_2x2048=(float("nan"), 1)), "torch", "not faster"),
        (_found(), "torch", "not faster"),
        (_found(right=False, at_2x2048=(1, 9)), "torch", "S = 33, of bfloat16"),
        ({**FASTER, "errors": []}, "torch", "wrong"),
    ],
    ids=["proven", "slower when long", "equal", "NaN", "not timed", "wrong", "nothing compared"],
)
def test_triton_serves_only_where_it_was_right_and_faster(found, backend, word):
    choice = choose_by_proof(read_proof(json.dumps(found), MACHINE))
    assert choice.path == backend
    assert word in choice.reason
    assert bool(choice.reason) == (backend != "triton")


@pytest.fixture
def gpu_on_paper(monkeypatch):
    """A GPU that is proven in bf16 and has not been asked; notes what it is asked for."""
    asked = []

    def proven(_device, dtype):
        asked.append(dtype)
        return choose_by_proof(read_proof(json.dumps(FASTER), MACHINE))

    monkeypatch.setattr(backends, "_proven", proven)
    monkeypatch.setattr(backends, "_shared_bytes", lambda _device: 227 * 1024)
    monkeypatch.setattr(backends, "_triton_reason", lambda _device: None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield asked


def _empty(width=64, dtype=torch.bfloat16):
    return torch.empty(1, 4, 12, width, dtype=dtype, device="cuda:0")


def test_a_call_on_a_gpu_counts_why_triton_does_not_serve_it_and_asks_for_no_proof(gpu_on_paper):
    wide = choose_for_call("auto", _empty(300), 2, 64, Kernels())
    double = choose_for_call("auto", _empty(dtype=torch.float64), 2, 64, Kernels())
    assert wide == ("torch", "its tiles end at D = 256, not 300")
    assert double.path == "torch"
    assert "float64" in double.reason
    assert gpu_on_paper == []


@pytest.mark.usefixtures("gpu_on_paper")
@pytest.mark.parametrize(
    ("kernels", "who"),
    [
        (Kernels(asked_by="NSA_SDPA_NO_FLASH"), "NSA_SDPA_NO_FLASH"),
        (Kernels(flash_attn=True, asked_by="NSA_USE_FA2"), "NSA_USE_FA2"),
        (Kernels(sdpa=False), "the caller"),
    ],
    ids=["no flash", "flash-attn", "an argument"],
)
def test_who_chooses_foreign_kernels_gets_the_backend_that_calls_them(kernels, who):
    q = _empty()
    choice = choose_for_call("auto", q, 2, 64, kernels)
    assert choice == ("torch", f"{who} chooses its kernels")
    assert who in choose_for_call("torch", q, 2, 64, kernels).reason
    for backend in ("triton", "reference"):
        with pytest.raises(BackendUnavailableError, match=f"no foreign kernels, but {who}"):
            choose_for_call(backend, q, 2, 64, kernels)
        assert choose_for_call(backend, q, 2, 64, Kernels()).path == backend
    assert choose_backend("auto", torch.device("cpu"), torch.float32, kernels).path == "torch"


def test_a_missing_compiler_is_named_and_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(backends, "c_compiler", lambda: None)
    monkeypatch.setattr(proofs, "device_proof", lambda *_: pytest.fail("a trial was made"))
    backends._triton_reason.cache_clear()
    try:
        choice = backends._proven(torch.device("cuda:7"), torch.bfloat16)
        assert choice.path == "torch"
        assert "C compiler" in choice.reason
    finally:
        backends._triton_reason.cache_clear()
        backends._proven.cache_clear()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (_program("import os, sys; print('CUDA error: it burns', file=sys.stderr, flush=True); "
                  "os.abort()"), ("-6", "it burns", "--again")),
        (["printf", '{"errors": 3}'], ("no result",)),
        (["/nowhere/python"], ("could not be started",)),
        (["sleep", "100"], ("no end after 0.5 s",)),
    ],
    ids=["crash", "wrong JSON", "no program", "hangs"],
)  # fmt: skip
def test_while_a_trial_has_not_ended_torch_serves_and_the_reason_is_told(command, words):
    proof = make_proof(MACHINE, command, limit_s=0.5 if "sleep" in command else 60.0)
    assert not proof.right
    assert choose_by_proof(proof).path == "torch"
    assert all(word in choose_by_proof(proof).reason for word in words)


@pytest.mark.parametrize("right", [True, False])
def test_what_a_trial_has_shown_is_kept_and_not_tried_again(right, tmp_path):
    first = obtain_proof(MACHINE, _printing(_found(right=right)), tmp_path)
    os.utime(proof_file(tmp_path, MACHINE), (1.0, 1.0))
    unused = ["/nowhere/trial"]
    assert obtain_proof(MACHINE, unused, tmp_path) == first
    assert "could not be started" in obtain_proof(MACHINE, unused, tmp_path, again=True).reason
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json", ".lock"]


def test_a_trial_that_did_not_end_is_no_verdict_and_is_made_again_later(tmp_path):
    failed = obtain_proof(MACHINE, ["/nowhere/trial"], tmp_path)
    assert choose_by_proof(failed).path == "torch"
    # The ranks and reruns that ask meanwhile do not each wait for another trial.
    assert obtain_proof(MACHINE, _printing(FASTER), tmp_path).reason == failed.reason
    long_ago = time.time() - RETRY_AFTER_S - 1.0
    os.utime(proof_file(tmp_path, MACHINE), (long_ago, long_ago))
    assert choose_by_proof(obtain_proof(MACHINE, _printing(FASTER), tmp_path)) == ("triton", "")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"errors": [{}], "times_ms": {}}'])
def test_a_broken_proof_is_made_anew_and_the_log_says_so(content, tmp_path, caplog):
    proof_file(tmp_path, MACHINE).write_bytes(content)
    assert obtain_proof(MACHINE, _printing(FASTER), tmp_path).right
    assert "made again" in caplog.text


def test_where_nothing_can_be_written_the_proof_still_serves_this_process(tmp_path, caplog):
    assert obtain_proof(MACHINE, _printing(FASTER), None).right  # there is no home
    (tmp_path / "file").write_text("")
    assert obtain_proof(MACHINE, _printing(FASTER), tmp_path / "file" / "nsa-proof").right
    assert "cannot be kept" in caplog.text


def test_the_machine_names_versions_dtype_and_every_source_of_the_kernels(monkeypatch, tmp_path):
    def machine():
        return describe_machine(torch.device("cpu"), torch.bfloat16)

    before = machine()
    assert (before["torch"], before["dtype"]) == (torch.__version__, "bfloat16")
    copy = tmp_path / "attention"
    shutil.copytree(Path(proofs.__file__).parent, copy)
    monkeypatch.setattr(proofs, "__file__", str(copy / "proof.py"))
    said = [before["sources"], machine()["sources"]]
    for name in ("gpu/gathered.py", "selection.py", "selection_rule.py"):
        with (copy / name).open("a") as source:
            source.write("\n")
        said.append(machine()["sources"])
    assert said[0] == said[1]
    assert len(set(said)) == 4


def test_on_a_cpu_auto_starts_and_imports_nothing_of_it(tmp_path):
    text = (
        "import sys, torch\n"
        "from nsa.attention import nsa_attention, counters\n"
        "x = lambda h: torch.randn(1, 9, h, 8)\n"
        "nsa_attention(x(2), *(x(1) for _ in range(6)), torch.rand(1, 9, 2, 3))\n"
        "assert counters.snapshot()[0][:3] == ('attention', 'torch', ''), counters.snapshot()\n"
        "print([m for m in sys.modules if m in ('triton', 'nsa.attention.proof')])"
    )
    assert _last_line(_program(text), XDG_CACHE_HOME=str(tmp_path)) == "[]"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_that_nothing_can_be_proven(capsys):
    assert proofs.main([]) == 3
    assert "nothing can be proven" in capsys.readouterr().out


@pytest.mark.gpu
@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_real_proof_of_this_gpu_says_right(tmp_path, capsys, monkeypatch):
    device = torch.device("cuda", torch.cuda.current_device())
    machine = describe_machine(device, torch.bfloat16)
    monkeypatch.setattr(proofs, "cache_folder", lambda: tmp_path)
    proof = proofs.device_proof(device, torch.bfloat16)
    with capsys.disabled():
        print(f"\n{proofs.table(proof)}")
    assert proof.reason == ""
    assert proof.right, [row for row in proof.errors if not row["right"]]
    assert set(proof.times_ms) == {"2x2048", "1x8192"}
    assert obtain_proof(machine, ["/nowhere/trial"], tmp_path / "nsa-proof") == proof


@needs_triton
@pytest.mark.parametrize(
    "wrong", ["nothing", "output", "NaN", "gradient", "last key", "choice", "inputs"]
)
def test_the_trial_finds_what_is_wrong_in_one_place(wrong, monkeypatch):
    """One row of many, one key, one query of each block, or an input that is written to."""
    from nsa.attention.gpu import trial

    case = trial.Case(S=500, H=6, G=2, D=8, l=8, d=4, l_sel=16, n_sel=5, w=20)
    attend = trial.attend

    def spoil(x):
        x = x.clone()
        x[0, 499 if wrong == "last key" else 400] = math.nan if wrong == "NaN" else 0.0
        return x

    def attend_wrongly(backend, tensors, *given):
        if backend == "torch" and wrong in ("gradient", "last key"):
            tensors[5 if wrong == "last key" else 0].register_hook(spoil)
        out, ids = attend(backend, tensors, *given)
        if backend == "torch" and wrong == "choice":
            ids[:, 320::16, :, 1] = ids[:, 320::16, :, 1] % 15 + 1
        if backend == "torch" and wrong == "inputs":
            with torch.no_grad():
                tensors[1].flatten()[-1] = 0.0
        return (spoil(out) if backend == "torch" and wrong in ("output", "NaN") else out), ids

    monkeypatch.setattr(trial, "attend", attend_wrongly)
    found = trial.compare(case, torch.bfloat16, torch.device("cpu"), ours="torch")
    assert found["right"] is (wrong == "nothing"), found


@pytest.mark.long
@needs_triton
def test_the_interpreted_trial_is_right_and_says_nothing_about_speed(tmp_path):
    trial = ["env", "TRITON_INTERPRET=1", sys.executable, "-m", "nsa.attention.proof"]
    for dtype in ("float32", "float16"):
        machine = MACHINE | {"dtype": dtype}
        proof = obtain_proof(machine, [*trial, "--trial", "cpu", "--dtype", dtype], tmp_path)
        assert proof.reason == ""
        assert proof.right
        assert choose_by_proof(proof) == ("torch", f"Triton was not faster here in {dtype}")
        assert "right  B=1 S=" in proofs.table(proof)
