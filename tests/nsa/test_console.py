import re
import subprocess
import sys

import pytest

from nsa.artifacts import LOG_EVERY_S, Console, duration

FIELDS = {"loss": 5.51234, "grad_norm": 1.25, "lr": 1e-3, "toks_per_s": 1660.4}


def _lines(step_s, steps, done=0):
    now, lines = [100.0], list[str]()
    console = Console(steps, done, write=lines.append, now=lambda: now[0])
    for step in range(done + 1, steps + 1):
        now[0] += step_s if step > done + 1 else 60.0  # the first step warms up
        console.log_step(step, FIELDS)
    return lines


def test_a_line_says_step_loss_speed_and_time_left():
    assert _lines(6.0, 4) == [
        "step 1/4  loss 5.5123  grad 1.25  lr 1.00e-03  1660 tok/s",
        "step 2/4  loss 5.5123  grad 1.25  lr 1.00e-03  1660 tok/s  6.00 s/step  0:12 left",
        "step 3/4  loss 5.5123  grad 1.25  lr 1.00e-03  1660 tok/s  6.00 s/step  0:06 left",
        "step 4/4  loss 5.5123  grad 1.25  lr 1.00e-03  1660 tok/s  6.00 s/step  done",
    ]


def test_quick_steps_give_a_line_every_five_seconds_and_the_last():
    told = [int(re.findall(r"step (\d+)/", line)[0]) for line in _lines(1.0, 18)]
    assert told == [1, 6, 11, 16, 18]


def test_a_resumed_run_reckons_with_its_own_steps():
    lines = _lines(6.0, 24, done=20)
    assert lines[0].startswith("step 21/24")
    assert lines[1].endswith("6.00 s/step  0:12 left")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00"), (90_061, "1 d 1:01:01")],
)
def test_durations_read_like_a_clock(seconds, text):
    assert duration(seconds) == text


def test_under_a_supervisor_the_log_gets_a_line_every_half_minute():
    now, lines = [0.0], list[str]()
    console = Console(1000, 0, every_s=LOG_EVERY_S, write=lines.append, now=lambda: now[0])
    for step in range(1, 101):
        now[0] += 1.0
        console.log_step(step, FIELDS)
    assert [int(re.findall(r"step (\d+)/", line)[0]) for line in lines] == [1, 31, 61, 91]


def test_a_log_that_takes_no_line_stops_nobody():
    code = "from nsa.artifacts import Console; Console(1, 0).log('a'); Console(1, 0).log('b')"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, check=False)
    assert done.returncode == 0
