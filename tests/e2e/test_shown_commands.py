"""Every command that README and docs show is typed, word by word, on a gonogo that has been used.

A placeholder (`ID`, `RUN`, `DIR`, …) becomes what a reader would put there; a call in the text that
leaves out what a command needs only names it, and is asked for its help. A line that no row here
knows how to type is typed as it stands, so a page can show nothing that nobody tried.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from gonogo.cli.app import app
from tests.e2e.lab import Lab, Spoken, clean_environ, one_phase_plan
from tests.laws.test_docs import PAGES, ROOT, command_lines, typed_lines

ENVIRON = {"GONOGO_WORKER_ALLOW": "any"}

PROGRAM = """
import os, sys, time
steps = sys.argv[1] if sys.argv[-1].isdigit() else os.environ["STEPS"]
for step in range(1, int(steps) + 1):
    time.sleep(0.002)
    print(f"iter {step}: loss {5 - step / 9000:.4f}")
"""

WORDS = {
    "ID": "{experiment}",
    "EXP": "{experiment}",
    "RUN": "{run}",
    "RUN_DIR": "{dir}",
    "DIR": "{dir}",
    "DECISION": "{decision}",
    "FILE": "plan.yaml",
    "PLAN": "demo",
    "NAME": "demo",
    "N": "0",
    "WHY": "seen",
    "EXP:PHASE": "{experiment}:smoke",
    "COMMAND": "submit",
}
"""What a reader puts in the place of a word."""

TYPED = {
    'curl -H "Authorization: Bearer $(cat ~/.gonogo/key)"'
    " http://127.0.0.1:8750/api/v1/experiments": (
        'curl -sSf -H "Authorization: Bearer $(cat {home}/key)" {url}/api/v1/experiments'
    ),
    "gonogo campaign show ID": "gonogo campaign show {campaign}",
    "gonogo compare A B": "gonogo compare runs/plain runs/flash",
    "gonogo compare run_01KDQ… run_01KDR… run_01KDS… --metric loss --warmup 900": (
        "gonogo compare runs/p1 runs/f1 runs/p2 --metric loss --warmup 9"
    ),
    "gonogo demo --fault SPEC": "gonogo demo --fault nan",
    "gonogo forecast": "gonogo forecast {experiment}",
    "gonogo judge DIR --plan m7c-125m --phase smoke": (
        "gonogo judge {dir} --plan demo --phase smoke"
    ),
    "gonogo override EXP CONDITIONAL_GO --condition ID --reason WHY": (
        "gonogo override {broken} CONDITIONAL_GO --condition cond_0 --reason seen"
    ),
    "gonogo override EXP VERDICT --reason WHY": "gonogo override {broken} GO --reason seen",
    "gonogo run -- …": "gonogo run -- python train.py",
    "gonogo run --stall-s S": "gonogo run --stall-s 20 -- python train.py",
    "gonogo simulate": "gonogo simulate --hours 1",
    "gonogo simulate --hours 200 --seed 1": "gonogo simulate --hours 1 --seed 1",
    "gonogo verify FILE --key signing.pub": "gonogo verify seen.json --key signing.pub",
    "gonogo verify --anchor 3f394542169b0255": "gonogo verify --anchor {hash}",
}
"""What a reader types for a line that shows somebody else's names, or leaves something out."""

CODES = {
    "gonogo demo --fault SPEC": 10,
    "gonogo demo --fault xid:code=79,rank=1,step=12": 10,
    "gonogo override EXP CONDITIONAL_GO --condition ID --reason WHY": 3,
    "gonogo promote EXP --reason WHY": 2,
    "gonogo promote ID": 2,
    "gonogo run --steps 300 --accept conditional -- python train.py": 0,
    "gonogo submit mine.yaml --wait": 11,
    "gonogo submit m7c-125m --from nightly:production": 2,
    "gonogo submit m7c-125m --from nightly:production@35000": 2,
    "gonogo submit m7c-125m --from nightly:production@0": 2,
    "gonogo takeover ID": 2,
}
"""Exit codes other than 0: of what is broken on purpose, of what nothing waits for here, of a run
that nobody refuses, and of an experiment `nightly` that has not ended."""

RECIPES = ("heartbeats.md", "train-nsa.md", "attach.md")
"""Pages whose blocks tests/laws runs as a whole, or asks the trainer whether it understands."""

ENDLESS = ("gonogo up", "gonogo serve", "gonogo worker")

NOT_HERE = {
    "gonogo run -- ft_launcher …": "needs nvidia-resiliency-ext",
    "gonogo up --engine slurm": "tests/e2e/test_slurm.py has a Slurm",
    "gonogo submit demo --set workload.nodes=2 --set cluster.slurm.partition=main --wait": (
        "tests/e2e/test_slurm.py has a Slurm"
    ),
    "gonogo submit demo --set workload.nodes=2 --set fault=hang --wait": (
        "tests/e2e/test_slurm.py has a Slurm"
    ),
}

TYPES = ("gonogo ", "python -m nsa.generate ", "curl ")
"""How a line begins that is typed."""


def shown() -> list[str]:
    """Every command that a page shows, without its remark, each once, in the order of the pages."""
    found = []
    for page in PAGES:
        text = page.read_text()
        recipe = page.name in RECIPES
        calls = [] if recipe else typed_lines(text)
        found += [call for call in calls if call and not call.startswith("#")]
        found += command_lines(re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))
    return list(dict.fromkeys(re.split(r"\s+#", call)[0].strip() for call in found))


