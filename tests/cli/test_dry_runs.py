"""A dry run shows what would run, and what the profile leaves out of the gates."""

from __future__ import annotations

import re

import pytest

from gonogo.cli.output import out
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane

OF_CPU = """\
profile cpu leaves out of the gates:
phase     left out                                    why
smoke     utilisation, balance                        the profile has no devices
extended  utilisation, balance, memory, memory_slope  the profile has no devices
"""


def dry_run(gonogo: Gonogo, *arguments: str) -> str:
    said = gonogo("submit", *arguments, "--dry-run")
    assert (said.code, said.err) == (0, "")
    return re.sub(r" +$", "", said.out, flags=re.MULTILINE)


@pytest.mark.parametrize("width", [80, 200])
def test_what_the_profile_leaves_out_is_told(
    plane: Plane, gonogo: Gonogo, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    del plane
    monkeypatch.setattr(out, "_width", width)
    assert OF_CPU in dry_run(gonogo, "m7c-125m", "--set", "profile=cpu")
    said = dry_run(gonogo, "demo")
    assert re.search(r"^smoke +throughput +the profile has no floor$", said, re.MULTILINE)
    assert re.search(r"^smoke +utilisation +the profile has no devices$", said, re.MULTILINE)


def test_a_threshold_that_the_floor_contradicts_is_told(plane: Plane, gonogo: Gonogo) -> None:
    del plane
    high = "phases.smoke.gate.throughput.fail_below=50"
    said = dry_run(gonogo, "m7c-125m", "--set", high)
    row = "smoke  throughput.fail_below  50 contradicts the floor of a100-pcie-gen4, 45\n"
    assert f"why\n{row}every order" in said


def test_of_gates_that_stay_whole_nothing_is_told(plane: Plane, gonogo: Gonogo) -> None:
    del plane
    said = dry_run(gonogo, "m7c-125m")
    assert "utilisation" in said
    assert "leaves out" not in said
