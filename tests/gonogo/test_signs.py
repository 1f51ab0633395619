"""Which known words did a program say when it failed?"""

from __future__ import annotations

from gonogo.signs import signs_in
from tests.growth import grows_with_size


def test_a_long_line_holds_up_nobody_who_looks_for_signs() -> None:
    """The end of a log may be one line; the keeper reads it, and so does the service."""
    assert signs_in("gloo/" * 2**10) == set()
    assert grows_with_size(lambda times: signs_in("gloo/" * times), 2**11)
