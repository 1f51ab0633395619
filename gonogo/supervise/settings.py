"""What does the supervision of a run read from its environment? Here, and only here."""

import os
from collections.abc import Mapping
from pathlib import Path

from gonogo.settings import read


def load_devices_script(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the file of scripted devices (GONOGO_DEVICES_SCRIPT), where one is set.

    Raises:
        Rejected: an unknown `GONOGO_*` name.
    """
    values = read(dict(os.environ if environ is None else environ), "supervise")
    text = values["GONOGO_DEVICES_SCRIPT"]
    return None if text is None else Path(text).expanduser().absolute()
