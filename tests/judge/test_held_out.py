"""Lines that people posted when a run had failed, and the library had not been written for.

Collected from issues and forums before the library was tried on them, cut to what decides.
"""

from __future__ import annotations

import re

import pytest

from gonogo.judge.failures import library
from tests.judge.test_failures import HEAD, LOST, OOM, STEPS, name_of

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
ENDS = [
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


@pytest.mark.parametrize(("name", "text"), ENDS)
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
