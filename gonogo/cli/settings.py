"""Settings of the command line, and where the service of a home is (`service.json`).

The file of a process that is gone is not used: another user may listen at that port by now.
"""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gonogo.contract.errors import NotAllowed
from gonogo.contract.workload import EngineName
from gonogo.settings import SERVICE_FILE, home_of, load_key, parse_engine, read

_NAMED = "GONOGO_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The expected address of a service, and what names it."""

    url: str
    source: str
    """`GONOGO_URL`, the path of the file that names it, or `the default`."""
    stale: str | None = None
    """What is wrong with that file."""
    elsewhere: str | None = None
    """Another host, where the service is."""

    def unanswered(self) -> str:
        """Return what to do when nobody answers there."""
        if self.stale is not None:
            return f"{self.stale}; start it with `gonogo up`"
        if self.elsewhere is not None:
            where = f"the service of this home is on {self.elsewhere} ({self.source})"
            return f"{where}; type this there, or set GONOGO_URL"
        return f"{self.source} names this address; is it running? (`gonogo up`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one invocation."""

    home: Path
    service: Located
    api_key: str | None = field(repr=False)
    redis_url: str | None = field(repr=False)
    locks: Path | None = None
    """The host's folder of device locks; None = the usual one."""
    engine: EngineName = EngineName.LOCAL
    """What starts the runs of the worker of `up`."""
    inherited: Mapping[str, str] = field(repr=False)
    """The whole environment, for the processes that `up` and `demo` start."""

    @property
    def url(self) -> str:
        """Address of the service."""
        return self.service.url

    def key_refused(self) -> str:
        """Return what is wrong with a key that the service refuses, and what to do."""
        file = self.home / "key"
        if self.api_key:
            return f"does not know the key in GONOGO_API_KEY; unset it to use that of {file}"
        if not file.exists():
            return f"wants a key, and {file} is not there; set GONOGO_API_KEY, or GONOGO_HOME"
        return f"does not know the key in {file}; set GONOGO_API_KEY, or GONOGO_HOME to its home"

    def key(self) -> str | None:
        """Return the API key: the environment's, else the local one in the home."""
        try:
            return self.api_key or load_key(self.home)
        except PermissionError as error:
            raise NotAllowed(f"{self.home}/key may not be read; set GONOGO_API_KEY") from error


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this process; an unknown `GONOGO_*` name is refused."""
    source = dict(os.environ if environ is None else environ)
    values = read(source, "cli")
    home = home_of(values)
    return Settings(
        home=home,
        service=locate_service(source.get(_NAMED), home, values[_NAMED] or ""),
        api_key=values["GONOGO_API_KEY"],
        redis_url=values["REDIS_URL"],
        engine=parse_engine(values["GONOGO_ENGINE"] or "local"),
        locks=Path(values["GONOGO_LOCKS"]).expanduser() if values["GONOGO_LOCKS"] else None,
        inherited=source,
    )


def locate_service(named: str | None, home: Path, default: str) -> Located:
    """Return where the service of a home is: by GONOGO_URL, by the home's file, or the default."""
    if named:
        return Located(url=named.rstrip("/"), source=_NAMED)
    path, default = home / SERVICE_FILE, default.rstrip("/")
    try:
        found = json.loads(path.read_text())
        url, pid, host = str(found["url"]).rstrip("/"), int(found["pid"]), found.get("host")
    except FileNotFoundError:
        return Located(url=default, source="the default")
    except (OSError, ValueError, KeyError, TypeError):
        stale = f"{path} cannot be read as a service's address"
        return Located(url=default, source="the default", stale=stale)
    if host is not None and host != socket.gethostname():
        return Located(url=url, source=str(path), elsewhere=str(host))
    gone = None if Path(f"/proc/{pid}").exists() else f"{path} is stale: its process {pid} is gone"
    return Located(url=url, source=str(path), stale=gone)
