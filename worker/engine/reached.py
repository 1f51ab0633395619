"""Where do the nodes of an engine's runs reach the control plane? Where their home's worker does.

What a job was submitted with is an address of that time: the home may be worked from another login
node by now, or at another port.
"""

from pathlib import Path

from gonogo.rundir import save_json
from gonogo.settings import REACHED_FILE
from gonogo.supervise.durable import load_json
from worker.engine.submission import load_submission


def save_reached(home: Path, url: str) -> bool:
    """Write down the control plane's address, as a home's worker has it; True: it is there.

    Raises:
        OSError: the home cannot be written to just now.
    """
    save_json(home / REACHED_FILE, {"v": 1, "url": url})
    return True


def load_reached(home: Path, run_dir: Path) -> str | None:
    """Return the address for a run's nodes; None: the run is no engine's, or nothing is known."""
    try:
        if load_submission(run_dir) is None:
            return None
        url = (load_json(home / REACHED_FILE) or {}).get("url")
    except OSError:  # weather
        return None
    return url if isinstance(url, str) and url else None
