"""`python -m tests.supervise.sleeper`: a process that does nothing and ignores its arguments."""

import time

time.sleep(600)
