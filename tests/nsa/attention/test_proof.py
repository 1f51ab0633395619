"""The proof that lets `auto` take Triton: what it finds, and what becomes of a trial."""

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from nsa.attention import proof
from nsa.attention.proof import Subject, compare, reason_against, try_kernels
from tests.nsa.runs import ROOT

SMALL = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 5, "w": 20}
ON_CPU = Subject(device="cpu", head_dim=8, heads=3, dtype="bfloat16")
ON_GPU = Subject(device="cuda:0", head_dim=64, heads=6, dtype="bfloat16")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_right_is_found_right(dtype):
    subject = Subject(device="cpu", head_dim=8, heads=3, dtype=dtype)
    assert [compare(subject, S, "torch", **SMALL) for S in (7, 150)] == ["", ""]


@pytest.mark.parametrize("wrong", ["output", "NaN", "gradient", "choice"])
def test_what_is_wrong_is_found(wrong, monkeypatch):
    attend = proof._attend

    def attend_wrongly(backend, tensors, call):
        out, ids = attend(backend, tensors, call)
        if backend == "torch":
            if wrong == "gradient":
                tensors[4].register_hook(lambda grad: 1.05 * grad)
            if wrong == "choice":
                ids = ids.clone()
                ids[:, 100:, :, 1] = 2
            out = out * {"output": 1.05, "NaN": math.nan}.get(wrong, 1.0)
        return out, ids

    monkeypatch.setattr(proof, "_attend", attend_wrongly)
    assert compare(ON_CPU, 150, "torch", **SMALL).endswith("at S = 150")


@pytest.fixture
def trial(monkeypatch, tmp_path):
    """Has the trial be this program; returns the folder of the cache."""
    monkeypatch.setattr(proof, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(proof, "_digest", lambda _subject: "x")
    monkeypatch.setattr(proof, "LIMIT_S", 5.0)

    def be(text):
        monkeypatch.setattr(proof, "_command", lambda _subject: [sys.executable, "-c", text])
        return tmp_path / "nsa-proof" / "x.json"

    return be


@pytest.mark.parametrize("reason", ["", "it was not faster here"])
def test_what_a_trial_has_shown_is_kept(reason, trial):
    file = trial(f"print('noise'); print('{json.dumps({'reason': reason})}')")
    assert reason_against(ON_GPU) == reason
    os.utime(file, (1.0, 1.0))
    trial("raise SystemExit(7)")
    assert reason_against(ON_GPU) == reason
    file.write_text("torn")
    assert "exit code 7" in reason_against(ON_GPU)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys; sys.exit('CUDA error: it burns')", "exit code 1: CUDA error: it burns"),
        ("import time; time.sleep(60)", "no end after 5 s"),
        ("print('nothing')", "no result"),
    ],
    ids=["it fails", "it hangs", "it says nothing"],
)
def test_a_trial_that_did_not_end_is_made_again_later(text, words, trial):
    file = trial(text)
    assert words in reason_against(ON_GPU)
    trial('print(\'{"reason": ""}\')')
    assert words in reason_against(ON_GPU)  # ranks and reruns do not each wait for another
    os.utime(file, (1.0, 1.0))
    assert reason_against(ON_GPU) == ""


def test_without_a_folder_nothing_is_proven(trial, monkeypatch, tmp_path):
    trial("")
    (tmp_path / "file").touch()
    for folder, words in ((None, "no home"), (tmp_path / "file", "cannot be kept")):
        monkeypatch.setattr(proof, "cache_folder", lambda folder=folder: folder)
        assert words in reason_against(ON_GPU)


def test_on_a_cpu_nothing_of_it_is_imported():
    text = (
        "import sys, torch\n"
        "from nsa.attention import nsa_attention\n"
        "x = lambda h: torch.randn(1, 9, h, 8)\n"
        "nsa_attention(x(2), *(x(1) for _ in range(6)), torch.rand(1, 9, 2, 3))\n"
        "print([m for m in sys.modules if m in ('triton', 'nsa.attention.proof')])"
    )
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


@pytest.mark.gpu
@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_trial_of_this_gpu_finds_the_kernels_right_and_faster():
    assert try_kernels(ON_GPU) == ""
