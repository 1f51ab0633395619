"""Why is a verdict not GO? The sentence, the guilty rank, its last line, and where to look."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import Cause, CriterionOutcome, CriterionResult, Verdict
from gonogo.contract.finding import Finding
from gonogo.contract.outcome import Actor, Outcome, OutcomeCode
from gonogo.contract.records import RankExit
from gonogo.judge.follow_up.explanation import cause_of, describe_cause, guilty_rank, last_line


def finding(severity: str = "halt", **more: Any) -> Finding:
    return Finding.model_validate(
        {"detector": "stall", "severity": severity, "rank": 1, "section": "backward", "step": 12,
         "at": 1.0, "key": f"k{severity}", "text": "rank 1 stands in backward", **more}
    )  # fmt: skip


def outcome(code: str = "stalled", by: str = "watchdog", text: str = "") -> Outcome:
    return Outcome(code=OutcomeCode(code), actor=Actor(by), text=text)


def result(name: str, said: str, severity: str = "required") -> CriterionResult:
    return CriterionResult(
        id=name, severity=GateSeverity(severity), outcome=CriterionOutcome(said), evidence="because"
    )


def described(*findings: Finding, **more: Any) -> Cause:
    found = describe_cause(
        Verdict.NO_GO, findings, more.pop("outcome", outcome()), more.pop("criteria", []), **more
    )
    assert found is not None
    return found


def test_a_go_has_no_cause() -> None:
    assert describe_cause(Verdict.GO, [finding("warn")], outcome("completed"), []) is None


CAUSES = [
    ([finding("warn"), finding()], outcome(), [],
     "stall (rank 1, backward): rank 1 stands in backward"),
    ([], outcome("nonzero_exit", "trainer", "rank 0 ended with exit code 1"), [],
     "nonzero_exit by trainer: rank 0 ended with exit code 1"),
    ([], outcome("completed", "trainer"), [result("a", "inconclusive"), result("b", "fail")],
     "criterion b fail: because"),
    ([], outcome("completed", "trainer"), [result("a", "pass"), result("b", "error")],
     "criterion b error: because"),
    ([], outcome("completed", "trainer"),
     [result("waived", "inconclusive", "conditional"), result("bars", "inconclusive")],
     "criterion bars inconclusive: because"),
    ([], outcome("completed", "trainer"),
     [result("grey", "fail", "conditional"), result("bars", "inconclusive")],
     "criterion bars inconclusive: because"),
    ([], outcome("completed", "trainer"),
     [result("waived", "inconclusive", "conditional"), result("grey", "fail", "conditional"),
      result("shown", "fail", "advisory")],
     "criterion grey fail: because"),
    ([], None, [], "it has not ended"),
    ([finding(detector="memory_leak", act="at_checkpoint"), finding(act="now")],
     outcome(), [], "stall (rank 1, backward): rank 1 stands in backward"),
]  # fmt: skip


@pytest.mark.parametrize(("findings", "ended", "criteria", "text"), CAUSES)
def test_the_sentence(
    findings: list[Finding], ended: Outcome | None, criteria: list[CriterionResult], text: str
) -> None:
    assert cause_of(findings, ended, criteria) == text


def test_the_guilty_rank_is_the_one_that_halted_else_the_first_that_ended_badly() -> None:
    exits = {
        "0": RankExit(code=1, at=5.0),
        "1": RankExit(code=None, signal=9, at=4.0),
        "2": RankExit(code=0, at=1.0),
    }
    assert guilty_rank([finding(rank=3)], exits) == 3
    assert guilty_rank([finding(rank=None)], exits) is None, "a halt that names nobody"
    assert guilty_rank([finding("warn")], exits) == 1
    waited = finding(detector="memory_leak", act="at_checkpoint", rank=0)
    assert guilty_rank([waited, finding(rank=3)], exits, outcome()) == 3, "what ended the run"
    assert guilty_rank([], {"0": RankExit(code=0, at=1.0)}) is None


LOGS = [
    ("a\nb\n", "b"),
    ("\x1b[31mred \x1b]0;title\x07alert\x1b[0m\n", "red alert"),
    ("Error: no\n[rank1]:[W1120 20:26:56.1 x.cpp:1] Warning: bye\n", "Error: no"),
    (
        "terminate called after\n  what():  no match\n\nFatal Python error: Aborted\n\nThread 0x7f:"
        '\n  File "x.py", line 1 in f\n\nExtension modules: a.b (total: 1)\n',
        "what():  no match",
    ),
    (
        "[W1123 07:28:01.1 socket.cpp:764] [c10d] no address\n[E1123 07:28:16.3 socket.cpp:1028]"
        " [c10d] The client socket has timed out\n[W1123 07:28:16.3 TCPStore.cpp:340] [c10d]"
        " retrying\nException raised from throwTimeoutError at /x/socket.cpp:1030 (most recent call"
        " first):\nframe #0: c10::Error::Error() + 0x9d (0x7f9c in /x/libc10.so)\n"
        "<omitting python frames>\nframe #38: _start + 0x21 (0x55 in /x/python)\n\n",
        "[E1123 07:28:16.3 socket.cpp:1028] [c10d] The client socket has timed out",
    ),
    ("Traceback (most recent call last):\n  File\nValueError: ü ≥ 1\n", "ValueError: ü ≥ 1"),
]


@pytest.mark.parametrize(("text", "line"), LOGS)
def test_the_last_line_that_says_something_is_printable_and_bounded(
    text: str, line: str | None
) -> None:
    assert last_line(text) == line


def test_the_log_of_the_guilty_rank_is_quoted_else_the_launcher_s() -> None:
    logs = {"rank1.log": "boom\n", "torchrun.log": "ChildFailedError\n"}
    found = described(finding(), read_tail=lambda name: logs.get(name, ""))
    assert (found.rank, found.log, found.line) == (1, "rank1.log", "boom")
    found = described(finding(rank=0), read_tail=lambda name: logs.get(name, ""))
    assert (found.log, found.line) == ("torchrun.log", "ChildFailedError")
    assert "last line of torchrun.log: ChildFailedError" in found.told()
    found = described(finding(), read_tail=lambda name: "")
    assert (found.log, found.line) == (None, None)


def test_an_unknown_failure_says_so_and_lists_the_evidence_in_order() -> None:
    halt = finding(
        evidence=["evidence/1/heartbeats_rank1.txt", "evidence/1/stacks_rank0.txt",
                  "evidence/1/stacks_rank1.txt", "evidence/1/collectives.txt"],
    )  # fmt: skip
    found = described(halt, read_tail=lambda name: "boom" if name == "rank1.log" else "")
    assert not found.unknown, "a hang whose rank is named"
    assert found.told().startswith("stall (rank 1, backward)")
    nobody = described(finding(rank=None))
    assert nobody.unknown
    assert nobody.told().startswith("unknown failure: stall (backward)")
    assert found.look == [
        "rank1.log",
        "evidence/1/collectives.txt",
        "evidence/1/stacks_rank1.txt",
        "evidence/1/stacks_rank0.txt",
        "evidence/1/heartbeats_rank1.txt",
        "torchrun.log",
    ]


TORCHRUN = """step 3 loss 2.5
[rank1]: Traceback (most recent call last):
[rank1]: ValueError: no such word
[rank0]: Traceback (most recent call last):
[rank0]: RuntimeError: closed by peer
E1121 17:35:59.316000 20042 torch/distributed/elastic/multiprocessing/api.py:1002] failed
Traceback (most recent call last):
  File "/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org
============================================================
"""


@pytest.mark.parametrize(
    ("rank", "line"),
    [
        (0, "RuntimeError: closed by peer"), (1, "ValueError: no such word"),
        (2, "step 3 loss 2.5"), (None, "ValueError: no such word"),
    ],
)  # fmt: skip
def test_a_launcher_s_report_is_nobodys_last_word(rank: int | None, line: str) -> None:
    logs = {"rank0.log": TORCHRUN}
    found = described(finding(rank=rank), read_tail=lambda name: logs.get(name, ""))
    assert (found.log, found.line) == ("rank0.log", line)
