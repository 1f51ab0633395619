"""What docs/how-to/nsa-attention.md shows is run, and the sizes it names are the defaults."""

import inspect
import re
from pathlib import Path
from typing import Any

import nsa.attention
from nsa.attention import NativeSparseAttention, nsa_attention, nsa_attention_varlen

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/nsa-attention.md").read_text(encoding="utf-8")


def test_every_block_runs_after_those_before_it():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace("nsa_attention import", "nsa.attention import"), names)
    assert names["y"].shape == (2, 1, 128)
    assert names["out"].shape == (256, 4, 32)
    assert names["blocks"].shape == (1, 256, 2, 16)


def test_the_sizes_it_calls_defaults_are_those_of_all_entry_points():
    said = dict(re.findall(r"(\w+)=(\d+)", PAGE.split("# the paper's sizes")[0].splitlines()[-1]))
    assert len(said) == 5
    for call in (nsa_attention, nsa_attention_varlen, NativeSparseAttention):
        parameters = inspect.signature(call).parameters
        assert {name: str(parameters[name].default) for name in said} == said


def test_every_argument_and_name_it_lists_exists():
    table = PAGE.split("|argument|")[1].split("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row[:60])}
    known = {*inspect.signature(nsa_attention).parameters, "reference", "torch", "auto", "triton"}
    assert {"compression", "doc_ids", "n_sel"} <= named
    assert named <= known | {"k_cmp", "v_cmp"}
    for name in ("NsaCache", "prefill", "decode", "MlpCompression"):
        assert name in nsa.attention.__all__
        assert f"`{name}" in PAGE


def test_the_distributions_readme_names_the_page_that_has_its_arguments_and_the_paper():
    readme = (ROOT / "distributions" / "nsa-attention" / "README.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"all arguments, and measured speed: `(docs/\S+)`", readme)
    page = (ROOT / named).read_text(encoding="utf-8")
    assert "|argument|meaning|" in page
    assert "## Paper / here" in page
