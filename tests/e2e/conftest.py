"""Fixtures of the end-to-end tests: a stack for each module, a webhook receiver for all."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gonogo.cli.client import Client
from gonogo.cli.settings import load_settings
from gonogo.cli.stack import Stack
from tests.e2e.lab import Lab, Receiver, clean_environ


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A stack of its own for each module of tests; the module may say more ENVIRON for it."""
    more = getattr(request.module, "ENVIRON", {})
    home = Path(tempfile.mkdtemp(prefix="gonogo-e2e-"))
    settings = load_settings({**clean_environ(home), **more})
    with Stack(settings=settings, port=0) as stack, Client(stack.url, settings.key()) as client:
        lab = Lab(stack=stack, client=client)
        client.meanwhile = lambda: stack.tend(lab.said.append)
        yield lab
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    """A webhook receiver for the session."""
    found = Receiver()
    yield found
    found.close()
