"""Outside gonogo the same calls do nothing: no file, no thread, no import, no collective."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gonogo.trainer
from tests.trainer.runs import environment


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that nobody supervises, in a folder of its own."""
    for name in ("GONOGO_RUN_DIR", "GONOGO_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_whole_training_says_nothing_anywhere(alone: Path) -> None:
    threads = threading.active_count()

    def never(flag: bool) -> bool:
        raise AssertionError("no rank has anything to agree on")

    with gonogo.trainer.attach(model=object(), agree=never) as beat:
        beat.model(object(), dim=3)
        beat.resumed(5)
        for batch in beat.batches([1, 2]):
            with beat.section("forward"), beat.waiting():
                beat.enter("backward")
            beat.step(loss=batch, tokens=1, anything=object())
            beat.eval(1.0)
            beat.checkpoint("nowhere")
            assert not beat.should_save()
            assert not beat.should_halt()
    assert (beat.rank, beat.world_size, beat.steps, beat.run_dir) == (0, 1, None, None)
    assert (beat.resume_from, beat.checkpoint_path(), dict(beat.order)) == (None, None, {})
    assert beat.finite
    assert list(alone.iterdir()) == []
    assert threading.active_count() == threads


def test_a_section_that_there_is_none_of_is_refused_everywhere(alone: Path) -> None:
    beat = gonogo.trainer.attach()
    with pytest.raises(ValueError, match="no section 'sideward'; there are backward"):
        beat.enter("sideward")  # type: ignore[arg-type]


def test_a_call_costs_nothing(alone: Path) -> None:
    """Nothing is opened, started or asked of the system."""
    code = (
        "import sys, gonogo.trainer\n"
        "beat = gonogo.trainer.attach()\n"
        "seen = []\n"
        "sys.addaudithook(lambda event, _: seen.append(event))\n"
        "for _ in range(1000): beat.step(loss=1.0, tokens=1); beat.should_halt()\n"
        "assert seen == [], set(seen)\n"
        "open(__import__('os').devnull).close()\n"
        "assert 'open' in seen\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(None))


LIGHT = """
import sys
import gonogo.trainer
with gonogo.trainer.attach({where}) as beat:
    beat.step(loss=1.0)
heavy = {{"pydantic", "yaml", "torch", "numpy", "transformers", "lightning", "accelerate", "httpx"}}
print(sorted(heavy & sys.modules.keys()))
ours = {{name for name in sys.modules if name.startswith("gonogo")}}
print(sorted(name for name in ours if not name.startswith(("gonogo.trainer", "gonogo."))))
print(sorted(name for name in ours if name.count(".") and not name.startswith("gonogo.trainer")))
"""


@pytest.mark.parametrize("supervised", [False, True], ids=["alone", "supervised"])
def test_nothing_is_imported_but_the_standard_library(tmp_path: Path, supervised: bool) -> None:
    code = LIGHT.format(where=repr(str(tmp_path)) if supervised else "")
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, check=True, env=environment(None), capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["[]", "['gonogo']", "[]"]
    assert (tmp_path / "heartbeat_rank0.jsonl").exists() is supervised
