"""The error that a program ended with, out of logs as they are."""

import re

import pytest

from gonogo.contract.patterns import PATTERNS
from gonogo.log_errors import last_error, own_lines

OOM = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB
"""
VALUE = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
ValueError: no such word
"""
CHAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"
PASSED_ON = """Traceback (most recent call last):
  File "/bin/accelerate", line 8, in <module>
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.
"""
TORCHRUN = """Traceback (most recent call last):
  File "/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=====
train.py FAILED
-----
Failures:
  <NO_OTHER_FAILURES>
-----
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_17:35:59
  exitcode  : 1 (pid: 20143)
  error_file: <N/A>
=====
"""


BAR = " 50%|#####     | {}/12 [00:02<00:02,  2.52it/s]"


def test_notices_of_threads_and_of_an_old_variable_are_no_words_of_a_script() -> None:
    old = "Warning: Environment variable TORCH_NCCL_TRACE_BUFFER_SIZE is deprecated"
    assert own_lines(f"[W1201 18:41:50.659458899 Utils.hpp:137] {old}\n") == []
    begin = "W1126 07:54:08.853000 19783 /venv/torch/distributed/run.py:874] "
    notice = "".join(f"{begin}{line}\n" for line in ("", "*****", "Setting OMP_NUM_THREADS", "***"))
    assert own_lines(notice) == []
    assert own_lines(f"{notice}batch 3 read\n") == ["batch 3 read"]


@pytest.mark.parametrize("before", ["", "step 3 loss 2.5\n", f"\r{BAR.format(5)}"])
def test_a_bar_that_is_shown_once_more_is_no_last_word_and_no_step(before: str) -> None:
    ended = f"{before}{OOM}\r{BAR.format(6)}\n"
    assert "\n".join(own_lines(ended)).rstrip().endswith("Tried to allocate 2 GiB")
    steps = [re.compile(PATTERNS["tqdm"])]
    for text in (ended, f"{before}{OOM}\r{BAR.format(6)}\n\r{BAR.replace('12', '3').format(1)}\n"):
        assert "CUDA out of memory" in last_error(text, steps=steps)
    bars = "".join(f"\r{BAR.format(done)}" for done in (6, 7, 8, 9))
    went_on = f"{before}{OOM}{bars}\ngiving up\n"
    assert last_error(went_on, steps=steps) == "giving up"
    assert own_lines(BAR.format(6)) == [BAR.format(6)], "it shows where a run hangs"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ""), (OOM, OOM), (f"{OOM}halving the batch\n{VALUE}", VALUE),
        (f"{OOM}{CHAIN}{VALUE}", f"{OOM}{CHAIN}{VALUE}"),
        (f"{VALUE}\n{OOM}{CHAIN}{VALUE}", f"{OOM}{CHAIN}{VALUE}"),
        (f"{OOM}step 8 loss 2.5\ngiving up\n", "giving up"),
        (f"{OOM}Iteration: 8/20 | lm loss 2.5\ngiving up\n", "giving up"),
        (f"{OOM}step     8 | loss: 2.5\ngiving up\n", "giving up"),
        (f"{OOM}8> 2.5\ngiving up\n", "giving up"),
        (f"{VALUE}wandb: synced\n", f"{VALUE}wandb: synced"),
        ("out of memory, halved\n" + "line\n" * 20, "line\n" * 10), (f"{OOM}{PASSED_ON}", OOM),
        (PASSED_ON, PASSED_ON), (f"{OOM}{TORCHRUN}", OOM),
        (f"{OOM}{TORCHRUN}trying again\n{VALUE}", VALUE), (f"{OOM}{TORCHRUN}{PASSED_ON}", OOM),
    ],
)  # fmt: skip
def test_only_what_it_ended_with_counts(text: str, error: str) -> None:
    assert last_error(text, steps=[re.compile(r"^(?P<step>\d+)> ")]) == error.strip("\n")


def test_a_rank_s_own_lines_are_those_that_bear_its_number() -> None:
    text = "both\n[rank1]: mine\n[default0]: yours\n"
    assert own_lines(text, 1) == ["mine"]
    assert own_lines(text, 0) == ["yours"]
    assert own_lines(text, 2) == ["both"]
    assert own_lines(text) == ["both", "mine", "yours"]


BAD = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: a bad sample\n"
VICTIM = (
    "[rank0]: Traceback (most recent call last):\n"
    "[rank0]: RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by"
    " peer [127.0.0.1]:17301. This is typically caused by a remote worker crashing.\n"
)
LATER = BAD.replace("rank1", "rank3").replace("bad", "later")
STEP = "Epoch [2/3] Step [50/100] Loss: 0.1394\n"


def teed(rank: int, text: str) -> str:
    """Return lines as `torchrun --tee 3` shows them."""
    return "".join(f"[default{rank}]:{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (f"{STEP}{BAD}{STEP}{VICTIM}{TORCHRUN}", "ValueError: a bad sample"),
        (f"{STEP}{VICTIM}{BAD}", "ValueError: a bad sample"),
        (f"{BAD}{LATER}", "ValueError: a bad sample"),
        (f"{BAD}W1122 [rank0]: warned\n{STEP}", "ValueError: a bad sample"),
        (VICTIM, VICTIM.splitlines()[-1].removeprefix("[rank0]: ")),
        (f"{BAD}{''.join(teed(rank, STEP) for rank in (0, 2, 3, 4))}", "ValueError: a bad sample"),
        (f"{BAD}{STEP * 7}", "ValueError: a bad sample"),
        ("[rank1]: a remark\nboth", "both"),
    ],
    ids=["a victim after it", "before it", "two that fail", "others go on", "nobody else",
         "all go on, teed", "all print a step", "no error"],
)  # fmt: skip
def test_where_nobody_says_whose_the_words_are_those_of_the_rank_that_failed_first(
    text: str, last: str
) -> None:
    assert own_lines(text)[-1] == last
    assert last_error(text).splitlines()[-1] == last


def test_a_step_far_before_its_loss_is_one() -> None:
    assert last_error(f"{VALUE}step 7 {'x ' * 150}loss 2.5\nleft") == "left", "it was survived"
