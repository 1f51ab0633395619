"""What a host refuses for a while is logged once."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from gonogo.supervise.transient_errors import TransientErrors


def test_the_same_failure_is_said_once_until_it_went_well_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transient = TransientErrors(logging.getLogger("test"))

    def fail() -> int:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    assert [transient.tried("it", fail, 7) for _ in range(3)] == [7, 7, 7]
    assert transient.failures == 3
    assert len(caplog.messages) == 1
    assert transient.tried("it", lambda: 1, 7) == 1
    assert transient.tried("it", fail, 7) == 7
    assert len(caplog.messages) == 3
    with pytest.raises(ZeroDivisionError):
        transient.tried("it", lambda: 1 // 0, 7)
