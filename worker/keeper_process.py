"""`python -m worker.keeper_process RUNDIR …`: the keeper, with a watcher that ships."""

import sys

from gonogo.supervise.keeper.__main__ import main

WATCHER_MODULE = "worker.watcher_process"

if __name__ == "__main__":
    sys.exit(main(["--watcher", WATCHER_MODULE, *sys.argv[1:]]))
