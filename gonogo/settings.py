"""The table of environment names; each process reads its own rows in its settings.py.

An unknown `GONOGO_*` name is an error. A secret may be given as a file: `NAME_FILE` is the path of
a file that holds the value of `NAME`.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gonogo.contract.errors import Rejected
from gonogo.contract.workload import EngineName

SERVICE_FILE = "service.json"
"""In the home: `{url, pid, host}` of the service that began to listen last."""
REACHED_FILE = "reached.json"
"""In the home: `{v, url}`, the address at which nodes of a scheduler reach the service."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment name."""

    env: str
    default: str | None
    help: str
    read_by: tuple[str, ...]
    unit: str = ""
    secret: bool = False


TABLE: tuple[Setting, ...] = (
    Setting("GONOGO_HOME", "~/.gonogo",
        "folder of database, runs/, decisions/, key and socket",
        ("cli", "service", "worker"), "path"),
    Setting("GONOGO_URL", "http://127.0.0.1:8750",
        "address of the control plane; the command line looks into $GONOGO_HOME/service.json first",
        ("cli", "worker"), "URL"),
    Setting("GONOGO_API_KEY", None,
        "API key; default: the content of $GONOGO_HOME/key", ("cli", "worker"), secret=True),
    Setting("GONOGO_DATABASE_URL", None,
        "SQLAlchemy URL; default: SQLite in GONOGO_HOME", ("service",), "URL", secret=True),
    Setting("GONOGO_DATABASE_PASSWORD", None,
        "password of the database, for an address that holds none", ("service",), secret=True),
    Setting("REDIS_URL", None,
        "Redis or Valkey; default: an embedded server in GONOGO_HOME",
        ("cli", "service", "worker"), "URL", secret=True),
    Setting("GONOGO_WORKER_METRICS_PORT", "8751",
        "port of the worker's Prometheus exporter; 0 takes a free one", ("worker",), "port"),
    Setting("GONOGO_WEBHOOK_URL", None, "webhook that gets every alert type", ("service",), "URL"),
    Setting("GONOGO_WEBHOOK_SECRET", None,
        "secret of that webhook (whsec_…, Standard Webhooks)", ("service",), secret=True),
    Setting("GONOGO_PUBLIC_URL", None,
        "where people reach the service, for links in alerts and pages; default: its own address",
        ("service",), "URL"),
    Setting("GONOGO_LOG", "info", "log level: debug, info, warning, error", ("service", "worker")),
    Setting("GONOGO_WORKER_LABELS", "",
        "labels of the worker, which plans may ask for: k=v,k=v", ("worker",), "list"),
    Setting("GONOGO_WORKER_DEVICES", None,
        "devices of the worker (UUIDs, cuda:0,cuda:1 or cpu:N); default: what it was given",
        ("worker",), "list"),
    Setting("GONOGO_LOCKS", None,
        "folder of device locks, shared by all homes of the host; default: /run/lock/gonogo",
        ("cli", "worker"), "path"),
    Setting("GONOGO_WORKER_ALLOW", "",
        "what plans may start here besides nsa.train: modules, paths of programs, or any",
        ("worker",), "list"),
    Setting("GONOGO_WORKER_ALLOW_ENV", "",
        "names that plans may set here besides the listed ones (docs/how-to/plans.md), or any",
        ("worker",), "list"),
    Setting("GONOGO_WORKER_ON_STOP", "leave",
        "what a stopping worker does with its runs: leave | checkpoint", ("worker",)),
    Setting("GONOGO_DEVICES_SCRIPT", None,
        "JSON file of scripted devices, if the plan allows faults (docs/reference/devices.md)",
        ("worker", "supervise"), "path"),
    Setting("GONOGO_ENGINE", "local",
        "who starts the worker's runs: local (itself) | slurm | jobset (docs/how-to/clusters.md)",
        ("cli", "worker")),
    Setting("GONOGO_SLURM_DEFAULTS", None,
        "engine slurm: a YAML file with defaults of cluster.slurm (docs/how-to/clusters.md)",
        ("worker",), "path"),
    Setting("GONOGO_JOBSET_TEMPLATE", None,
        "engine jobset: the file with the JobSet that runs are made from (docs/how-to/clusters.md)",
        ("worker",), "path"),
    Setting("GONOGO_REQUIRE", "", "components whose tests must not be skipped", ("tests",), "list"),
    Setting("GONOGO_RUN", None,
        "the run's token: set by the keeper for torchrun and its ranks", ("keeper",)),
    Setting("GONOGO_RUN_DIR", None,
        "the run directory: set by the keeper for torchrun and its ranks", ("keeper",), "path"),
)  # fmt: skip


def read(environ: Mapping[str, str], process: str) -> dict[str, str | None]:
    """Return the rows that a process reads: environment name → value or default.

    Raises:
        Rejected: an unknown `GONOGO_*` name, or the file of a secret cannot be read.
    """
    known = known_names()
    for name in environ:
        if name.startswith("GONOGO_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "see docs/reference/settings.md"
            raise Rejected(f"unknown environment variable {name}; {hint}")
    return {row.env: _value(row, environ) for row in TABLE if process in row.read_by}


def known_names() -> frozenset[str]:
    """Return every known name."""
    return frozenset(
        name for row in TABLE for name in (row.env, *([f"{row.env}_FILE"] if row.secret else []))
    )


def _value(row: Setting, environ: Mapping[str, str]) -> str | None:
    """Return the value, or that of its file, or the default."""
    found = environ.get(row.env)
    file = environ.get(f"{row.env}_FILE") if row.secret else None
    if found or not file:
        return found or row.default
    try:
        return Path(file).read_text().strip() or row.default
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"{row.env}_FILE={file}: cannot be read: {error}") from error


def home_of(values: Mapping[str, str | None]) -> Path:
    """Return GONOGO_HOME as an absolute path.

    Raises:
        Rejected: `~` has no meaning, or the path is no text.
    """
    asked = Path(values["GONOGO_HOME"] or "~/.gonogo")
    try:
        home = asked.expanduser().absolute()
        str(home).encode()
    except RuntimeError as error:  # no HOME, as in a container
        raise Rejected(f"GONOGO_HOME: {asked}: nobody knows where that is") from error
    except UnicodeEncodeError as error:
        raise Rejected(
            f"GONOGO_HOME: {str(home)!a}: no record can hold this: it is no UTF-8"
        ) from error
    return home


def parse_engine(text: str) -> EngineName:
    """Return the engine that GONOGO_ENGINE names.

    Raises:
        Rejected: there is none of that name.
    """
    try:
        return EngineName(text)
    except ValueError as error:
        known = ", ".join(EngineName)
        raise Rejected(f"GONOGO_ENGINE={text}; expected one of {known}") from error


def load_key(home: Path) -> str | None:
    """Return the local API key, or None before the first start of the service."""
    try:
        return (home / "key").read_text().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None


def socket_url(file: Path) -> str:
    """Return the address of a Redis server on a socket."""
    return f"unix://{quote(str(file))}"
