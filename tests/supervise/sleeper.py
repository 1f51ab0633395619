"""`python -m tests.supervise.sleeper`: a process that does nothing, whatever it is told."""

import time

time.sleep(600)
