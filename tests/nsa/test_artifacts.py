import mmap
import re
from pathlib import Path

import pytest
import torch

from nsa.artifacts import PatientFile, RunArtifacts, memory_report
from nsa.settings import load_settings

CPU = torch.device("cpu")
FIELDS = {"step": 1, "loss": 1.5, "lr": 0.1, "grad_norm": 2.0, "toks_per_s": 9.0, "dt_fetch_s": 0}


def files_of(folder, **environ):
    return RunArtifacts(folder, load_settings({"NSA_TB_DISABLE": "1"} | environ), CPU)


def test_files_that_cannot_be_written_are_told_and_end_nothing(tmp_path, capsys):
    artifacts = files_of(tmp_path / "gone", NSA_TB_DISABLE="0", NSA_MEM_DUMP_EVERY="1")
    artifacts.describe({"dtype": "fp32"}, torch.nn.Linear(2, 2), {})
    artifacts.log_step(FIELDS, [])
    artifacts.log_step(FIELDS, [])
    artifacts.dump_memory("pre", 1)
    full = PatientFile(Path("/dev/full"), b"header\n")
    for _ in range(3):
        full.append(b"row\n")
    told = capsys.readouterr().err
    assert all(name in told for name in ("model.json", "env.json", "mem_pre_step1.json"))
    assert told.count("training.csv ends here") == 1
    assert told.count("full ends here: [Errno 28]") == 1


def test_a_row_that_a_full_disk_tore_is_not_gone_on_with(tmp_path):
    """Its last number and the next step made one that nobody had measured."""
    file = tmp_path / "training.csv"
    for _ in range(2):
        files_of(tmp_path).log_step(FIELDS, [])
        if file.read_bytes().count(b"\n") == 2:
            file.write_bytes(file.read_bytes()[:-5])
    header, *rows = file.read_text().splitlines()
    assert header.startswith("step,loss")
    assert rows == ["1,1.5,0.1,2.0,9.", "1,1.5,0.1,2.0,9.0,0"]


def test_only_rank_0_writes(tmp_path):
    artifacts = files_of(tmp_path, RANK="1", WORLD_SIZE="2", NSA_MEM_DUMP_EVERY="1")
    artifacts.describe({"dtype": "fp32"}, torch.nn.Linear(2, 2), {})
    artifacts.log_step(FIELDS, [(1.0, 0.4)])
    artifacts.dump_memory("post", 1)
    assert not list(tmp_path.iterdir())


def test_memory_of_the_process_grows_by_what_it_holds():
    before = memory_report(CPU)
    held = mmap.mmap(-1, 64 * 2**20)  # the allocator may have kept what was freed before
    for _ in range(64):
        held.write(b"\x01" * 2**20)
    after = memory_report(CPU)
    assert 55 < after["host_rss_mb"] - before["host_rss_mb"] < 80
    (peak_kib,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert after["host_peak_rss_mb"] == pytest.approx(int(peak_kib) / 1024, rel=0.1)
    held.close()
    assert after["gpu_mem_reserved"] == 0
