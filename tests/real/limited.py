"""Our trainer in a process that may have little memory: `python -m tests.real.limited --order O`.

The limit counts from what the process holds once everything is imported, so that it means the
training alone.
"""

from __future__ import annotations

import importlib
import resource
import sys
from pathlib import Path

from nsa.train import main

ROOM_BYTES = 120 * 2**20

if __name__ == "__main__":
    for name in ("nsa.trainer", "torch._dynamo"):  # an optimizer asks for the second, later
        importlib.import_module(name)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + ROOM_BYTES, held + ROOM_BYTES))
    sys.exit(main(sys.argv[1:]))
