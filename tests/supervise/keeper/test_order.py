"""Does a keeper say in a sentence what it cannot keep, instead of a traceback?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.contract.order import Order
from gonogo.supervise.keeper.__main__ import REQUIRED, parse_order
from tests.supervise.runs import KEEPER, ROOT, build_test_order


def test_what_a_keeper_requires_is_what_every_reader_of_an_order_requires() -> None:
    fields = Order.model_fields.items()
    assert list(REQUIRED) == [name for name, field in fields if field.is_required()]


def test_a_whole_order_is_taken_as_it_is() -> None:
    document = build_test_order("run_1").document()
    assert parse_order(json.dumps(document).encode()) == document


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"steps": 20, "world_size": 1, "train": {}, "phase": "p"}', "lacks experiment, run, tok"),
        ("[]", "no JSON object"),
        ("{", "bad order"),
    ],
    ids=["a part of it", "a list", "torn"],
)
def test_an_order_that_is_none_ends_the_keeper_with_2_and_a_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "order.json").write_text(text)
    env = {k: v for k, v in os.environ.items() if not k.startswith("GONOGO_")}
    command = [sys.executable, "-m", KEEPER, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "keeper.json").exists()


@pytest.mark.parametrize("value", ["20", None, 1.5])
def test_a_count_that_is_no_number_is_named(value: object) -> None:
    document = {**build_test_order("run_1").document(), "world_size": value}
    with pytest.raises(ValueError, match="world_size"):
        parse_order(json.dumps(document).encode())
