"""How is a thread started on a host that may have none to give? Standard library only.

A container and a batch job may start so many processes and threads, and a run may use them up. For
Python a thread that cannot be started is a RuntimeError, by which a process would end that looks
after a run. Here it is an OSError, as where a process cannot be started, and weather like that.
"""

import errno
import threading
from collections.abc import Callable


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a thread that does not keep its process.

    Args:
        work: what it does.
        name: its own.

    Raises:
        OSError: the host has none to give just now.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread can be started for {name}") from error
    return thread
