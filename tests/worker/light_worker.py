"""The worker as `python -m worker` runs it, but with the light keeper and a probe that is known.

`python -m tests.worker.light_worker [SECONDS]`: how often it asks by itself.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

import worker.__main__ as application
from worker.claims import loop
from worker.claims.claimer import Claimer
from worker.host.preflight import Probe, ProbeStore


class KnownProbe(ProbeStore):
    """What nsa.probe would say after seconds of loading torch."""

    def start(self, slots: Sequence[str] = ()) -> None:
        """Measure nothing."""

    def result(self, slots: Sequence[str] = ()) -> Probe:
        """Return it at once."""
        return Probe(peak_flops=1e12, torch="2", collect_env="x")


if __name__ == "__main__":
    loop.POLL_S = float(sys.argv[1]) if len(sys.argv) > 1 else 0.3
    application.ProbeStore = KnownProbe  # type: ignore[misc]
    application.Claimer = functools.partial(  # type: ignore[assignment,misc]
        Claimer, keeper_module="tests.worker.light_keeper"
    )
    sys.exit(application.main())
