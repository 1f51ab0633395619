"""How near is a halt? The share of the way, and the detectors that are nearest."""

import pytest

from gonogo.contract.finding import Near


@pytest.mark.parametrize(
    ("near", "share"),
    [
        (Near(value=30.0, limit=60.0, unit="s"), 0.5),
        (Near(value=80.0, limit=40.0, below=True), 0.5),
        (Near(value=0.0, limit=40.0, below=True), None),
        (Near(value=1.0), None),
        (Near(blind="nothing to measure yet"), None),
    ],
)
def test_the_share_is_how_much_of_the_way_is_gone(near: Near, share: float | None) -> None:
    assert near.share == share
