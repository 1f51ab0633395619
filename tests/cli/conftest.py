"""The command line against a running control plane, in this process: arguments in, words out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gonogo.cli.app import run
from service.context import open_context
from service.http.auth import load_local_keys
from service.settings import Settings
from tests.service.conftest import Plane, judges, migrated, serving


@dataclass(frozen=True, slots=True)
class Said:
    """What a command left."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON value on its standard output."""
        (line,) = self.out.splitlines()
        return json.loads(line)


Gonogo = Callable[..., Said]
__all__ = ["judges", "migrated"]  # fixtures of its neighbour's


@pytest.fixture
def plane(tmp_path: Path, migrated: Path) -> Iterator[Plane]:
    """A control plane on SQLite that conducts; its home names it, as `gonogo serve` does."""
    shutil.copy(migrated, tmp_path / "gonogo.db")
    settings = Settings(home=tmp_path, database_url=f"sqlite:///{tmp_path}/gonogo.db")
    context = open_context(settings)
    load_local_keys(context)
    with serving(context) as http:
        named = {"url": context.url, "pid": os.getpid()}
        (tmp_path / "service.json").write_text(json.dumps(named))
        yield Plane(context=context, http=http, home=tmp_path)


@pytest.fixture
def gonogo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Gonogo:
    """`gonogo(*arguments, **environ)` in the home `tmp_path`."""

    def call(*arguments: str, **environ: str) -> Said:
        for name in list(os.environ):
            if name.startswith("GONOGO_"):
                monkeypatch.delenv(name)
        for name, value in {"GONOGO_HOME": str(tmp_path), **environ}.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        try:
            code = run(arguments)
        except SystemExit as stop:  # typer leaves so when it has answered a shell
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return Said(code=code, out=said.out, err=said.err)

    return call
