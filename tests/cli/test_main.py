"""The command line as a person meets it: help, one-line errors, exit codes, one JSON object."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
import typer.main

from gonogo.cli.app import app
from gonogo.cli.exits import EXIT_WORDS, Exit
from gonogo.cli.maintenance import check_stacks
from tests.cli.typed import typed

RUNS = Path(__file__).parent.parent / "data" / "runs"


def gonogo(home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return typed(home, *arguments, **{"GONOGO_URL": "http://127.0.0.1:9", **environ})


def test_help_is_whole_and_lists_commands_and_exit_codes(tmp_path: Path) -> None:
    done = gonogo(tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == gonogo(tmp_path).stdout
    shown = " ".join(done.stdout.replace("│", "").split())
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f" {name} {' '.join(command.help.split())}" in shown
    assert set(Exit) == set(EXIT_WORDS)
    for code, words in EXIT_WORDS.items():
        assert f"{int(code)} {words}" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["statsu"], "no such command 'statsu'. Did you mean 'status'?"),
        (["submit", "demo", "--sett", "a=1"], "no such option: --sett"),
        (["submit"], "missing argument 'plan'"),
        (["list", "--limit", "0"], "'--limit'"),
        (["override", "a", "NOGO", "--reason", "r"], "is not one of 'GO'"),
        (["override", "a", "GO"], "missing option '--reason'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistyped_command_line_is_one_line(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    done = gonogo(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert says in line
    assert line.endswith("--help)")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["judge", "/no/such/directory"], 3, "no such directory"),
        (["replay", "dec_00000000000000000000000000"], 3, "no such"),
        (["submit", "nope"], 3, "neither a plan file nor one of demo"),
        (["submit", "demo", "--set", "steps"], 2, "expected KEY=VALUE"),
        (["demo", "--fault", "hangg"], 2, "expected one of hang"),
        (["judge", str(RUNS / "healthy"), "--now", "soon"], 2, "Unix seconds or RFC 3339"),
        (["judge", str(RUNS / "healthy"), "--now", "nan"], 2, "Unix seconds or RFC 3339"),
        (["list"], 5, "is it running"),
        (["run", "--stall-s", "nan", "--", "true"], 2, "'--stall-s'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_bad_input_is_one_clear_error_with_its_code(
    tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    done = gonogo(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_misspelt_variable_is_an_error_with_a_hint(tmp_path: Path) -> None:
    done = gonogo(tmp_path, "list", GONOGO_HOOM="x")
    assert done.returncode == 2
    assert "did you mean GONOGO_HOME?" in done.stderr


@pytest.mark.parametrize(
    ("name", "code"),
    [("healthy", 0), ("non_finite", 10), ("stalled", 10), ("predecessor_healthy", 12)],
)
def test_judging_a_directory_exits_by_its_verdict_with_one_json_object(
    tmp_path: Path, name: str, code: int
) -> None:
    done = gonogo(tmp_path, "judge", str(RUNS / name), "--json")
    assert done.returncode == code, done.stderr
    judged = json.loads(done.stdout)
    assert judged["facts_digest"]
    assert judged["not_observed"] or code != 12


def test_the_field_forecast_is_62_days(tmp_path: Path) -> None:
    done = gonogo(tmp_path, "forecast", "--steps", "50000", "--tok-s", "38", "--json")
    assert json.loads(done.stdout)["seconds_p50"] == pytest.approx(62.4 * 86_400, rel=0.01)


def test_plans_are_shown_and_checked(tmp_path: Path) -> None:
    names = [row["name"] for row in json.loads(gonogo(tmp_path, "plans", "--json").stdout)["items"]]
    assert {"demo", "m7c-125m", "m7c-125m-fsdp", "campaign-buckets"} <= set(names)
    buckets = gonogo(tmp_path, "plans", "campaign-buckets").stdout
    assert "valid, a campaign on toks_per_s" in buckets
    assert "NSA_DDP_BUCKET_MB=50" in buckets
    shown = json.loads(gonogo(tmp_path, "plans", "campaign-buckets", "--json").stdout)
    assert [row["name"] for row in shown["plan"]["campaign"]["variants"]] == [
        "mb25",
        "mb50",
        "mb100",
    ]
    shown = json.loads(gonogo(tmp_path, "plans", "demo", "--json").stdout)
    assert shown["valid"]
    broken = tmp_path / "plan.yaml"
    broken.write_text("v: 1\nname: x\nprofil: cpu\n")
    done = gonogo(tmp_path, "plans", str(broken))
    assert done.returncode == 2
    assert "did you mean profile?" in done.stderr


def test_flags_list_every_toggle(tmp_path: Path) -> None:
    rows = json.loads(gonogo(tmp_path, "flags", "--json").stdout)["items"]
    names = {row["name"] for row in rows}
    assert {"NSA_PREFILL_BATCHED", "NSA_DDP_BUCKET_MB", "NSA_SCALER_INIT_SCALE"} <= names
    assert all(row["effect"] for row in rows)


@pytest.mark.parametrize(
    ("script", "outcome", "text"),
    [
        ("kill -0 $3", "pass", "reads stacks here"),
        ("echo Error: Permission denied >&2; exit 1", "warn", "Permission denied; hung ranks"),
        ("exit 3", "warn", "exit code 3"),
    ],
    ids=["reads", "refused", "says-nothing"],
)
def test_the_doctor_tries_to_read_a_stack(
    tmp_path: Path, script: str, outcome: str, text: str
) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    name, found, said = check_stacks(str(program))
    assert (name, found) == ("py-spy", outcome)
    assert text in said


@pytest.mark.parametrize("arguments", [("up", "--port", "0"), ("demo",)])
def test_a_path_that_cannot_be_used_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    heeded = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        done = gonogo(file / "home", *arguments)
    finally:
        for number, handler in heeded.items():  # `up` and `demo` take them
            signal.signal(number, handler)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"gonogo: {file}")
    assert "Traceback" not in done.stderr


def test_a_home_that_is_no_folder_is_said(tmp_path: Path) -> None:
    home = tmp_path / "[b]file"
    home.write_text("no folder")
    done = gonogo(home, "doctor")
    assert done.returncode == 1
    assert f"home       {home} is no folder: set GONOGO_HOME to one" in done.stdout
    assert gonogo(home, "status").returncode == 5
