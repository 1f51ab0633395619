"""What `gonogo show` says of where the time went."""

from __future__ import annotations

from gonogo.cli.judging import goodput_line
from gonogo.contract.goodput import Part, goodput_of


def test_a_run_that_only_ended_is_not_told_to_have_halted() -> None:
    """The words are those of docs/how-to/report.md, the report and the pages."""
    spent = {Part.PRODUCTIVE: 60.0, Part.HALT: 20.0, Part.BETWEEN_STEPS: 12.0, Part.STALL: 8.0}
    assert goodput_line(goodput_of(spent)) == (
        "60.0% effective; halt and end 20 s, between steps 12 s, stall until found 8 s"
    )


def test_where_time_is_unknown_the_share_is_the_least_that_it_can_be() -> None:
    """Unknown time counts as lost; as the report and the pages have it."""
    line = goodput_line(goodput_of({Part.PRODUCTIVE: 90.0, Part.UNKNOWN: 10.0}))
    assert line == "at least 90.0% effective; unknown 10 s"
    assert goodput_line(goodput_of({Part.PRODUCTIVE: 99.0, Part.UNKNOWN: 1.0})).startswith("99.0%")
