"""What did the field measure? The figures of the source reports, for the "expected" columns.

A100×2 PCIe, sequences of 2048 bytes, the 125 M model (requirements F, R18, R26, R82). They are
printed beside what was measured and never judge anything.
"""

from dataclasses import dataclass

from service.report.text import duration, loss, number
from service.report.view import RunReport

FIELD_PLANS = frozenset({"m7c-125m"})
"""Plans whose figures can be compared."""

CLAIM = (
    "The 50k report promised 35–40 h for 50 000 steps of 4096 tokens; at its own 38 tokens/s that"
    " is 62 days. What counts is the forecast from measurement."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One figure of the field beside ours."""

    what: str
    field: str
    measured: str


def expected_of(run: RunReport) -> list[Expected]:
    """Return what the field measured and what this run did."""
    reserved = run.worst("peak_reserved_mb")
    fetch = run.worst("median_fetch_s")
    rows = (
        (
            "throughput, median",
            "37–38 tok/s (Gen4 profile: 45–55; floor 39)",
            number(run.least("median_tok_s"), 4, "tok/s"),
        ),
        ("one step", "108–120 s", duration(run.worst("median_step_s"))),
        (
            "memory reserved per GPU",
            "27 GB (batch 2), 18.9 GB (batch 1)",
            "not observed" if reserved is None else f"{reserved / 1000:.1f} GB",
        ),
        ("first loss", "5.6877 (ln 256 = 5.545)", loss(run.first("first_loss"))),
        ("first batch ready", "11.3 s", duration(run.worst("loader_ready_s"))),
        (
            "fetching a batch, median",
            "0.5 ms",
            "not observed" if fetch is None else f"{fetch * 1000:.3g} ms",
        ),
    )
    return [Expected(what=what, field=field, measured=ours) for what, field, ours in rows]
