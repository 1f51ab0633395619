"""The worker as `python -m worker` runs it, but with the light keeper."""

from __future__ import annotations

import functools
import sys

import worker.__main__ as application
from worker.claim import Desk

if __name__ == "__main__":
    application.Desk = functools.partial(  # type: ignore[assignment,misc]
        Desk, keeper_module="tests.worker.light_keeper"
    )
    sys.exit(application.main())
