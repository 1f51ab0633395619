"""How are the applications started? With `python -m` from the checkout or the image.

They are never installed (their names exist on PyPI), so a gonogo without a checkout says so.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gonogo.planning.resolve import checkout_root


def application_argv(module: str, *arguments: str) -> list[str]:
    """Return the command line of an application's module."""
    return [sys.executable, "-m", module, *arguments]


def application_env(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the environment of an application: the checkout stands first on its path."""
    root = str(checkout_root())
    path = os.pathsep.join(filter(None, [root, environ.get("PYTHONPATH")]))
    return {**environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


def replace_process(module: str, *arguments: str, environ: Mapping[str, str]) -> None:
    """Become an application, in the checkout's folder.

    Raises:
        NotFound: gonogo is installed alone.
    """
    root: Path = checkout_root()
    env = application_env(environ)
    os.chdir(root)
    os.execve(sys.executable, application_argv(module, *arguments), env)
