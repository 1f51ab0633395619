"""What `docs/training.md` shows can be typed as it stands."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from nsa.settings import load_settings
from nsa.train import parse_launch

PAGE = (Path(__file__).parents[2] / "docs/training.md").read_text()
COMMANDS = [
    line.partition("nsa.train ")[2] for line in PAGE.splitlines() if "-m nsa.train " in line
]


def test_the_call_of_the_operation_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["out"].shape == (1, 2048, 12, 64)
    assert names["blocks"].shape == (1, 2048, 2, 16)


@pytest.mark.parametrize("arguments", COMMANDS)
def test_the_trainers_arguments_are_understood(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    launch = parse_launch(shlex.split(arguments), load_settings({}))
    assert launch.config.config == "demo"
    assert launch.run_dir.is_dir()
