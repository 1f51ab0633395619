"""The distribution nsa-attention: built, installed where nothing of ours is, and used."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

from nsa.attention.settings import c_compiler
from nsa.checkpoint import load_checkpoint, newest_checkpoint
from nsa.config import build_config
from nsa.export import main
from nsa.model import build_model
from nsa.model.generation import Sampling, generate
from tests.nsa.runs import ROOT

HOME = Path("distributions") / "nsa-attention"
LIMIT_S = 300

USED = """
import importlib.util, json, sys
import torch
import nsa_attention
from nsa_attention import NativeSparseAttention, counters, nsa_attention as attend

triton = "triton" in sys.modules
torch.manual_seed(0)
sizes = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
leaves = [torch.randn(1, 100, n, 16, requires_grad=True) for n in (4, 2, 2, 2, 2, 2, 2)]
gates = torch.rand(1, 100, 4, 3)
found = []
for backend in ("auto", "reference"):
    out = attend(*leaves, gates, **sizes, backend=backend)
    found += [[out, *torch.autograd.grad(out.sin().sum(), leaves)]]
off = {"operation": max((x - y).abs().max().item() for x, y in zip(*found))}

layer = NativeSparseAttention(24, 4, 2, 16, compression="mlp", **sizes)
x = torch.randn(1, 60, 24)
y = layer(x)
cache = layer.start_cache(1, 60)
with torch.no_grad():
    steps = [layer(x[:, :40], cache), *(layer(x[:, t : t + 1], cache) for t in range(40, 60))]
off["module"] = (torch.cat(steps, dim=1) - y).abs().max().item()
compiled = torch.compile(layer, backend="aot_eager")
off["compile"] = (compiled(x) - y).abs().max().item()
print(json.dumps({
    "off": off, "file": nsa_attention.__file__, "triton": triton,
    "ours": [name for name in ("nsa", "gonogo", "service", "worker")
             if importlib.util.find_spec(name)],
    "served": sorted({row.path for row in counters.snapshot() if row.operation == "decode"}),
}))
"""

HF = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
import nsa_attention.hf
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
ids = torch.tensor([list(b"def main(")])
out = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
with torch.no_grad():
    logits = model(ids).logits
told = {"class": type(model).__module__, "ids": out[0].tolist(), "sum": logits.sum().item()}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of what it is made of (building writes beside it), by way of an sdist."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "src", "build", "LICENSE", "*.egg-info")
    shutil.copytree(ROOT / "nsa" / "attention", tree / "nsa" / "attention", ignore=ignored)
    shutil.copytree(ROOT / HOME, tree / HOME, ignore=ignored)
    shutil.copy(ROOT / "LICENSE", tree)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tree / "dist")]
    subprocess.run(command, cwd=tree / HOME, check=True, timeout=LIMIT_S)
    (found,) = (tree / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment with the wheel, PyTorch, and nothing of ours."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    there = Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))
    # PyTorch is a gigabyte: it is read where it is. Files that install us in place are not obeyed
    # in a folder that is only added to the path.
    (there / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    interpreter = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--no-deps"]
    offline = ["--no-index", "--disable-pip-version-check", "-q", str(wheel)]
    subprocess.run([*pip, *offline], check=True, timeout=LIMIT_S)
    return interpreter


def _run(python, program, *arguments, cwd):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_the_wheel_holds_the_attention_alone_and_needs_pytorch_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (meta,) = (name for name in names if name.endswith("/METADATA"))
        lines = archive.read(meta).decode().splitlines()
        sources = [archive.read(name).decode() for name in names if name.endswith(".py")]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"nsa_attention"}
    sources = (f"nsa_attention/cpu/{name}.c" for name in ("decode", "pieces"))
    assert {"nsa_attention/py.typed", *sources} <= set(names)
    assert any(name.endswith("/LICENSE") for name in names)
    needed = [line for line in lines if line.startswith("Requires-Dist")]
    assert [line for line in needed if "extra ==" not in line] == ["Requires-Dist: torch>=2.6"]
    assert {line.split()[-1] for line in needed[1:]} == {'"triton"', '"hf"'}
    assert not [text for text in sources if "from nsa." in text or "import nsa." in text]


@pytest.mark.long
def test_it_is_used_where_nothing_of_ours_is(python, tmp_path):
    told = _run(python, USED, cwd=tmp_path)
    assert told["file"].startswith(str(python.parents[1]))
    assert (told["ours"], told["triton"]) == ([], False)
    assert told["served"] == (["c"] if c_compiler() else ["torch"])
    assert max(told["off"].values()) < 2e-5, told


@pytest.mark.long
def test_an_exported_checkpoint_is_read_there_by_transformers(python, tmp_path, train_here, capsys):
    train_here("trained", checkpoint={"every_steps": 4})
    assert main([str(tmp_path / "trained"), str(tmp_path / "exported")]) == 0
    told = _run(python, HF, str(tmp_path / "exported"), cwd=tmp_path)
    assert told["class"] == "nsa_attention.hf"
    snapshot = load_checkpoint(newest_checkpoint(tmp_path / "trained"))
    ours = build_model(build_config(snapshot.config)).eval()
    ours.load_state_dict(snapshot.model)
    prompt = torch.tensor([list(b"def main(")])
    drawn = list(generate(ours, prompt, 20, sampling=Sampling(temperature=0)))
    assert told["ids"] == [*prompt[0].tolist(), *(int(byte) for byte in drawn)]
    with torch.no_grad():
        assert told["sum"] == pytest.approx(ours(prompt).sum().item(), rel=1e-5)
