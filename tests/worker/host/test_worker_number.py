"""Has every worker of a home a name of its own?"""

from __future__ import annotations

import os
from pathlib import Path

from worker.host.worker_number import take_worker_number


def test_two_workers_of_a_home_have_different_numbers_and_a_dead_one_leaves_its_own(
    tmp_path: Path,
) -> None:
    first, second = take_worker_number(tmp_path), take_worker_number(tmp_path)
    assert first is not None
    assert second is not None
    assert (first[0], second[0]) == (0, 1)
    os.close(first[1])
    third = take_worker_number(tmp_path)
    assert third is not None
    assert third[0] == 0
    for _, descriptor in (second, third):
        os.close(descriptor)
