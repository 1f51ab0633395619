"""What does the command line read from its environment? The only place that reads it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gonogo.contract.settings import home_of, load_key, read


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one invocation."""

    home: Path
    url: str
    api_key: str | None = field(repr=False)
    redis_url: str | None = field(repr=False)
    inherited: Mapping[str, str] = field(repr=False)
    """The whole environment, for the processes that `up` and `demo` start."""

    def key(self) -> str | None:
        """Return the API key: the environment's, else the local one in the home."""
        return self.api_key or load_key(self.home)


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this process.

    Raises:
        Rejected: an unknown `GONOGO_*` name.
    """
    source = dict(os.environ if environ is None else environ)
    values = read(source, "cli")
    return Settings(
        home=home_of(values),
        url=(values["GONOGO_URL"] or "").rstrip("/"),
        api_key=values["GONOGO_API_KEY"],
        redis_url=values["REDIS_URL"],
        inherited=source,
    )
