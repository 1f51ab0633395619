import json
import subprocess
import sys
from pathlib import Path

from nsa.flags import markdown, rows
from nsa.settings import TOGGLES

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_table_says() -> None:
    """After a change of a toggle: python -m nsa.flags --markdown > docs/flags.md."""
    assert (ROOT / "docs" / "flags.md").read_text(encoding="utf-8") == markdown()


def test_every_toggle_is_listed_with_an_effect() -> None:
    listed = {row["name"]: row for row in rows()}
    assert listed.keys() >= TOGGLES.keys()
    assert all(row["effect"] and row["values"] for row in listed.values())
    assert {"CONFIG", "NCCL_*", "PYTORCH_CUDA_ALLOC_CONF"} <= listed.keys()


def test_the_command_prints_one_json_array_without_loading_torch() -> None:
    code = (
        "import runpy, sys; sys.argv = ['nsa.flags', '--json'];"
        "runpy.run_module('nsa.flags', run_name='__main__');"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    printed = json.loads(done.stdout)
    assert printed == rows()
    assert {"name": "NSA_DDP_BUCKET_MB", "default": "25"}.items() <= next(
        row for row in printed if row["name"] == "NSA_DDP_BUCKET_MB"
    ).items()
