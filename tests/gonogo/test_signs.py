"""Which known words did a program say when it failed?"""

from __future__ import annotations

import time

from gonogo.signs import signs_in


def test_a_long_line_holds_up_nobody_who_looks_for_signs() -> None:
    """The end of a log may be one line; the keeper reads it, and so does the service."""
    began = time.process_time()
    assert signs_in("index " * 2**15) == set()
    assert time.process_time() - began < 2.0
    assert signs_in("index 4 is out of bounds for dimension 0 with size 4") == {"index_error"}
