"""Which secrets does the compose project need? `python3 docker/make_secrets.py` makes the missing.

The folder is 0700, so that only you reach its files from outside; the files are 0444, because the
users of the containers they are mounted into have other numbers than you. A secret that is there
is never changed: to renew one, delete its file and run this again.
"""

import base64
import os
import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "secrets"
NO_RECEIVER = "http://127.0.0.1:9/no-receiver"
"""Without a receiver, Prometheus' alerts are seen on Alertmanager's page only."""


def make() -> dict[str, str]:
    """Return a fresh value of every secret by its file's name."""
    return {
        "postgres_password": secrets.token_urlsafe(32),
        "grafana_password": secrets.token_urlsafe(16),
        "worker_key": f"gonogo_{secrets.token_urlsafe(32)}",
        "webhook_secret": "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode(),
        "alerts_url": NO_RECEIVER,
    }


def main(folder: Path) -> None:
    """Make the folder and every missing secret in it, and say which."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for name, value in make().items():
        try:
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "w") as stream:
            os.fchmod(stream.fileno(), 0o444)  # whatever the umask
            stream.write(value)
        print(f"made {folder / name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
