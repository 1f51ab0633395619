"""Entry of the `gonogo` command: it makes Ctrl-C one line before the slow imports."""

import io
import os
import signal
import sys

_INTERRUPTED = 130
"""`exits.Exit.INTERRUPTED`, whose import is slow."""


def main() -> None:
    """Run the command line of this process."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, _leave)
    if isinstance(sys.stdout, io.TextIOWrapper):  # for file names that the terminal cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")
    from gonogo.cli.app import run  # slow: after the handler
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
    if sys.stderr is not None:  # a lost message decides no exit code
        drop_unwritten(sys.stderr)
    sys.exit(code)


def _leave(number: int, frame: object) -> None:
    """End this process; nothing has begun yet."""
    del number, frame
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
