"""The proof that lets `auto` take Triton: its verdict, and everything that can go wrong with it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

from nsa.attention import BackendUnavailableError, backends
from nsa.attention import proof as proofs
from nsa.attention.backends import choose_backend, choose_for_call, judge_device
from nsa.attention.choice import Proof, build_proof, choose_by_proof
from nsa.attention.compression import compressed_length
from nsa.attention.kernels import Kernels
from nsa.attention.proof import (
    describe_machine,
    load_proof,
    make_proof,
    obtain_proof,
    proof_file,
    save_proof,
)
from nsa.attention.settings import c_compiler, cache_folder

ROOT = Path(__file__).parents[3]
MACHINE = {"dtype": "bfloat16", "device": "a GPU", "sources": "1"}
ROW = {"S": 33, "dtype": "bfloat16", "right": True, "out": 1e-3, "gradients": 2e-3}
FAST = {"2x2048": {"triton": 1.0, "torch": 9.0}}
FOUND = {"errors": [ROW], "times_ms": FAST}
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def _program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def _printing(found: object, *, counted: Path | None = None) -> list[str]:
    """A trial that prints this; each of its runs adds a line to a file."""
    count = f"open({str(counted)!r}, 'a').write('ran\\n'); " if counted else ""
    return _program(f"{count}print('noise'); print({json.dumps(found)!r})")


def _found(*, right: bool = True, **times: tuple[float, float]) -> dict:
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
        ({"errors": [], "times_ms": FAST}, "torch", "wrong"),
    ],
    ids=["proven", "slower when long", "equal", "NaN", "not timed", "wrong", "nothing compared"],
)
def test_triton_serves_only_where_it_was_right_and_faster(found, backend, word):
    choice = choose_by_proof(build_proof(found, MACHINE))
    assert choice.path == backend
    assert word in choice.reason
    assert bool(choice.reason) == (backend != "triton")


@pytest.mark.parametrize(
    ("device", "proof", "backend", "word"),
    [
        ("cpu", None, "torch", ""),
        ("cuda", build_proof(FASTER, MACHINE), "triton", ""),
        ("cuda", "Triton is not installed", "torch", "not installed"),
        ("cuda", Proof(right=False, reason="hung", times_ms={}, machine={}), "torch", "hung"),
        ("mps", None, "reference", "mps"),
    ],
    ids=["cpu", "proven", "no Triton", "trial did not end", "another device"],
)
def test_auto_follows_device_and_proof(device, proof, backend, word):
    choice = judge_device(torch.device(device), proof)
    assert choice.path == backend
    assert word in choice.reason


@pytest.fixture
def gpu_on_paper(monkeypatch):
    """A GPU that is proven in bf16, was wrong in fp32 and has not been asked in fp16."""
    found = {torch.bfloat16: FASTER, torch.float32: _found(right=False)}
    asked = []

    def proof(_device, dtype):
        asked.append(dtype)
        return build_proof(found[dtype], MACHINE | {"dtype": str(dtype)})

    monkeypatch.setattr(backends, "_proof", proof)
    monkeypatch.setattr(backends, "_shared_bytes", lambda _device: 227 * 1024)
    monkeypatch.setitem(backends._REASONS, "triton", lambda _device: None)
    return asked


def _empty(width=64, dtype=torch.bfloat16):
    return torch.empty(1, 4, 12, width, dtype=dtype, device="cuda:0")


def test_a_miss_in_one_dtype_switches_no_other_off(gpu_on_paper):
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert choose_for_call("auto", _empty(), 2, 64, Kernels()) == ("triton", "")
        single = choose_for_call("auto", _empty(dtype=torch.float32), 2, 64, Kernels())
    assert single.path == "torch"
    assert "float32" in single.reason


def test_a_call_on_a_gpu_counts_why_triton_does_not_serve_it_and_asks_for_no_proof(gpu_on_paper):
    with FakeTensorMode(allow_non_fake_inputs=True):
        wide = choose_for_call("auto", _empty(300), 2, 64, Kernels())
        double = choose_for_call("auto", _empty(dtype=torch.float64), 2, 64, Kernels())
    assert wide == ("torch", "its tiles end at D = 256, not 300")
    assert double.path == "torch"
    assert "float64" in double.reason
    assert gpu_on_paper == []


@pytest.mark.parametrize(
    ("kernels", "who"),
    [
        (Kernels(asked_by="NSA_SDPA_NO_FLASH"), "NSA_SDPA_NO_FLASH"),
        (Kernels(flash_attn=True, asked_by="NSA_USE_FA2"), "NSA_USE_FA2"),
        (Kernels(sdpa=False), "the caller"),
    ],
    ids=["no flash", "flash-attn", "an argument"],
)
def test_who_chooses_foreign_kernels_gets_the_backend_that_calls_them(gpu_on_paper, kernels, who):
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = _empty()
        choice = choose_for_call("auto", q, 2, 64, kernels)
        assert choice == ("torch", f"{who} chooses its kernels")
        assert who in choose_for_call("torch", q, 2, 64, kernels).reason
        for backend in ("triton", "reference"):
            with pytest.raises(BackendUnavailableError, match=f"no foreign kernels, but {who}"):
                choose_for_call(backend, q, 2, 64, kernels)
            assert choose_for_call(backend, q, 2, 64, Kernels()).path == backend
    assert choose_backend("auto", torch.device("cpu"), torch.float32, kernels) == "torch"


def test_a_missing_compiler_is_named_and_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(backends, "c_compiler", lambda: None)
    monkeypatch.setattr(proofs, "device_proof", lambda *_: pytest.fail("a trial was made"))
    backends._triton_reason.cache_clear()
    backends._proof.cache_clear()
    try:
        device = torch.device("cuda:7")
        assert "C compiler" in backends._triton_reason(device)
        assert "C compiler" in backends._proof(device, torch.bfloat16)
    finally:
        backends._triton_reason.cache_clear()
        backends._proof.cache_clear()


def test_the_compiler_is_the_one_that_triton_takes(tmp_path):
    nowhere = {"PATH": str(tmp_path)}
    assert c_compiler(nowhere) is None
    assert c_compiler(nowhere | {"CC": "cc -m64"}) == "cc -m64"
    clang = tmp_path / "clang"
    clang.touch(mode=0o755)
    assert c_compiler(nowhere) == str(clang)


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
def test_while_a_trial_has_not_ended_torch_serves_and_the_reason_is_told(command, words):
    proof = make_proof(MACHINE, command)
    assert not proof.right
    assert choose_by_proof(proof).path == "torch"
    for word in words:
        assert word in choose_by_proof(proof).reason


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
    proof = make_proof(MACHINE, command, limit_s=6.0)
    assert "no end after 6 s" in choose_by_proof(proof).reason
    deadline = time.monotonic() + 60.0  # a killed process ends when the kernel comes to it
    for pid in map(int, pids.read_text().split()):
        while _is_running(pid):
            assert time.monotonic() < deadline, f"{pid} still runs"
            time.sleep(0.01)


@pytest.mark.parametrize("right", [True, False])
def test_what_a_trial_has_shown_is_kept_and_not_tried_again(right, tmp_path):
    first = obtain_proof(MACHINE, _printing(_found(right=right)), tmp_path)
    unused = ["/nowhere/trial"]
    assert obtain_proof(MACHINE, unused, tmp_path, now=lambda: 1e12) == first
    assert "could not be started" in obtain_proof(MACHINE, unused, tmp_path, again=True).reason
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json", ".lock"]


@pytest.mark.parametrize(
    "command",
    [
        _program("import time; time.sleep(100)"),
        _program("raise MemoryError('CUDA out of memory')"),
        _program("raise RuntimeError('CUDA error: unspecified launch failure')"),
        _program("import os; os.abort()"),
        ["/nowhere/trial"],
    ],
    ids=["out of time", "out of memory", "launch error", "crash", "not started"],
)
def test_a_trial_that_did_not_end_is_no_verdict_and_is_made_again_later(command, tmp_path):
    began = 1_000_000.0
    failed = obtain_proof(MACHINE, command, tmp_path, limit_s=1.0, now=lambda: began)
    assert choose_by_proof(failed).path == "torch"
    # The ranks and reruns that ask meanwhile do not each wait for another trial.
    meanwhile = obtain_proof(MACHINE, _printing(FASTER), tmp_path, now=lambda: began + 599.0)
    assert meanwhile.reason == failed.reason
    for later in (began + 600.0, began - 1.0):  # a clock that was put back remembers nothing
        folder = tmp_path / str(later)
        folder.mkdir()
        shutil.copy(proof_file(tmp_path, MACHINE), folder)
        proof = obtain_proof(MACHINE, _printing(FASTER), folder, now=lambda later=later: later)
        assert choose_by_proof(proof) == ("triton", "")


def test_dtypes_have_proofs_of_their_own(tmp_path):
    obtain_proof(MACHINE, _printing(FASTER), tmp_path)
    other = obtain_proof(MACHINE | {"dtype": "float32"}, _printing(_found(right=False)), tmp_path)
    assert choose_by_proof(other).path == "torch"
    assert choose_by_proof(obtain_proof(MACHINE, ["/nowhere"], tmp_path)).path == "triton"


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
    assert load_proof(proof_file(tmp_path, MACHINE), MACHINE, 0.0) == build_proof(FOUND, MACHINE)


def test_the_proof_of_another_machine_under_this_name_is_not_believed(tmp_path, caplog):
    file = proof_file(tmp_path, MACHINE)
    save_proof(file, build_proof(FOUND, MACHINE | {"sources": "2"}))
    assert load_proof(file, MACHINE, 0.0) is None
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
    assert "busy" in choose_by_proof(proof).reason
    assert "busy" in caplog.text
    assert obtain_proof(MACHINE, _printing(FOUND), tmp_path).right


def test_the_machine_names_versions_dtype_and_every_source_of_the_kernels(monkeypatch, tmp_path):
    device = torch.device("cpu")
    machine = describe_machine(device, torch.bfloat16)
    assert (machine["torch"], machine["dtype"]) == (torch.__version__, "bfloat16")
    copy = tmp_path / "attention"
    shutil.copytree(Path(proofs.__file__).parent, copy)
    monkeypatch.setattr(proofs, "__file__", str(copy / "proof.py"))
    assert describe_machine(device, torch.bfloat16) == machine
    for name in ("gpu/gathered.py", "selection.py", "selection_rule.py", "sequences.py"):
        before = describe_machine(device, torch.bfloat16)["sources"]
        with (copy / name).open("a") as source:
            source.write("\n")
        assert describe_machine(device, torch.bfloat16)["sources"] != before


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
    for dtype in ("float32", "float16"):
        machine = MACHINE | {"dtype": dtype}
        proof = obtain_proof(machine, [*trial, "--trial", "cpu", "--dtype", dtype], tmp_path)
        assert proof.reason == ""
        assert proof.right
        assert {row["dtype"] for row in proof.errors} == {dtype}
        assert choose_by_proof(proof) == ("torch", f"Triton was not faster here in {dtype}")
        assert "right  B=1 S=" in proofs.table(proof)


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
        "from nsa.attention.gpu import cases, function, launch, trial\n"
        f"{sabotage}\n"
        "case = cases.INTERPRETED[torch.float32][1]\n"
        "print(json.dumps(trial.compare(case, torch.float32, torch.device('cpu'))))"
    )
    done = subprocess.run(
        ["env", "TRITON_INTERPRET=1", *_program(text)], cwd=ROOT,
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["right"] is False


@needs_triton
def test_queries_that_all_choose_alike_do_so_however_a_mean_of_ones_is_rounded(monkeypatch):
    """On a GPU it may come out below 1; then those that differ were looked at, and none did."""
    from nsa.attention.gpu import trial
    from nsa.attention.gpu.cases import packed

    mean = torch.Tensor.mean

    def rounded(x, *of, **by):
        return mean(x, *of, **by) * (1 - 2**-20)

    monkeypatch.setattr(torch.Tensor, "mean", rounded)
    sizes = {"H": 6, "G": 2, "D": 8, "l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
    case = packed(70, 1, 33, **sizes)
    found = trial.compare(case, torch.bfloat16, torch.device("cpu"), ours="torch")
    assert (found["right"], found["same_selection"], found["lost_score"]) == (True, 1.0, 0.0)


@needs_triton
@pytest.mark.parametrize("wrong", ["output", "gradient"])
def test_one_wrong_row_of_many_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the norm of all rows it is less than what is allowed."""
    from nsa.attention.gpu import cases, trial

    case = cases.Case(B=3, S=800, H=6, G=2, D=8, l=8, d=4, l_sel=16, n_sel=4, w=20)
    attend = trial.attend

    def spoil(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0, 700, 3] = 0.0
        return x

    def attend_wrongly(case, leaves, backend, **options):
        if backend != "torch":
            return attend(case, leaves, backend, **options)
        if wrong == "gradient":
            leaves[0].register_hook(spoil)
        out, ids = attend(case, leaves, backend, **options)
        return (spoil(out) if wrong == "output" else out), ids

    monkeypatch.setattr(trial, "attend", attend_wrongly)
    found = trial.compare(case, torch.bfloat16, torch.device("cpu"), ours="torch")
    assert found["out"] < trial.TOLERANCES[torch.bfloat16][0]
    assert found["gradients"] < trial.TOLERANCES[torch.bfloat16][1]
    assert found["right"] is False


