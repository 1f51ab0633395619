"""The keeper of a host of the service: gonogo's own, with a watcher that ships what it sees.

`python -m worker.keeper RUNDIR …` takes the arguments of `python -m gonogo.supervise.keeper`.
"""

import sys

from gonogo.supervise.keeper.__main__ import main

WATCHER_MODULE = "worker.watcher"

if __name__ == "__main__":
    sys.exit(main(["--watcher", WATCHER_MODULE, *sys.argv[1:]]))
