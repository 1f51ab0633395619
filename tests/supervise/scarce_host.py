"""A program of ours on a host that has no process to give while the named file is there.

`python -m tests.supervise.scarce_host MODULE ARGUMENTS…` runs MODULE's `main`; `GONOGO_TEST_SCARCE`
names the file, `GONOGO_TEST_START_S` for how long a program is waited for.
"""

import errno
import importlib
import os
import subprocess
import sys
from pathlib import Path

flag = Path(os.environ["GONOGO_TEST_SCARCE"])
execute = subprocess.Popen._execute_child


def refuse(self, *args):
    if flag.exists():
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return execute(self, *args)


subprocess.Popen._execute_child = refuse
limit_s = float(os.environ["GONOGO_TEST_START_S"])
for name in ("keeper.keeper", "launch.rank", "transient_errors"):
    importlib.import_module(f"gonogo.supervise.{name}").START_LIMIT_S = limit_s
sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
