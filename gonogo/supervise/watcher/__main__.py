"""`python -m gonogo.supervise.watcher RUNDIR`: watch one run offline."""

import sys

from gonogo.supervise.watcher.watcher import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
