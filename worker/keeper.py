"""`python -m worker.keeper RUNDIR …`: gonogo's keeper, with a watcher that ships what it sees."""

import sys

from gonogo.supervise.keeper.__main__ import main

WATCHER_MODULE = "worker.watcher"

if __name__ == "__main__":
    sys.exit(main(["--watcher", WATCHER_MODULE, *sys.argv[1:]]))
