"""The environment of a worker and its keepers, read here and only here."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gonogo.contract.errors import Rejected
from gonogo.contract.workload import EngineName
from gonogo.planning.resolve import checkout_root
from gonogo.settings import home_of, known_names, load_key, parse_engine, read, socket_url
from gonogo.systemd import NAMES, Notifier, load_notifier

LOG_LEVELS = ("debug", "info", "warning", "error")
_TYPED = re.compile(
    r"(?:SQUEUE|SCANCEL|SCONTROL|SRUN|SLURMD)_\w+|SLURM_(?!(?:CONF|CLUSTERS|JWT)$)\w+"
    r"|SBATCH_(?:ARRAY_INX|CLUSTERS|ERROR|INPUT|NO_KILL|WAIT)"
)
"""Variables that change what Slurm prints or selects, that Slurm sets in a job, or by which sbatch
waits, makes an array or sends the job elsewhere."""
_KEY = "GONOGO_API_KEY"
_KEY_FILE = f"{_KEY}_FILE"


_FOR_NODES = frozenset(
    {
        "CONDA_PREFIX", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "OMP_NUM_THREADS",
        "PATH", "SHELL", "SLURM_CONF", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME",
        "GONOGO_HOME", "GONOGO_URL", "GONOGO_LOG", "GONOGO_DEVICES_SCRIPT", "PYTHONPATH",
    }
)  # fmt: skip


class OnStop(StrEnum):
    """What a worker does with its runs when it stops."""

    LEAVE = "leave"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one worker process."""

    home: Path
    url: str
    api_key: str | None = field(repr=False)
    redis_url: str = field(repr=False)
    metrics_port: int
    log_level: str
    labels: Mapping[str, str]
    devices: str | None
    """As written: UUIDs, `cuda:0,cuda:1`, `cpu:N`; None = what the worker was given."""
    locks: Path | None = None
    """The host's folder of device locks; None = the usual one."""
    devices_script: Path | None
    """Scripted devices; honoured only where a run's plan allows faults."""
    allow: tuple[str, ...] = ()
    """Modules and programs that plans may start, besides ours."""
    allow_env: tuple[str, ...] = ()
    """Names that plans may set, besides the listed ones."""
    on_stop: OnStop
    engine: EngineName = EngineName.LOCAL
    slurm_defaults: Path | None = None
    """What every job asks of Slurm where its plan says nothing else, for the engine `slurm`."""
    jobset_template: Path | None = None
    """The JobSet that runs are made from, for the engine `jobset`."""
    host: str
    notifier: Notifier = field(default_factory=Notifier)
    inherited: Mapping[str, str] = field(repr=False)

    @property
    def runs(self) -> Path:
        """Folder of the run directories."""
        return self.home / "runs"

    def key(self) -> str | None:
        """Return the key for the agent calls: the environment's, else a renewed or local one."""
        said = self.inherited.get(_KEY)
        return said or self.renewed_key() or self.api_key or load_key(self.home)

    def key_place(self) -> str:
        """Return where `key` is from, for people."""
        if self.inherited.get(_KEY):
            return _KEY
        return str(self.home / "key" if self.renewed_key() is None else self.key_file())

    def renewed_key(self) -> str | None:
        """Return the present content of the key's file; None where it cannot be read."""
        file = self.key_file()
        try:
            return None if file is None else file.read_text().strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def key_file(self) -> Path | None:
        """Return the file of the worker's own key, if there is one."""
        named = self.inherited.get(_KEY_FILE)
        if named:
            return Path(named).absolute()  # a keeper has another working directory
        return None if self.api_key else self.home / "worker_key"


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this process; Rejected: an unknown name or an impossible value."""
    source = dict(os.environ if environ is None else environ)
    values = read(source, "worker")
    home = home_of(values)
    level = (values["GONOGO_LOG"] or "info").lower()
    if level not in LOG_LEVELS:
        raise Rejected(f"GONOGO_LOG={level}; expected one of {', '.join(LOG_LEVELS)}")
    return Settings(
        home=home,
        url=(values["GONOGO_URL"] or "").rstrip("/"),
        api_key=values["GONOGO_API_KEY"],
        redis_url=values["REDIS_URL"] or socket_url(home / "redis.sock"),
        metrics_port=parse_port(values["GONOGO_WORKER_METRICS_PORT"] or "0"),
        log_level=level,
        labels=parse_labels(values["GONOGO_WORKER_LABELS"] or ""),
        devices=values["GONOGO_WORKER_DEVICES"],
        locks=_path(values["GONOGO_LOCKS"]),
        devices_script=_path(values["GONOGO_DEVICES_SCRIPT"]),
        allow=_words(values["GONOGO_WORKER_ALLOW"]),
        allow_env=_words(values["GONOGO_WORKER_ALLOW_ENV"]),
        on_stop=_parse_on_stop(values["GONOGO_WORKER_ON_STOP"] or "leave"),
        engine=parse_engine(values["GONOGO_ENGINE"] or "local"),
        slurm_defaults=_path(values["GONOGO_SLURM_DEFAULTS"]),
        jobset_template=_path(values["GONOGO_JOBSET_TEMPLATE"]),
        host=socket.gethostname(),
        notifier=load_notifier(source, os.getpid()),
        inherited=source,
    )


def parse_port(text: str) -> int:
    """Return a TCP port (0 asks for a free one), or raise Rejected."""
    if not text.isdecimal() or int(text) > 65_535:
        raise Rejected(f"GONOGO_WORKER_METRICS_PORT={text}; expected 0 to 65535")
    return int(text)


def parse_labels(text: str) -> dict[str, str]:
    """Return the labels of `k=v,k=v`, or raise Rejected."""
    labels: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, sign, value = part.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise Rejected(f"GONOGO_WORKER_LABELS: found {part!r}; expected k=v,k=v")
        labels[name.strip()] = value.strip()
    return labels


def keeper_environ(settings: Settings, key: str | None) -> dict[str, str]:
    """Return the environment of a keeper: ours, without what only a worker needs."""
    ours = known_names().union(NAMES)
    kept = {name: value for name, value in settings.inherited.items() if name not in ours}
    root = str(checkout_root())
    path = os.pathsep.join(filter(None, [root, settings.inherited.get("PYTHONPATH")]))
    more = {_KEY: key} if key else {}
    file = settings.key_file()
    if key and file is not None:  # it may be renewed during the run
        more[_KEY_FILE] = str(file)
    if settings.devices_script is not None:
        more["GONOGO_DEVICES_SCRIPT"] = str(settings.devices_script)
    return {
        **kept,
        **more,
        "GONOGO_HOME": str(settings.home),
        "GONOGO_URL": settings.url,
        "GONOGO_LOG": settings.log_level,
        "PYTHONPATH": path,
    }


def node_environ(settings: Settings) -> dict[str, str]:
    """Return the environment of `python -m worker.node`: no key, since others may read it."""
    kept = {
        name: value for name, value in keeper_environ(settings, None).items() if name in _FOR_NODES
    }
    more = {
        "GONOGO_WORKER_ALLOW": ",".join(settings.allow),
        "GONOGO_WORKER_ALLOW_ENV": ",".join(settings.allow_env),
        "GONOGO_LOCKS": "" if settings.locks is None else os.fspath(settings.locks),
    }
    return {**kept, **{name: value for name, value in more.items() if value}}


def slurm_environ() -> dict[str, str]:
    """Return the environment of Slurm's commands: ours, without settings for interactive use.

    Times are in UTC: local ones repeat an hour in autumn. What sbatch reads (`SBATCH_ACCOUNT`)
    is kept, and the clusters that it names are those that every command asks.
    """
    kept = {name: value for name, value in os.environ.items() if _TYPED.fullmatch(name) is None}
    clusters = os.environ.get("SBATCH_CLUSTERS")
    asked = {} if clusters is None else {"SLURM_CLUSTERS": clusters}
    return {**kept, **asked, "TZ": "UTC0"}


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in (text or "").split(","))))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser().absolute()


def _parse_on_stop(text: str) -> OnStop:
    try:
        return OnStop(text)
    except ValueError as error:
        known = ", ".join(OnStop)
        raise Rejected(f"GONOGO_WORKER_ON_STOP={text}; expected one of {known}") from error