@needs_triton
def test_a_kernel_that_writes_to_its_inputs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from nsa.attention.gpu import cases, trial

    case = cases.Case(S=100, H=2, G=1, D=8, l=8, d=4, l_sel=16, n_sel=4, w=20)
    attend = trial.attend

    def attend_wrongly(case, leaves, backend, **options):
        out, ids = attend(case, leaves, backend, **options)
        if backend == "torch":
            with torch.no_grad():  # a value that nobody reads any more
                leaves[1].flatten()[-1] = 0.0
        return out, ids

    assert trial.compare(case, torch.float32, torch.device("cpu"), ours="torch")["right"] is True
    monkeypatch.setattr(trial, "attend", attend_wrongly)
    assert trial.compare(case, torch.float32, torch.device("cpu"), ours="torch")["right"] is False


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("lengths", [(), (300, 100)], ids=["one", "packed"])
@pytest.mark.parametrize("leaf", [5, 6, 8, 9], ids=["k_win", "v_win", "k of blocks", "v of blocks"])
def test_a_wrong_gradient_of_the_last_keys_is_found(
    leaf, lengths, dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few queries see them: it is small beside those of all keys, or of a next sequence's first."""
    from nsa.attention.gpu import cases, trial

    sizes = {"H": 4, "G": 2, "D": 16, "l": 8, "d": 4, "l_sel": 16, "n_sel": 5, "w": 32}
    case = cases.packed(*lengths, **sizes) if lengths else cases.Case(B=2, S=300, **sizes)
    last = compressed_length(300, case.l, case.d) - 1 if leaf in (8, 9) else 299
    attend = trial.attend

    def spoil(grad: torch.Tensor) -> torch.Tensor:
        grad = grad.clone()
        grad[-1, last, 0] = 0.0
        return grad

    def attend_wrongly(case, leaves, backend, **options):
        if backend == "torch":
            leaves[leaf].register_hook(spoil)
        return attend(case, leaves, backend, **options)

    monkeypatch.setattr(trial, "attend", attend_wrongly)
    found = trial.compare(case, dtype, torch.device("cpu"), ours="torch")
    assert found["gradients"] < trial.TOLERANCES[dtype][1]
    assert found["right"] is False


def _of_later(ids, _):
    return ids[..., -1] + 1


def _of_another(ids, c):
    """A free block for another one, which is allowed as well."""
    return ids[..., 1] % (c[:, None] - 2) + 1


@needs_triton
@pytest.mark.parametrize("rows", [None, torch.tensor([0, 64, 320, 599])], ids=["all", "some"])
@pytest.mark.parametrize(
    ("slot", "instead"), [(-1, _of_later), (1, _of_another)], ids=["the future", "another block"]
)
def test_a_wrong_choice_of_one_query_of_each_block_is_found(
    slot, instead, rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are fewer than may stand between blocks of equal score."""
    from nsa.attention.gpu import cases, trial

    case = cases.Case(S=600, H=4, G=2, D=8, n_sel=4, w=20)
    wrong = torch.arange(320, 600, 64)
    attend = trial.attend

    def attend_wrongly(case, leaves, backend, **options):
        out, ids = attend(case, leaves, backend, **options)
        if backend == "torch":
            of_wrong = ids[:, wrong]
            of_wrong[..., slot] = instead(of_wrong, wrong // case.l_sel)
            ids = ids.index_copy(1, wrong, of_wrong)
        return out, ids

    def compare():
        single = {"ours": "torch"} if rows is None else {"ours": "torch", "rows": rows}
        return trial.compare(case, torch.float32, torch.device("cpu"), **single)

    if rows is not None:  # of few queries one is a large part
        monkeypatch.setattr(trial, "FEWEST_SAME", 0.7)
    assert compare()["right"] is True
    monkeypatch.setattr(trial, "attend", attend_wrongly)
    found = compare()
    assert trial.FEWEST_SAME <= found["same_selection"] < 1.0
    assert found["right"] is False


@needs_triton
def test_the_next_best_block_for_the_last_one_is_found() -> None:
    """For the last query alone: of sixteen blocks the last one scores little."""
    from nsa.attention.gpu import cases, trial

    case = cases.Case(S=1500)
    inputs = cases.draw_inputs(case, torch.float16, torch.device("cpu"))
    _, wanted = trial.attend(case, inputs, "reference")
    fewer, more = (
        trial.attend(replace(case, n_sel=case.n_sel + by), inputs, "reference")[1][:, -1]
        for by in (-1, 1)
    )
    next_best = more[(more[..., None] != wanted[:, -1][..., None, :]).all(-1)]
    ids = wanted.clone()
    ids[:, -1] = torch.cat((fewer, next_best.reshape(1, case.G, 1)), dim=-1).sort(-1).values
    assert trial.MOST_LOST < trial.lost_score(case, inputs, ids, wanted) < 1e-3


@needs_triton
def test_a_score_that_is_no_number_is_no_reason_to_choose() -> None:
    from nsa.attention.gpu import cases, trial

    case = cases.Case(S=600, H=4, G=2, D=8, n_sel=4, w=20)
    inputs = cases.draw_inputs(case, torch.float32, torch.device("cpu"))
    _, wanted = trial.attend(case, inputs, "reference")
    ids = wanted.clone()
    ids[:, -1, :, 1] = wanted[:, -1, :, 1] % 7 + 1
    inputs[0][:, -1] = float("nan")
    assert trial.lost_score(case, inputs, ids, wanted) == float("inf")


@needs_triton
def test_either_of_two_blocks_of_equal_score_may_be_chosen() -> None:
    from nsa.attention.gpu import cases, trial

    case = cases.packed(40, 600, 7, H=4, G=2, D=8, n_sel=4, w=20)
    inputs = cases.draw_inputs(case, torch.float32, torch.device("cpu"))
    inputs[-2][:] = inputs[-2][:, :1]
    _, wanted = trial.attend(case, inputs, "reference")
    at = torch.arange(40 + 520, 40 + 600)
    ids = wanted.clone()
    ids[:, at, :, 1] = 3  # not 1, in blocks 8 and 9
    assert not torch.equal(ids, wanted)
    assert trial.lost_score(case, inputs, ids, wanted) < 1e-5
    inputs[0][:] = 1.0
    inputs[-2][:, 1 + 4 : 1 + 4 + 4] += 1.0  # those of its block 1
    assert trial.lost_score(case, inputs, ids, wanted) > trial.MOST_LOST
    ids[:, at, :, 1] = -1
    assert trial.lost_score(case, inputs, ids, wanted) == float("inf")


@needs_triton
@pytest.mark.parametrize("rows", [None, torch.tensor([0, 39, 300, 570, 600, 646])])
@pytest.mark.parametrize("lengths", [(), (40, 600, 7)], ids=["one", "packed"])
@pytest.mark.parametrize("wrong", [None, "output", "query", "key"])
def test_what_another_choice_of_equal_score_gives_is_compared(
    wrong, lengths, rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel could be wrong wherever it chose otherwise, and nowhere else."""
    from nsa.attention.gpu import cases, trial

    case = cases.Case(S=647, H=4, G=2, D=8, n_sel=4, w=20, lengths=lengths)
    at = torch.tensor([570, 600])
    attend, draw_inputs = trial.attend, trial.draw_inputs

    def draw_equal_blocks(case, dtype, device):
        inputs = draw_inputs(case, dtype, device)
        inputs[-2][:] = inputs[-2][:, :1]
        return inputs

    def spoil(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0, at] *= 1.1
        return x

    def spoil_keys(grad: torch.Tensor) -> torch.Tensor:  # of a block that only the others chose
        grad = grad.clone()
        begin = 40 if lengths else 0
        grad[0, begin + 4 * case.l_sel : begin + 5 * case.l_sel] *= 1.1
        return grad

    def attend_otherwise(case, leaves, backend, **options):
        if backend == "torch":
            _, ids = attend(case, leaves, "reference")
            ids[:, at, :, 1] = torch.where(ids[:, at, :, 1] == 3, 5, 4)
            assert (ids[:, at].diff(dim=-1) > 0).all()
            if wrong == "query":
                leaves[0].register_hook(spoil)
            if wrong == "key":
                leaves[3].register_hook(spoil_keys)
            everywhere = torch.arange(case.S)
            out, ids = attend(case, leaves, "reference", rows=everywhere, selected=ids)
            return (spoil(out) if wrong == "output" else out), ids
        return attend(case, leaves, backend, **options)

    monkeypatch.setattr(trial, "draw_inputs", draw_equal_blocks)
    monkeypatch.setattr(trial, "attend", attend_otherwise)
    if rows is not None:  # of few queries two are a large part
        monkeypatch.setattr(trial, "FEWEST_SAME", 0.5)
    found = trial.compare(case, torch.float32, torch.device("cpu"), ours="torch", rows=rows)
    assert found["same_selection"] < 1.0
    assert found["lost_score"] < trial.MOST_LOST
    assert found["right"] is (wrong is None)


@needs_triton
def test_a_choice_is_looked_at_in_samples_of_packed_sequences() -> None:
    from nsa.attention.gpu import cases, trial

    case = cases.packed(40, 600, 7, H=4, G=2, D=8, n_sel=4, w=20)
    inputs = cases.draw_inputs(case, torch.float32, torch.device("cpu"))
    _, wanted = trial.attend(case, inputs, "reference")
    ids = wanted.clone()
    ids[:, 630, :, 1] = wanted[:, 630, :, 1] % 6 + 1
    lost = trial.lost_score(case, inputs, ids, wanted)
    assert lost > trial.MOST_LOST
    for rows in (torch.tensor([3, 39, 41, 630, 645]), torch.tensor([630])):
        assert trial.lost_score(case, inputs, ids[:, rows], wanted[:, rows], rows) == lost
    assert trial.lost_score(case, inputs, ids[:, :630], wanted[:, :630], torch.arange(630)) == 0.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_that_nothing_can_be_proven(capsys):
    assert proofs.main([]) == 3
    assert "nothing can be proven" in capsys.readouterr().out


@pytest.mark.gpu
@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_real_proof_of_this_gpu_says_right(tmp_path, capsys, caplog):
    device = torch.device("cuda", torch.cuda.current_device())
    machine = describe_machine(device, torch.bfloat16)
    command = proofs._trial_command(device, "bfloat16")
    with caplog.at_level(logging.INFO):
        proof = obtain_proof(machine, command, tmp_path)
    with capsys.disabled():
        print(f"\n{proofs.table(proof)}")
    assert proof.reason == ""
    assert proof.right, [row for row in proof.errors if not row["right"]]
    assert set(proof.times_ms) == {"2x2048", "1x8192"}
    assert obtain_proof(machine, ["/nowhere/trial"], tmp_path) == proof
