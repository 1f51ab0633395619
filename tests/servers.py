"""Which real servers can a test meet, and how are they started and ended?

Every server listens on loopback only, keeps its files below one temporary directory and is ended by
the pid that started it. Readiness is asked, never waited for by the clock.

Not covered: Prometheus and Alertmanager, whose tests start them with their own configuration.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

#: component as `needs(...)` and GONOGO_REQUIRE spell it → programs of which one must exist
PROGRAMS: dict[str, tuple[str, ...]] = {
    "prometheus": ("prometheus",),
    "promtool": ("promtool",),
    "alertmanager": ("prometheus-alertmanager", "alertmanager"),
    "amtool": ("amtool",),
    "redis": ("redis-server",),
    "postgres": ("initdb", "/usr/lib/postgresql/*/bin/initdb"),
    "slurm": ("slurmctld",),
    "chromium": ("chromium",),
    "git": ("git",),
    "systemd": ("systemd-analyze",),
    "compiler": ("gcc", "clang"),
}

#: package that GONOGO_REQUIRE names → further components that come with it
COMES_WITH = {"promtool": "prometheus", "amtool": "alertmanager"}


def find_program(component: str) -> str | None:
    """Path of the program behind `component`, or None when this machine has none."""
    for candidate in PROGRAMS[component]:
        if "*" in candidate:
            hits = sorted(Path("/").glob(candidate.lstrip("/")))
            if hits:
                return str(hits[-1])
        elif found := shutil.which(candidate):
            return found
    return None


def free_port() -> int:
    """A TCP port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(ready: Callable[[], bool], *, what: str, limit_s: float = 180.0) -> None:
    """Ask `ready` until it says yes.

    Raises:
        TimeoutError: after `limit_s` seconds, naming `what`.
    """
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} was not ready within {limit_s:g} s")
        time.sleep(0.02)


def accepts(port: int) -> bool:
    """Whether something accepts connections on that port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(slots=True, kw_only=True)
class RedisServer:
    """One redis-server or valkey-server that a test may kill and start again.

    With `persistent` an append-only file brings every acknowledged write back after a kill; without
    it a restart begins empty, which is the outage that forgets jobs.
    """

    program: str
    directory: Path
    persistent: bool = False
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, on the same port as before, and return when it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        options += ["--save", "", "--appendonly", "yes" if self.persistent else "no"]
        if self.persistent:
            options += ["--appendfsync", "always"]
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen([self.program, *options], stdout=log, stderr=log)
        wait_until(self._answers, what=f"{self.program} on port {self.port}")

    def kill(self) -> None:
        """SIGKILL it, as an outage does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order; nothing happens when it is not running."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        self.process.wait(timeout=60)
        self.process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as link:
                link.sendall(b"PING\r\n")
                return link.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@dataclass(slots=True, kw_only=True)
class PostgresServer:
    """One PostgreSQL cluster; `new_database` gives each test its own empty database.

    `initdb` and `postgres` refuse to run as root, so root hands them to the user `nobody`.
    Durability is off: a test's database need not outlive the machine.
    """

    programs: Path
    directory: Path
    durable: bool = False
    """Whether what was committed outlives a kill of the server."""
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    databases: int = 0

    @classmethod
    def create(cls, initdb: str, *, durable: bool = False) -> PostgresServer:
        """Make a cluster in a fresh directory below /tmp and start it."""
        directory = Path(tempfile.mkdtemp(prefix="gonogo-pg-"))
        programs = Path(initdb).resolve().parent
        server = cls(programs=programs, directory=directory, durable=durable)
        if os.geteuid() == 0:
            shutil.chown(directory, "nobody", "nogroup")
        server._run("initdb", "-D", str(directory / "data"), "-U", "gonogo", "-A", "trust", "-N")
        server.start()
        return server

    def start(self) -> None:
        """Start the cluster and return when it accepts queries."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            "fsync": "off",
            "synchronous_commit": "on" if self.durable else "off",
            "full_page_writes": "off",
        }
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command = [*self._as_user("postgres"), "-D", str(self.directory / "data"), *flags]
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        wait_until(self._answers, what=f"PostgreSQL on port {self.port}")

    def kill(self) -> None:
        """SIGKILL the server, as an outage does; it may be started again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=60)
            self.process = None

    def new_database(self, *options: str) -> str:
        """Create an empty database and return its SQLAlchemy URL; `options` are createdb's."""
        self.databases += 1
        name = f"t{self.databases}"
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "gonogo")
        self._run("createdb", *where, *options, name)
        return f"postgresql+psycopg://gonogo@127.0.0.1:{self.port}/{name}"

    def client(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of PostgreSQL's own programs; a database is named by its SQLAlchemy URL."""
        said = [part.replace("postgresql+psycopg://", "postgresql://") for part in arguments]
        command = [str(self.programs / program), *said]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    def stop(self) -> None:
        """Disconnect everyone, end the cluster (fast shutdown) and remove its files."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=120)
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def _answers(self) -> bool:
        command = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user(program), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, cwd="/", timeout=60)
        log = self.directory / "server.log"
        said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        assert done.returncode == 0, f"{program}: {done.stderr.decode()}\n{said}"

    def _as_user(self, program: str) -> list[str]:
        path = str(self.programs / program)
        if os.geteuid() != 0:
            return [path]
        return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", path]
