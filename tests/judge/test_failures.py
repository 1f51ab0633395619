"""The library of failures: every row by its example, real ends of logs, and bounded patterns."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gonogo.contract.decision import Decision
from gonogo.contract.outcome import FailureRow, bounded_pattern
from gonogo.judge.failures import Failure, explain, explain_decision, find_failure, library
from gonogo.log_errors import MOST_ERROR_CHARS, error_lines, outside_lines
from tests.growth import grows_with_size

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
        BAR + of_rank(1, OOM) + of_rank(0, LOST),
        f"{BAR}\n" + of_rank(1, OOM) + of_rank(0, LOST),
        of_rank(0, LOST) + of_rank(1, OOM),
        BAR + of_rank(0, LOST) + of_rank(1, OOM),
        f"{BAR}{OOM}",
        f"{OOM}{LOST}",
        "".join(f"(worker pid=7) {line}\n" for line in OOM.splitlines()),
        f"\x1b[31m{OOM}\x1b[0m",
    ],
    ids=["bar glued", "bar above", "victim first", "bar at the victim", "one rank", "unmarked",
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


QUICK = ["[["]
LONG = ["nan ", "gloo/", "index ", "loss ", "a" * 30]


@pytest.mark.parametrize("word", [*QUICK, *(pytest.param(w, marks=pytest.mark.long) for w in LONG)])
def test_hostile_lines_take_no_time(word: str) -> None:
    lines = error_lines("\n".join([word * 20_000] * 50))
    assert all(len(line) <= MOST_ERROR_CHARS for line in lines)
    assert grows_with_size(lambda times: find_failure([word * times]), 25)
    assert grows_with_size(lambda times: error_lines(f"{word}\n" * times), 500)
