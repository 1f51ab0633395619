"""A keeper that notes one death a look, as where a second process dies just after the look."""

import sys
from collections.abc import Iterator
from itertools import islice

from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper import __main__, keeper
from gonogo.supervise.keeper.children import reap_all


def reap_one() -> Iterator[tuple[int, Ended]]:
    """Yield the first that ended."""
    yield from islice(reap_all(), 1)


if __name__ == "__main__":
    keeper.reap_all = reap_one  # type: ignore[attr-defined]  # imported there, not exported
    sys.exit(__main__.main(sys.argv[1:]))
