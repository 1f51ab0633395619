"""The line that shows which detectors are nearest to their limits."""

from gonogo.cli.describing import near_line
from gonogo.contract.nearness import Near


def test_the_nearest_detectors_are_one_line() -> None:
    rows = {
        "stall": Near(value=12.0, limit=60.0, unit="s"),
        "disk": Near(value=9000.0, limit=5000.0, unit="MB", below=True),
        "memory_leak": Near(value=900.0, limit=1000.0, unit="MB", time_left_s=90.0),
        "frozen": Near(value=1.0, limit=40.0, unit="steps"),
        "slow": Near(blind="nothing to measure yet"),
    }
    line = near_line(rows)
    assert line is not None
    names = [part.split()[0] for part in line.removeprefix("nearest: ").split(", ")]
    assert names == ["memory_leak", "disk", "stall"]
    assert "stall 12 of 60 s" in line
    assert "disk 9000 above 5000 MB" in line


def test_nothing_near_is_no_line() -> None:
    assert near_line({"frozen": Near(value=1.0, limit=40.0), "slow": Near(blind="x")}) is None
