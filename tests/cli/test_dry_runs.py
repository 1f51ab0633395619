"""A dry run shows what would run, and what the profile leaves out of the gates."""

from __future__ import annotations

import re

from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane


def dry_run(gonogo: Gonogo, *arguments: str) -> str:
    said = gonogo("submit", *arguments, "--dry-run")
    assert (said.code, said.err) == (0, "")
    return re.sub(r" +$", "", said.out, flags=re.MULTILINE)


def test_what_the_profile_leaves_out_is_listed(plane: Plane, gonogo: Gonogo) -> None:
    del plane
    said = dry_run(gonogo, "m7c-125m", "--set", "profile=cpu")
    assert "\nprofile cpu leaves out of the gates:\n" in said
    assert "\n  smoke: utilisation: the profile has no devices\n" in said
    assert "\n  smoke: throughput: the profile has no floor\n" in dry_run(gonogo, "demo")
    said = dry_run(gonogo, "m7c-125m", "--set", "phases.smoke.gate.throughput.fail_below=50")
    assert "throughput.fail_below: 50 contradicts the floor of a100-pcie-gen4, 45\n" in said


def test_of_gates_that_stay_whole_nothing_is_told(plane: Plane, gonogo: Gonogo) -> None:
    del plane
    said = dry_run(gonogo, "m7c-125m")
    assert "utilisation" in said
    assert "leaves out" not in said