def wants_more(call: str) -> bool:
    """Whether a call lacks a required argument, or would never end."""
    words = shlex.split(call)[1:]
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", ()):
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands"):
        return "--help" not in words and "--install-completion" not in words
    needed = [row for row in command.params if row.param_type_name == "argument" and row.required]
    return call in (*ENDLESS, "gonogo demo") or (bool(needed) and not words) or words == ["--wait"]


@dataclass(frozen=True, slots=True)
class Used:
    """A gonogo that has been used, and what a reader of its pages would name."""

    home: Path
    folder: Path
    names: dict[str, str]

    def type(self, call: str) -> Spoken:
        """Run one line as a shell would, in the folder with the reader's own program."""
        steps = re.search(r"--steps (\d+)", call)
        environ = clean_environ(self.home) | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "STEPS": steps[1] if steps else "300",
            "BROWSER": "echo",
            "HOME": str(self.folder),
        }
        done = subprocess.run(
            ["/bin/bash", "-c", f"{call}\nexit $?"],  # bash stays, as a reader's shell does
            cwd=ROOT if call.startswith("python -m nsa.") else self.folder,
            env=environ,
            capture_output=True,
            text=True,
            errors="replace",  # a byte model of few steps says what is no text
            timeout=1500,  # what waits stands in line behind all that was submitted
            check=False,
        )
        return Spoken(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def used(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    home, folder = lab.stack.settings.home, tmp_path_factory.mktemp("reader")
    (folder / "train.py").write_text(PROGRAM)
    (folder / "plan.yaml").write_text(yaml.safe_dump(one_phase_plan()))
    first = (ROOT / "docs/start/first-plan.md").read_text()
    (mine,) = re.findall(r"```yaml\n(.*?)```", first, re.S)
    (folder / "mine.yaml").write_text(mine.replace("/src/mine", str(folder)))
    experiment = lab.submit(one_phase_plan())
    broken = lab.submit(one_phase_plan(), fault="nan:step=15")
    least = {"repeats": 3, "set": {"campaign.max_repeats": 3}}
    campaign = lab.client.post("/campaigns", {"plan": "campaign-demo", **least})["id"]
    assert lab.wait_for_end(experiment).verdict == "GO"
    assert lab.wait_for_end(broken).verdict == "NO_GO"
    lab.wait(lambda: lab.client.get(f"/campaigns/{campaign}")["state"] == "finished", limit_s=1200)
    members = lab.client.get(f"/campaigns/{campaign}")["members"]
    (folder / "runs").mkdir()
    for row in members:
        name = f"{'p' if row['variant'] == members[0]['variant'] else 'f'}{row['repeat']}"
        run = lab.run_of(row["experiment"])
        assert run is not None
        (folder / "runs" / name).symlink_to(str(run.dir))
    (folder / "runs/plain").symlink_to(folder / "runs/p1")
    (folder / "runs/flash").symlink_to(folder / "runs/f1")
    run = lab.run_of(experiment)
    assert run is not None
    (decision,) = lab.client.get(f"/experiments/{experiment}/decisions")["items"]
    seen = lab.client.get(f"/decisions/{decision['id']}")
    (folder / "seen.json").write_text(json.dumps(seen))
    shutil.copytree(home / "decisions", folder / "exported")
    shutil.copy(home / "signing.pub", folder)
    names = {
        "experiment": experiment,
        "broken": broken,
        "campaign": campaign,
        "run": run.id,
        "dir": str(run.dir),
        "decision": decision["id"],
        "hash": decision["hash"],
        "home": str(home),
        "url": json.loads((home / "service.json").read_text())["url"],
        "repeats": " ".join(row["decision"] for row in members[:2]),
    }
    yield Used(home=home, folder=folder, names=names)
    for row in lab.client.get("/experiments")["items"]:
        if row["state"] not in ("finished", "awaiting_decision"):
            lab.client.post(f"/experiments/{row['id']}/cancel", {"reason": "read"})


@pytest.mark.long
@pytest.mark.parametrize("call", [call for call in shown() if call.startswith(TYPES)])
def test_what_a_page_shows_does_what_it_says(used: Used, call: str) -> None:
    if call in NOT_HERE:
        pytest.skip(NOT_HERE[call])
    if call.startswith("gonogo ") and wants_more(call):
        assert used.type(f"{call} --help").code == 0
        return
    words = [WORDS.get(word, word) for word in re.split(r"(\s)", call)]
    typed = TYPED.get(call, "".join(words)).format_map(used.names)
    if " ".join(typed.split()[:2]) in ENDLESS:
        assert_it_starts_and_ends(used, typed)
        return
    said = used.type(typed)
    command = " ".join(call.split()[:2])
    whole = "--steps" in typed and "torchrun" not in typed  # else no rank's end is known
    read = 11 if whole else 12
    usual = read if command == "gonogo run" else 0
    assert said.code == CODES.get(call, usual), (typed, said)
    assert "Traceback" not in said.stderr
    assert said.stdout.strip() or said.stderr.strip()


def assert_it_starts_and_ends(used: Used, typed: str) -> None:
    """A command that runs until stopped prints its address, and ends with 0 at Ctrl-C."""
    home = used.folder / "another"
    more = "" if "--port" in typed else " --port 0"
    with subprocess.Popen(
        [sys.executable, "-m", "gonogo.cli.main", *shlex.split(typed + more)[1:]],
        env=clean_environ(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")
        assert any("http://127.0.0.1:" in line for line in said), typed
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 0, typed


@pytest.mark.parametrize("call", [call for call in shown() if call.startswith("make ")])
def test_a_target_that_a_page_shows_is_one(call: str) -> None:
    done = subprocess.run(
        shlex.split(call.replace("make ", "make -n ", 1)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_no_row_is_of_what_no_page_shows() -> None:
    assert set(TYPED) | set(CODES) | set(NOT_HERE) <= set(shown())
