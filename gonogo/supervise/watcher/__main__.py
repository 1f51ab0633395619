"""`python -m gonogo.supervise.watcher RUNDIR`: watch one run, and tell nobody."""

import sys

from gonogo.supervise.watcher.entry import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
