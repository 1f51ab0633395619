"""Are the figures in the pages those of the code? A phrase is built from what the code holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.campaign import MOST_REPEATS
from gonogo.contract.goodput import UNKNOWN_SHARE
from gonogo.contract.watch import TABLE, Place, ProgramKind
from gonogo.judge.compare.compare import ONE_RUN_RATIO, SHOWN_RATIO
from gonogo.judge.compare.unit import MARGIN, WARMUP_STEPS
from gonogo.judge.follow_up.decide import IN_VAIN
from gonogo.supervise.end_request import HALT_LIMIT_S
from gonogo.supervise.watcher.metrics_file import SUSPECT_S
from gonogo.trainer.heartbeat_writer import KEPT_BYTES
from gonogo.trainer.run_dir import GO_LIMIT_S, HALTED_CODE, NO_GO_CODE
from gonogo.watch.registry import BASIC
from service.conductor.leases import LEASE_S
from service.http.answers import BODY_BYTES, LARGER
from service.http.dependencies import KEPT_S

PRINTED_S = TABLE[Place.PRINTED_STEP][ProgramKind.PRINTED].seconds or 0.0
DOCS = Path(__file__).parents[2] / "docs"
BEYOND = ", ".join(f"{end.strip('/')} {size >> 20} MiB" for end, size in LARGER)
SPAN = {
    5.0: "five seconds",
    10.0: "ten seconds",
    30.0: "half a minute",
    60.0: "a minute",
    300.0: "five minutes",
} | {1800.0: "half an hour"}
NUMBER = {10: "ten", 11: "eleven"}
SIZE = {2**20: "megabyte"}
SHARE = {0.01: "a hundredth", 0.8: "four times in five"}
NOT_SAID = "?"
"""A figure that has changed, and for which there is no word here yet."""


def span(seconds: float) -> str:
    return SPAN.get(seconds, NOT_SAID)


def percent(share: float) -> str:
    return f"{100 * share:g} %"


@pytest.mark.parametrize(
    ("page", "phrase"),
    [
        ("reference/rest", f"of at most {BODY_BYTES >> 20} MiB ({BEYOND})"),
        ("reference/rest", f"creates once in {KEPT_S / 3600:g} hours"),
        ("how-to/compare", f"before the first look, 3 to {MOST_REPEATS}"),
        ("how-to/compare", f"is alike within {percent(SHOWN_RATIO)}"),
        ("how-to/compare", f"first steps that are left out; default {WARMUP_STEPS}"),
        ("how-to/compare", f"the difference that matters; default {percent(MARGIN)}"),
        ("how-to/compare", f"widened by {percent(ONE_RUN_RATIO)} either way"),
        ("explanation/verdicts", f"goes {span(SUSPECT_S)} after the last suspicion"),
        ("explanation/verdicts", f"silence of its host for {span(LEASE_S)}"),
        ("explanation/verdicts", f"those that evaluate or save have {span(HALT_LIMIT_S)}"),
        (
            "explanation/decisions/0005-a-silent-host-is-not-dead",
            f"After `lease_s` ({LEASE_S:g} s)",
        ),
        ("how-to/report", f"where it is over {SHARE.get(UNKNOWN_SHARE, NOT_SAID)} the figure"),
        ("reference/heartbeats", f"Without it after {GO_LIMIT_S:g} s: exit code {NO_GO_CODE}"),
        ("reference/heartbeats", f"write `halt_seen`, exit with code {HALTED_CODE}"),
        ("reference/heartbeats", f"the {NUMBER.get(len(BASIC), NOT_SAID)} basic ones alone"),
        ("how-to/run", f"halted after {span(PRINTED_S)}"),
        ("how-to/run", f"evaluate or save have {span(HALT_LIMIT_S)}"),
        ("how-to/runbook", f"{NUMBER.get(IN_VAIN, NOT_SAID)} in a row without a later checkpoint"),
        ("how-to/attach", f"wait in memory, up to a {SIZE.get(KEPT_BYTES, NOT_SAID)},"),
    ],
)
def test_a_figure_of_a_page_is_that_of_the_code(page: str, phrase: str) -> None:
    assert phrase in (DOCS / f"{page}.md").read_text()
