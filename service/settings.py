"""Settings of the control plane, read from its environment, and the secrets that sign alerts."""

import base64
import binascii
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from sqlalchemy import URL

from gonogo.contract.errors import Rejected
from gonogo.settings import home_of, read
from gonogo.systemd import Notifier, load_notifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The service's rows of `gonogo.settings.TABLE`, read."""

    home: Path
    database_url: str
    redis_url: str | None = None
    webhook_url: str | None = None
    webhook_secret: str | None = None
    public_url: str | None = None
    log: str = "info"
    notifier: Notifier = field(default_factory=Notifier)

    @property
    def decisions(self) -> Path:
        """Folder of the self-contained decision files."""
        return self.home / "decisions"

    @property
    def runs(self) -> Path:
        """Folder of the run directories of workers that share this home."""
        return self.home / "runs"


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that an environment holds (default: this process's)."""
    source = os.environ if environ is None else environ
    values = read(source, "service")
    home = home_of(values)
    secret = values["GONOGO_WEBHOOK_SECRET"]
    return Settings(
        home=home,
        database_url=_with_password(
            values["GONOGO_DATABASE_URL"] or sqlite_url(home / "gonogo.db"),
            values["GONOGO_DATABASE_PASSWORD"],
        ),
        redis_url=values["REDIS_URL"],
        webhook_url=values["GONOGO_WEBHOOK_URL"],
        webhook_secret=check_secret(secret) if secret else None,
        public_url=_address(values["GONOGO_PUBLIC_URL"]),
        log=values["GONOGO_LOG"] or "info",
        notifier=load_notifier(source, os.getpid()),
    )


def sqlite_url(file: Path) -> str:
    """Return the URL of a SQLite database, whatever stands in its path (`%20`, `?`)."""
    return URL.create("sqlite", database=str(file)).render_as_string()


def _with_password(url: str, password: str | None) -> str:
    """Return a database's address with the password that it does not hold itself."""
    parts = urlsplit(url)
    if password is None or parts.username is None or parts.password is not None:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()


def _address(url: str | None) -> str | None:
    """Return an address without what would stand before a path."""
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Rejected(f"GONOGO_PUBLIC_URL={url}; expected http://HOST… or https://HOST…")
    return url.rstrip("/")


def new_secret() -> str:
    """Return a fresh secret of 32 random bytes."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"


def check_secret(secret: str) -> str:
    """Return a secret that can sign."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as error:
        raise Rejected("webhook secret: expected whsec_ and base64") from error
    if len(key) < 24:
        raise Rejected(f"webhook secret: {len(key)} bytes; expected at least 24")
    return secret
