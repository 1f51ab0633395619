import json
import subprocess
import sys
from pathlib import Path

from nsa.flags import rows
from nsa.settings import TOGGLES

ROOT = Path(__file__).parents[2]


OF_THE_RUNBOOK = {
    *("NSA_PREFILL_BATCHED", "NSA_SEL_RANGES_V2", "NSA_DISABLE_AUX_STATS", "NSA_TB_DISABLE"),
    *("NSA_DISABLE_CSV_LOGS", "NSA_USE_FA2", "NSA_SDPA_NO_FLASH", "NSA_SDPA_FLASH_ONLY"),
    *("NSA_DDP_STATIC_GRAPH", "NSA_DDP_FIND_UNUSED", "NSA_DDP_BUCKET_MB", "NSA_DDP_COMPRESS"),
    *("NSA_DDP_SAFE_MODE", "NSA_DDP_DISABLE_GC", "NSA_ACCUM", "NSA_LR", "NSA_MEM_DUMP_EVERY"),
    *("NSA_SCALER_INIT_SCALE", "NSA_SCALER_GROWTH_INTERVAL", "NSA_SCALER_GROWTH_FACTOR"),
    "NSA_SCALER_BACKOFF_FACTOR",
}
"""The toggles of R45."""


def test_every_toggle_is_listed_with_an_effect():
    listed = {row["name"]: row for row in rows()}
    assert listed.keys() >= TOGGLES.keys() >= OF_THE_RUNBOOK
    assert all(row["effect"] and row["values"] for row in listed.values())
    assert {"CONFIG", "NCCL_*", "PYTORCH_CUDA_ALLOC_CONF"} <= listed.keys()


def test_the_command_prints_one_json_array_without_loading_torch():
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
