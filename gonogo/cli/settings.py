"""What does the command line read from its environment? The only place that reads it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gonogo.cli.reach.locate import Located, key_refused, locate_service
from gonogo.contract.cluster import EngineName
from gonogo.contract.errors import NotAllowed
from gonogo.settings import home_of, load_key, parse_engine, read


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
    """Who starts the runs of the worker of `up`."""
    inherited: Mapping[str, str] = field(repr=False)
    """The whole environment, for the processes that `up` and `demo` start."""

    @property
    def url(self) -> str:
        """Address of the service."""
        return self.service.url

    def key_refused(self) -> str:
        """Return what a service that refuses the key has against it, and what to do."""
        return key_refused(self.api_key, self.home)

    def key(self) -> str | None:
        """Return the API key: the environment's, else the local one in the home.

        Raises:
            NotAllowed: the local key belongs to somebody else.
        """
        try:
            return self.api_key or load_key(self.home)
        except PermissionError as error:
            raise NotAllowed(f"{self.home}/key may not be read; set GONOGO_API_KEY") from error


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this process.

    Raises:
        Rejected: an unknown `GONOGO_*` name.
    """
    source = dict(os.environ if environ is None else environ)
    values = read(source, "cli")
    home = home_of(values)
    return Settings(
        home=home,
        service=locate_service(source.get("GONOGO_URL"), home, values["GONOGO_URL"] or ""),
        api_key=values["GONOGO_API_KEY"],
        redis_url=values["REDIS_URL"],
        engine=parse_engine(values["GONOGO_ENGINE"] or "local"),
        locks=Path(values["GONOGO_LOCKS"]).expanduser() if values["GONOGO_LOCKS"] else None,
        inherited=source,
    )
