"""Entry of the `gonogo` command: Ctrl-C is one line also during the slow imports."""

import io
import sys


def main() -> None:
    """Run the command line of this process."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # for names that the terminal cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")
    code = 130
    try:
        from gonogo.cli.app import run

        code = run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except BrokenPipeError:
        from gonogo.cli.output import drop_unwritten

        drop_unwritten(sys.stdout)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
