"""Where does the `gonogo` command begin? Here, with next to nothing, until Ctrl-C is one line.

What the command line loads takes up to a second, in which an interrupt would show a reader where
Python stood. The commands are in `app`.
"""

import io
import os
import signal
import sys

_INTERRUPTED = 130
"""`exits.Exit.INTERRUPTED`, whose module would have to be loaded first."""


def main() -> None:
    """Run the command line of this process."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, _leave)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may be no text of the terminal's
        sys.stdout.reconfigure(errors="backslashreplace")
    from gonogo.cli.app import run  # after the handler: this is what takes long
    from gonogo.cli.output import drop_unwritten

    code = _INTERRUPTED
    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
    except KeyboardInterrupt:
        _leave(signal.SIGINT, None)
    except BrokenPipeError:
        code = 1
        if sys.stdout is not None:
            drop_unwritten(sys.stdout)
    if sys.stderr is not None:  # what nobody was told decides no exit code
        drop_unwritten(sys.stderr)
    sys.exit(code)


def _leave(number: int, frame: object) -> None:
    """End this process: nothing has begun that would have to be ended in order."""
    del number, frame
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
