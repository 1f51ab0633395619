"""Are the systemd units sound, and do they hold what a living run needs of them?"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.settings import known_names
from gonogo.systemd import Notifier, load_notifier
from tests.unit_socket import UnitSocket

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
NAMES = ("gonogo-service.service", "gonogo-worker.service")


def load_unit(name: str) -> dict[str, str]:
    """Settings of the unit's section [Service]; the last one of a repeated name."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return dict(parser["Service"])


@pytest.mark.needs("systemd")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    text = (UNITS / name).read_text()
    (tmp_path / name).write_text(re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", text))
    checked = verify(tmp_path / name)
    assert (checked.returncode, checked.stderr) == (0, "")


def verify(unit: Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_says_when_it_is_ready_and_is_restarted_when_it_hangs(name: str) -> None:
    unit = load_unit(name)
    assert unit["Type"] == "notify"
    assert int(unit["WatchdogSec"]) >= 60  # a loaded host is no hung process
    assert unit["Restart"] == "always"
    assert unit["NoNewPrivileges"] == "yes"
    assert unit["UMask"] == "0077"


def test_the_workers_end_ends_no_run() -> None:
    unit = load_unit("gonogo-worker.service")
    assert unit["KillMode"] == "process"
    assert unit["OOMPolicy"] == "continue"
    assert int(unit["OOMScoreAdjust"]) < 0
    assert unit["LimitMEMLOCK"] == "infinity"
    assert int(unit["LimitNOFILE"]) >= 65_536
    assert unit["TasksMax"] == "infinity"
    assert unit["Delegate"] == "yes"
    assert unit.keys() & {"ProtectClock", "PrivateDevices", "DevicePolicy"} == set()


def test_what_plans_start_cannot_read_the_services_keys() -> None:
    service, worker = map(load_unit, NAMES)
    assert service["User"] != worker["User"]
    assert service["StateDirectory"] != worker["StateDirectory"]
    assert service["StateDirectoryMode"] == worker["StateDirectoryMode"] == "0700"
    assert worker["LoadCredential"].startswith("worker_key:")


def test_every_variable_of_a_unit_is_a_known_setting() -> None:
    text = "".join((UNITS / name).read_text() for name in NAMES)
    named = set(re.findall(r"\b(GONOGO_\w+)=", text))
    assert "GONOGO_API_KEY_FILE" in named
    assert named <= known_names()


def test_a_process_of_no_unit_says_nothing() -> None:
    notifier = load_notifier({}, 7)
    assert notifier == Notifier()
    notifier.say(READY="1")
    notifier.live(0.0)


def test_a_watchdog_is_fed_four_times_in_its_time(tmp_path: Path) -> None:
    with UnitSocket(tmp_path / "s") as unit:
        notifier = load_notifier({**unit.environ(watchdog_s=8.0), "WATCHDOG_PID": "7"}, 7)
        for now in (0.0, 1.0, 1.9, 2.0, 3.0, 5.0):
            notifier.live(now)
        assert unit.rest() == ["WATCHDOG=1"] * 3
