"""Read the settings of the supervision from the environment."""

import os
from pathlib import Path

from gonogo.settings import read


def load_devices_script() -> Path | None:
    """Return the file of scripted devices (GONOGO_DEVICES_SCRIPT), if one is set.

    Raises:
        Rejected: an unknown `GONOGO_*` name.
    """
    text = read(dict(os.environ), "supervise")["GONOGO_DEVICES_SCRIPT"]
    return None if text is None else Path(text).expanduser().absolute()
