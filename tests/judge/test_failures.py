"""The library of failures: every row by its example, posted lines, and bounded patterns."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from gonogo.contract.decision import Decision
from gonogo.contract.outcome import FailureRow, bounded_pattern
from gonogo.judge.failures import Failure, explain, explain_decision, find_failure, library
from gonogo.log_errors import MOST_ERROR_CHARS, error_lines, outside_lines

# The library of failures: every row by its example, real ends of logs, and bounded patterns.


ROWS = list(library().values())
SHOWN = [row for row in ROWS if row.pattern]
HEAD = 'Traceback (most recent call last):\n  File "/job/train.py", line 12, in <module>\n    '
DSA = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the"
    " stacktrace below might be incorrect.\nFor debugging consider passing"
    " CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side"
    " assertions.\n\n"
)
GLOO = (
    "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:546."
    " This is typically caused by a remote worker crashing."
)
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
STEPS = "step 1 loss 2.5\nstep 2 loss 2.4\n"


def name_of(text: str) -> str | None:
    found = find_failure(error_lines(text))
    return None if found is None else found.name


def test_the_library_has_every_row_once_and_says_everything_of_it() -> None:
    assert len(SHOWN) >= 80
    with_keys = [row for row in ROWS if row.cause and row.remedy]
    assert with_keys == ROWS
    for row in SHOWN:
        assert row.source, row.name
        assert row.example, row.name
        assert "NSA_" not in row.remedy, "only nsa.train knows these"


@pytest.mark.parametrize("row", SHOWN, ids=[row.name for row in SHOWN])
def test_a_row_is_found_by_its_example_and_no_earlier_row_is(row: Failure) -> None:
    assert name_of(row.example) == row.name
    assert name_of(f"{STEPS}{row.example}\n") == row.name


@pytest.mark.parametrize("field", ["cause", "retry", "class", "name"])
def test_a_row_must_say_everything(field: str) -> None:
    row = {"name": "a_row", "cause": "c", "remedy": "r", "class": "user", "retry": True}
    Failure.model_validate(row)
    with pytest.raises(ValidationError):
        Failure.model_validate({key: value for key, value in row.items() if key != field})
    with pytest.raises(ValidationError):
        Failure.model_validate({**row, "clas": "user"})


# Ends of logs as programs write them: the name and the text.
ENDS = [
    ("illegal_memory_access", f"{HEAD}loss.backward()\nRuntimeError: CUDA error: an illegal memory"
     f" access was encountered{DSA}"),
    ("gpu_lost", "[99.1] NVRM: Xid (PCI:0000:1b:00): 79, pid=7, GPU has fallen off the bus.\n"
     f"{HEAD}x.cpu()\nRuntimeError: CUDA error: unspecified launch failure{DSA}"),
    ("nccl_system_error", f"{HEAD}ddp = DDP(m)\ntorch.distributed.DistBackendError: NCCL error in:"
     " /p/NCCLUtils.hpp:317, unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
     "ncclSystemError: System call (e.g. socket, malloc) or external library call failed\n"),
    ("out_of_memory", f"{HEAD}y = m(x)\njaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED:"
     " Out of memory while trying to allocate 34359738368 bytes.\n"),
    ("ddp_unused_parameters", f"{HEAD}m(x)\nRuntimeError: Expected to have finished reduction in"
     " the prior iteration before starting a new one.\nParameter indices which did not receive"
     " grad for rank 1: 3\n"),
    ("host_out_of_memory", "slurmstepd: error: Detected 2 oom_kill events in StepId=1.0. Some of"
     " the step tasks have been OOM Killed.\nsrun: error: node-1: task 3: Out Of Memory\n"),
    ("missing_file", f"{HEAD}np.memmap(p)\nFileNotFoundError: [Errno 2] No such file or directory:"
     " '/data/x.bin'\n"),
    ("launch_failure", f"{HEAD}run()\nOSError: (External) CUDA error(719), unspecified launch"
     " failure. \n  [Hint: 'cudaErrorLaunchFailure'. An exception occurred on the device.]\n"),
    (None, f"{HEAD}f()\nValueError: the number of experts is odd\n"),
    (None, "wandb: Run summary: loss 2.5\nall done, exit 3\n"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), ENDS)
def test_the_end_of_a_log_is_named(name: str | None, text: str) -> None:
    assert name_of(f"{STEPS}{text}") == name
    later = "".join(f"step {n} loss 2.1\n" for n in range(9))
    assert name_of(f"{text}{later}bye\n") is None, "it was survived"


HEALTHY = [
    "Saving model checkpoint to out/checkpoint-500\nwandb: Synced 5 W&B file(s)\n",
    "NCCL version 2.21.5+cuda12.4\nusing sentencepiece model spm.model\n",
    "wandb: Network error (ConnectTimeout), entering retry loop.\n",
    "config: find_unused_parameters: False, loss scale window 1000, min_loss_scale: 1\n",
    "accelerate config: /root/.cache/huggingface/accelerate/default_config.yaml\n",
    "Timeout: 600 s per collective\nno more shards\n",
    "│ ❱ 12 │   raise ConnectionError('No space left on device')  │\nodd number of experts\n",
]


@pytest.mark.parametrize("text", HEALTHY)
def test_harmless_lines_at_the_end_of_a_log_name_no_failure(text: str) -> None:
    assert name_of(f"{STEPS}{text}metric below the threshold, leaving\n") is None


def of_rank(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


BAR = "\rTraining:  12%|#         | 12/100 [00:01<00:13,  6.61it/s, loss=1.4235]"
OOM = f"{HEAD}y = model(x)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n"
LOST = f"{HEAD}work.wait()\n{GLOO}\n"


@pytest.mark.parametrize(
    "text",
    [
        BAR + of_rank(1, OOM) + of_rank(0, LOST), f"{BAR}\n" + of_rank(1, OOM) + of_rank(0, LOST),
        of_rank(0, LOST) + of_rank(1, OOM), BAR + of_rank(0, LOST) + of_rank(1, OOM), f"{BAR}{OOM}",
        "".join(f"(worker pid=7) {line}\n" for line in OOM.splitlines()), f"\x1b[31m{OOM}\x1b[0m",
    ],
    ids=["bar glued", "bar above", "victim first", "bar at the victim", "one rank",
         "each line labelled", "coloured"],
)  # fmt: skip
def test_the_rank_that_failed_first_is_named(text: str) -> None:
    found = find_failure(error_lines(text))
    assert found is not None
    assert found.name == "out_of_memory"
    assert found.line.startswith("torch.OutOfMemoryError: ")


def test_what_victims_print_behind_an_unknown_error_does_not_name_it() -> None:
    unknown = f"{HEAD}f()\nValueError: odd\n"
    what = f"terminate called after throwing an instance of 'gloo::IoException'\n  what():  {GLOO}"
    assert name_of(f"{unknown}{what}\n") is None
    assert name_of(of_rank(1, unknown) + of_rank(0, LOST)) is None
    assert name_of(of_rank(0, LOST)) == "lost_peer", "where nobody else says why"


def test_a_killed_program_ended_by_no_error_but_the_kernel_may_say_why() -> None:
    assert outside_lines(OOM) == []
    found = find_failure(outside_lines(f"{OOM}slurmstepd: error: Detected 1 oom_kill event\n"))
    assert found is not None
    assert found.name == "host_out_of_memory"


def test_rows_of_a_plan_are_tried_first() -> None:
    own = FailureRow(name="our_oom", pattern="out of MEMORY", cause="c", remedy="r")
    found = find_failure(error_lines(OOM), [own])
    assert found is not None
    assert found.name == "our_oom"
    assert explain("our_oom", [own]) is not None
    assert explain("our_oom") is None


def decision_on(name: str, *, groups: int | None, failures: list[dict[str, str]]) -> Decision:
    return Decision.model_validate(
        {
            "id": "d", "seq": 1, "experiment": "e", "kind": "auto", "verdict": "NO_GO",
            "diagnosis": name, "rules": {"failures": failures}, "rule_digest": "",
            "facts": {"identity": {"0": {"groups": groups}}}, "facts_digest": "",
            "made_by": {"gonogo": "0", "sources": ""}, "actor": "judge", "at": "",
        }
    )  # fmt: skip


def test_a_decision_explains_its_diagnosis_by_its_own_rules_and_program() -> None:
    foreign = explain_decision(decision_on("non_finite_loss", groups=None, failures=[]))
    ours = explain_decision(decision_on("non_finite_loss", groups=2, failures=[]))
    assert foreign is not None
    assert ours is not None
    assert "NSA_" not in foreign.remedy
    assert "NSA_SDPA_NO_FLASH" in ours.remedy
    row = {"name": "mine", "pattern": "abc", "cause": "our cause", "remedy": "our remedy"}
    own = explain_decision(decision_on("mine", groups=None, failures=[row]))
    assert own is not None
    assert (own.cause, own.remedy) == ("our cause", "our remedy")
    assert explain_decision(decision_on("unheard_of", groups=None, failures=[])) is None


@pytest.mark.parametrize("text", ["(a+)+$", "(a|b)*c", "a.*b.*c.*", "(", "(ab){2,}", "x{0,99}" * 3])
def test_a_pattern_that_could_take_too_long_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"repeats|expression"):
        bounded_pattern(text)


@pytest.mark.parametrize("word", ["[[", "gloo/", "loss ", "a" * 30])
def test_lines_without_end_are_cut(word: str) -> None:
    lines = error_lines("\n".join([word * 2_000] * 4))
    assert all(len(line) <= MOST_ERROR_CHARS for line in lines)


# Lines that people posted when a run had failed, and the library had not been written for.


RAISED = re.compile(
    r"[\w.]*(?:Error|Exception|OutOfResources|BackendCompilerFailed)\b(?:\(\w+\))?: "
)
"""Such a line stands below a traceback; the others stand alone."""
LINES = [
    ("killed", "Killed"),
    ("nvlink_error",
     "kernel: NVRM: Xid (PCI:0000:ed:00): 45, pid=1818992, name=python3, Ch 0000000c"
     " caused by previous Xid 145"),
    ("gpu_channel_stopped", "[Wed Jul 31 23:14:18 2031] NVRM: Xid (PCI:0000:00:05): 43,"),
    ("device_index_out_of_bounds",
     "/d/IndexKernel.cu:142: operator(): block: [0,0,0], thread: [127,0,0] Assertion"
     " `index >= -sizes[i]"),
    ("illegal_memory_access",
     "what():  [Rank 2] NCCL watchdog thread terminated with exception: CUDA error: an"
     " illegal memory access"),
    ("launch_failure", "RuntimeError: CUDA error: unspecified launch failure"),
    ("host_out_of_memory", "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0."),
    ("shared_memory_full",
     "RuntimeError: DataLoader worker (pid 263230) is killed by signal: Bus error."),
    ("driver_mismatch",
     "RuntimeError: cuda runtime error (35) : CUDA driver version is insufficient"),
    ("cuda_unknown_error",
     "(worker pid=5304) [E ProcessGroupNCCL.cpp:916] [Rank 7] NCCL watchdog thread"
     " terminated with exception: CUDA error: unknown"),
    ("cuda_error", "Error invalid configuration argument at line 119 in file /d/ops.cu"),
    ("size_mismatch",
     "RuntimeError: While copying the parameter named decoder.embedding.weight, whose"
     " dimensions in the model are torch.Size([58, 256]) and whose dimensions in the"
     " checkpoint are"),
    ("optimizer_state_mismatch", "KeyError: 'optimizer'"),
    ("tracker_unreachable", "wandb.errors.UsageError: Error communicating with"),
    ("hub_access_denied", "huggingface_hub.utils._errors.GatedRepoError: 403"),
    ("hub_unreachable", "huggingface_hub.utils._errors.HfHubHTTPError: 500 Server Error:"),
    ("no_route_to_rank",
     "node-1:2152176:2152299 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp"
     " failed with error Network is unreachable"),
    ("nccl_system_error",
     "RuntimeError: NCCL error in: /d/ProcessGroupNCCL.cpp:514, unhandled system error,"),
    ("nccl_internal_error",
     "RuntimeError: NCCL error in: ../d/ProcessGroupNCCL.cpp:1269, internal error,"),
    ("gloo_error", "RuntimeError: Gloo connectFullMesh failed with [../d/pair.cc:144]"),
    ("mpi_abort", "[node-1:95415] Local abort before MPI_INIT completed"),
    ("loader_batch_uneven",
     "ValueError: Unable to create tensor, you should probably activate truncation"),
    ("disk_full", "OSError: [Errno 28] No space left on device"),
    ("file_system_failed", "OSError: [Errno 5] Input/output error: '/data/x'"),
    ("permission_denied", "PermissionError: [Errno 13] Permission denied: '/.cache'"),
    ("evicted", "4m11s       Warning   Evicted               pod/train-0"),
    ("scheduler_failed", "srun: error: Application launch failed: Job credential"),
    ("segmentation_fault", "traceback : Signal 11 (SIGSEGV) received by PID 2630"),
    ("dtypes_differ",
     "RuntimeError: \"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for"),
    ("shapes_differ", "RuntimeError: The size of tensor a (2048) must match"),
    ("fork_after_cuda", "RuntimeError: Cannot re-initialize CUDA in forked subprocess."),
    ("ptx_failed", "RuntimeError: Triton Error [CUDA]: device kernel"),
    ("build_tools_missing",
     "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'"),
    ("deepspeed_zero", "RuntimeError: still have inflight params [{'id':"),
    ("no_loss", "ValueError: The model did not return a loss from the inputs,"),
    ("adapter_targets", "ValueError: Target modules [] not found in the base model."),
    ("dataset_failed", "IndexError: Relative sample index 85 is not present"),
    ("api_changed", "AttributeError: type object 'Trainer' has no attribute"),
    ("missing_file", "ValueError: Can't find a valid checkpoint at /d/checkpoint-5"),
    ("program_error", "TypeError: GRPOTrainer._get_train_sampler() takes"),
    ("parallel_sizes", "RuntimeError: world_size (1) is not divisible by 2"),
    ("host_allocation_failed", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "line"), LINES)
def test_a_posted_line_is_named(name: str, line: str) -> None:
    assert (
        name_of(f"{STEPS}{HEAD}f()\n{line}\n" if RAISED.match(line) else f"{STEPS}{line}\n") == name
    )


REPORT = (
    f"{HEAD}main()\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\n"
    "train.py FAILED\n----\nFailures:\n  <NO_OTHER_FAILURES>\n----\nRoot Cause (first observed"
    " failure):\n[0]:\n  rank      : 5 (local_rank: 5)\n  exitcode  : -9 (pid: 26)\n"
    "  traceback : Signal 9 (SIGKILL) received by PID 26\n====\n"
)
PEER = (
    "[rank0]:[E804 23:05:54.8 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE) ran for 600061 milliseconds\n"
)
AROUND = [
    ("killed", REPORT),
    ("lost_peer", "".join(f"10.0.0.4: [rank22]: {line}\n" for line in LOST.splitlines())),
    ("killed", f"{PEER}{REPORT}"),
    ("out_of_memory", f"{OOM}{REPORT}"),
    (
        "out_of_memory",
        f"{OOM}Exception ignored in: <function Env.__del__ at 0x7f>\n{HEAD}close()\n"
        "AttributeError: 'Env' object has no attribute 'sim'\n",
    ),
    (
        "driver_mismatch",
        "Error CUDA driver version is insufficient for CUDA runtime version at line 9"
        f"\n{HEAD}run()\nsubprocess.CalledProcessError: Command '['python']' returned non-zero exit"
        " status 1.\n",
    ),
    (
        "fp16_overflow",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.0\n"
        f"{HEAD}step()\nZeroDivisionError: float division by zero\n",
    ),
    (
        "program_error",
        f"{HEAD}next(it)\nTypeError: Caught TypeError in DataLoader worker process 0.\n"
        'Original Traceback (most recent call last):\n  File "/a.py", line 3, in _worker_loop\n'
        "TypeError: 'int' object is not iterable\n",
    ),
]


@pytest.mark.parametrize(("name", "text"), AROUND)
def test_what_stands_around_an_error_is_told_from_it(name: str | None, text: str) -> None:
    assert name_of(f"{STEPS}{text}") == name


USERS = [
    "KeyError: 'img'",
    "AssertionError: killed nodes must be masked",
    "ValueError: node failure_rate must lie in [0, 1]",
    "ValueError: learning rate memory buffer is empty",
    "LookupError: no tokenizer named foo in the registry",
    "AttributeError: module 'utils' has no attribute 'get_disk'",
]


@pytest.mark.parametrize("line", USERS)
def test_a_program_s_own_error_blames_nobody_else(line: str) -> None:
    name = name_of(f"{STEPS}{HEAD}f()\n{line}\n")
    assert name is None or library()[name].klass.value == "user"


HARMLESS = [
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node-1]:29500.",
    "[rank0]:[W1124 ProcessGroupNCCL.cpp:1168] Warning: process group has NOT been destroyed",
    "node1:1755:1755 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 8192.0",
    "srun: job 4711 queued and waiting for resources",
    "2031-01-01 10:00:00.1: E cuda_dnn.cc:9261] Unable to register cuDNN factory: Attempting to"
    " register factory for plugin cuDNN when one has already been registered",
    "faulthandler is set for SIGSEGV and SIGABRT",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_a_line_that_healthy_runs_print_names_no_failure(line: str) -> None:
    assert name_of(f"{STEPS}{line}\nstopping at the target\n") is None
