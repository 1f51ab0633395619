"""Where does a home say which service answers? In its `service.json`: `{url, pid, host}`.

The last one that begins to listen is named there. Where that ends before another of the same home
does (a second `gonogo serve`), the one that goes on is named again.
"""

import json
import os
import socket
from pathlib import Path

from gonogo.rundir import save_json
from gonogo.settings import SERVICE_FILE


def announce(home: Path, url: str) -> None:
    """Name this process as the one that answers.

    Raises:
        OSError: the disk takes no file.
    """
    save_json(home / SERVICE_FILE, {"url": url, "pid": os.getpid(), "host": socket.gethostname()})


def announce_again(home: Path, url: str) -> None:
    """Name this process where one is named that is gone; a home that names none stays as it is.

    Raises:
        OSError: the disk takes no file, or cannot be read.
    """
    try:
        pid = int(json.loads((home / SERVICE_FILE).read_bytes())["pid"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return
    if not Path(f"/proc/{pid}").exists():
        announce(home, url)
