"""A real Chromium for tests, driven by its DevTools protocol over a pipe: no further package."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
COMPLAINTS = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
LIMIT_S = 120.0


@dataclass
class Browser:
    """One tab."""

    write_to: int
    read_from: int
    session: str | None = None
    complaints: list[dict[str, Any]] = field(default_factory=list)
    _count: int = 0
    _buffer: bytes = b""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._count += 1
        command = {"id": self._count, "method": method, "params": params}
        if self.session is not None:
            command["sessionId"] = self.session
        os.write(self.write_to, json.dumps(command).encode() + b"\0")
        while (message := self._next()).get("id") != self._count:
            if message.get("method") in COMPLAINTS and not _is_advice(message["params"]):
                self.complaints.append(message["params"])
        assert "result" in message, message
        result: dict[str, Any] = message["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self.read_from], [], [], LIMIT_S)
            assert ready, "Chromium does not answer"
            chunk = os.read(self.read_from, 65_536)
            assert chunk, "Chromium ended"
            self._buffer += chunk
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        return message

    def open_tab(self) -> None:
        """Open the tab that every later call is about."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Log", "Runtime", "Page"):
            self.call(f"{domain}.enable")

    def visit(self, url: str, path: str) -> None:
        """Go to a page and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.wait(f"location.pathname === '{path}' && document.readyState === 'complete'")

    def eval(self, expression: str) -> Any:
        """Return the value of a script's expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Ask until an expression is true, and return its value."""
        return self.wait_for(lambda: self.eval(expression), expression)

    def wait_for(self, ready: Callable[[], Any], what: str) -> Any:
        """Ask until something is true, and return it."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := ready()):
            assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}"
            time.sleep(0.05)
        return found


def _is_advice(said: dict[str, Any]) -> bool:
    return bool(said.get("entry", {}).get("level") == "verbose")


@contextmanager
def chromium(program: str, profile: Path) -> Iterator[Browser]:
    """A running Chromium with one tab and a profile of its own."""
    child_reads, write_to = os.pipe()
    read_from, child_writes = os.pipe()
    # A shell puts the pipe where Chromium looks for it: descriptors 3 and 4.
    script = f'exec "$@" 3<&{child_reads} 4>&{child_writes}'
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            script,
            "bash",
            program,
            *FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
        ],
        pass_fds=(child_reads, child_writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(child_reads)
    os.close(child_writes)
    browser = Browser(write_to=write_to, read_from=read_from)
    try:
        browser.open_tab()
        yield browser
    finally:
        process.terminate()
        process.wait(60)
        os.close(write_to)
        os.close(read_from)
