"""The command line finds the service of its home, and says so when it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.cli.settings import locate_service
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane

DEFAULT = "http://127.0.0.1:8750"


def gone_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return child.pid


def test_gonogo_url_comes_first(tmp_path: Path) -> None:
    (tmp_path / "service.json").write_text('{"url": "http://there:1", "pid": 1}')
    found = locate_service("http://here:2/", tmp_path, DEFAULT)
    assert (found.url, found.source, found.stale) == ("http://here:2", "GONOGO_URL", None)


def test_else_the_default(tmp_path: Path) -> None:
    found = locate_service(None, tmp_path, DEFAULT)
    assert (found.url, found.source, found.stale) == (DEFAULT, "the default", None)


@pytest.mark.parametrize("text", ["{", '{"url": 1}', "null"])
def test_a_file_that_cannot_be_read_is_said_and_the_default_taken(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "service.json").write_text(text)
    found = locate_service(None, tmp_path, DEFAULT)
    assert found.url == DEFAULT
    assert "cannot be read" in found.unanswered()


def test_on_another_host_of_a_shared_home_it_is_said_where_the_service_is(
    tmp_path: Path, gonogo: Gonogo
) -> None:
    text = json.dumps({"url": "http://127.0.0.1:9", "pid": gone_process(), "host": "Login1"})
    (tmp_path / "service.json").write_text(text)
    said = gonogo("list")
    assert said.code == 5
    (line,) = said.err.splitlines()
    assert "no answer from http://127.0.0.1:9" in line
    assert f"the service of this home is on Login1 ({tmp_path}/service.json)" in line


def test_a_stale_file_says_so(tmp_path: Path, gonogo: Gonogo) -> None:
    pid = gone_process()
    text = json.dumps({"url": "http://127.0.0.1:9", "pid": pid})
    (tmp_path / "service.json").write_text(text)
    said = gonogo("list")
    assert said.code == 5
    (line,) = said.err.splitlines()
    assert f"{tmp_path}/service.json is stale: its process {pid} is gone" in line
    assert "gonogo up" in line


def test_an_address_that_does_not_answer_says_who_named_it(gonogo: Gonogo) -> None:
    said = gonogo("list", GONOGO_URL="http://127.0.0.1:9")
    assert said.code == 5
    assert "GONOGO_URL names this address; is it running?" in said.err


@pytest.mark.parametrize("command", ["list", "show", "logs"])
def test_who_never_answered_is_not_waited_for(command: str, gonogo: Gonogo) -> None:
    arguments = [command] if command == "list" else [command, "last"]
    assert gonogo(*arguments, GONOGO_URL="http://127.0.0.1:9").code == 5


def test_a_wrong_key_names_the_key_file_of_the_home(
    plane: Plane, tmp_path: Path, gonogo: Gonogo
) -> None:
    del plane
    said = gonogo("list", GONOGO_API_KEY="gonogo_wrong")
    assert said.code == 4
    assert f"GONOGO_API_KEY; unset it to use that of {tmp_path}/key" in said.err
    (tmp_path / "key").write_text("gonogo_other\n")
    said = gonogo("list")
    assert said.code == 4
    assert f"does not know the key in {tmp_path}/key" in said.err
    (tmp_path / "key").unlink()
    said = gonogo("list")
    assert said.code == 4
    assert f"wants a key, and {tmp_path}/key is not there" in said.err
    assert len(said.err.splitlines()) == 1
