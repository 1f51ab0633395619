"""The distribution nsa-attention: built, installed where nothing of ours is, and used."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nsa.attention.settings import c_compiler

ROOT = Path(__file__).parents[2]
HOME = Path("distributions") / "nsa-attention"
LIMIT_S = 300

USED = """
import importlib.util, json, sys
import torch
import nsa_attention
from nsa_attention import counters
from nsa_attention import (
    NativeSparseAttention, NsaCache, Sizes, decode, nsa_attention as attend, nsa_attention_varlen,
    prefill,
)

told = {
    "file": nsa_attention.__file__,
    "ours": [name for name in ("nsa", "gonogo", "service", "worker")
             if importlib.util.find_spec(name)],
    "triton": "triton" in sys.modules,
}
torch.manual_seed(0)
sizes = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
q = torch.randn(1, 100, 4, 8, requires_grad=True)
keys_values = [torch.randn(1, 100, 2, 8, requires_grad=True) for _ in range(6)]
gates = torch.rand(1, 100, 4, 3)
leaves = (q, *keys_values)
out = attend(q, *keys_values, gates, **sizes)
grads = torch.autograd.grad(out.sin().sum(), leaves)
plain = attend(q, *keys_values, gates, **sizes, backend="reference")
wanted = torch.autograd.grad(plain.sin().sum(), leaves)
told["forward"] = (out - plain).abs().max().item()
told["backward"] = max((x - y).abs().max().item() for x, y in zip(grads, wanted))

edges = torch.tensor([0, 30, 100], dtype=torch.int32)
flat = [x.detach()[0] for x in (*leaves, gates)]
packed = nsa_attention_varlen(*flat, edges, 70, **sizes)
alone = [attend(*(x[None, a:b] for x in flat), **sizes)[0] for a, b in ((0, 30), (30, 100))]
told["varlen"] = (packed - torch.cat(alone)).abs().max().item()

cache = NsaCache(B=1, G=2, D=8, capacity=100, sizes=Sizes(**sizes))
rows = [x.detach() for x in (*leaves, gates)]
prefill(*(x[:, :99] for x in rows), cache)
cache.append(*(x[:, 99:] for x in rows[1:7]))
last, _ = decode(rows[0][:, 99:], rows[7][:, 99:], cache)
small = NsaCache(B=1, G=2, D=16, capacity=3, sizes=Sizes(**sizes))
small.append(*(torch.randn(1, 3, 2, 16) for _ in range(6)))
decode(torch.randn(1, 1, 4, 16), torch.rand(1, 1, 4, 3), small)
told["served"] = sorted({row.path for row in counters.snapshot() if row.operation == "decode"})
told["decode"] = (last - out[:, 99:]).abs().max().item()

layer = NativeSparseAttention(24, 4, 2, 8, compression="mlp", **sizes)
x = torch.randn(2, 60, 24)
y = layer(x)
cache = layer.start_cache(2, 60)
with torch.no_grad():
    steps = [layer(x[:, :40], cache), *(layer(x[:, t : t + 1], cache) for t in range(40, 60))]
told["module"] = (torch.cat(steps, dim=1) - y).abs().max().item()
compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
told["compile"] = (compiled(x) - y).abs().max().item()
print(json.dumps(told))
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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what it is made of (building writes beside it), by way of an sdist."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "src", "build", "LICENSE", "*.egg-info")
    shutil.copytree(ROOT / "nsa" / "attention", tree / "nsa" / "attention", ignore=ignored)
    shutil.copytree(ROOT / HOME, tree / HOME, ignore=ignored)
    shutil.copy(ROOT / "LICENSE", tree)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tree / "dist")]
    built = subprocess.run(
        command, cwd=tree / HOME, check=False, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = (tree / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, PyTorch, and nothing of ours."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    there = Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))
    # PyTorch is a gigabyte: it is read where it is. Files that install us in place are not obeyed
    # in a folder that is only added to the path.
    (there / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    interpreter = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--no-deps"]
    subprocess.run(
        [*pip, "--no-index", "--disable-pip-version-check", "-q", str(wheel)],
        check=True,
        timeout=LIMIT_S,
    )
    return interpreter


def _run(python: Path, program: str, *arguments: str, cwd: Path) -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-W", "ignore", "-c", program, *arguments],
        cwd=cwd,
        env=env | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def test_the_wheel_holds_the_attention_alone_and_needs_pytorch_alone(wheel: Path) -> None:
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
def test_it_is_used_where_nothing_of_ours_is(python: Path, tmp_path: Path) -> None:
    told = _run(python, USED, cwd=tmp_path)
    assert told.pop("file").startswith(str(python.parents[1]))
    assert told.pop("ours") == []
    assert told.pop("triton") is False
    assert told.pop("served") == (["c", "torch"] if c_compiler() else ["torch"])
    assert told.keys() == {"forward", "backward", "varlen", "decode", "module", "compile"}
    assert max(told.values()) < 2e-5, told


@pytest.mark.long
def test_an_exported_checkpoint_is_read_there_by_transformers(
    python: Path, tmp_path: Path, train_here: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from nsa.checkpoint import load_checkpoint, newest_checkpoint
    from nsa.config import build_config
    from nsa.export import main
    from nsa.model import build_model
    from nsa.model.generation import Sampling, generate

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
