"""The example runs, for tests of the ledger."""

from __future__ import annotations

from tests.judge.conftest import copy_run

__all__ = ["copy_run"]
