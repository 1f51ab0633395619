"""`pytest --forks N`: collect once, then share the tests among N forks of that process.

xdist imports and collects everything again in each of its processes: here PyTorch, and thousands of
tests.
"""

from __future__ import annotations

import json
import os
import selectors
import traceback
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from itertools import groupby

import pytest

Batch = Sequence[pytest.Item]
MOST_TESTS = 40
"""A fork takes the tests of one file together, for its fixtures; of a long file, so many."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="processes that share the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks; fail when one of them ends without a word of a test."""
    option, hook = session.config.option, session.config.hook
    if not option.forks or session.testsfailed or option.collectonly:
        return None
    # Made here, or each fork would make one; pytest has no public name for it outside of a test.
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    batches = list(batched(session.items))
    taken, offered = os.pipe()
    for number in range(len(batches)):  # a few kilobytes: they fit into a pipe
        os.write(offered, number.to_bytes(4))
    os.close(offered)
    untold = {item.nodeid for item in session.items}
    for line in lines_of(dict(forked(session, batches, taken) for _ in range(option.forks))):
        report = hook.pytest_report_from_serializable(config=session.config, data=json.loads(line))
        if isinstance(report.longrepr, list):  # why it was skipped: JSON knows no tuple
            report.longrepr = tuple(report.longrepr)
        hook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            untold.discard(report.nodeid)
        if session.shouldfail or session.shouldstop:
            list(numbers_of(taken))  # so that each fork ends after its batch
    os.close(taken)
    stopped = session.shouldfail or session.shouldstop
    if untold and not stopped:
        stopped = f"a process has died: no word of {len(untold)} tests, such as {min(untold)}"
        session.shouldfail = stopped
    if stopped:
        raise session.Failed(stopped)
    return True


def batched(items: Batch) -> Iterator[Batch]:
    """Yield the tests that one fork runs together."""
    for _, of_file in groupby(items, key=lambda item: item.path):
        rows = list(of_file)
        yield from (rows[at : at + MOST_TESTS] for at in range(0, len(rows), MOST_TESTS))


def numbers_of(taken: int) -> Iterator[int]:
    """Take one number after the other out of the pipe that all forks share."""
    while number := os.read(taken, 4):
        yield int.from_bytes(number)


def lines_of(children: Mapping[int, int]) -> Iterator[bytes]:
    """Yield each line that comes out of the pipes (descriptor → process), until all are closed."""
    rest = dict.fromkeys(children, b"")
    with selectors.DefaultSelector() as selector:
        for reader in children:
            selector.register(reader, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                came = os.read(key.fd, 65536)
                *whole, rest[key.fd] = (rest[key.fd] + came).split(b"\n")
                yield from whole
                if not came:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    os.waitpid(children[key.fd], 0)


def forked(session: pytest.Session, batches: Sequence[Batch], taken: int) -> tuple[int, int]:
    """Fork; return the pipe with the child's reports, and the child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        capture = session.config.pluginmanager.getplugin("capturemanager")
        try:
            os.close(reader)
            capture.stop_global_capturing()  # it writes into a file that all forks would share
            capture.start_global_capturing()
            session.config.pluginmanager.unregister(name="terminalreporter")
            session.config.pluginmanager.register(_Teller(session.config, writer))
            run(item for number in numbers_of(taken) for item in batches[number])
        except BaseException:  # noqa: BLE001 - a fork never returns into the parent's pytest
            capture.stop_global_capturing()
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    return reader, child


def run(items: Iterator[pytest.Item]) -> None:
    """Run tests in turn; each knows the next one, for the fixtures that both need."""
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following


class _Teller:
    """Writes each report as one line of JSON."""

    def __init__(self, config: pytest.Config, writer: int) -> None:
        self._config = config
        self._stream = FileIO(writer, "wb")  # a test may have replaced os.write

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        line = json.dumps(data).encode() + b"\n"
        while line:
            line = line[self._stream.write(line) :]
