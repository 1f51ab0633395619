"""Read the environment for the attention; its only module that does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """The user's cache folder: in XDG_CACHE_HOME, else ~/.cache; None if there is neither."""
    environ = os.environ if environ is None else environ
    chosen = Path(environ.get("XDG_CACHE_HOME", ""))
    if chosen.is_absolute():
        return chosen / "gonogo"
    try:
        return Path.home() / ".cache" / "gonogo"
    except RuntimeError:  # a user without a home
        return None


def cpu_kernels(environ: Mapping[str, str] | None = None) -> bool:
    """Whether kernels may be compiled for this CPU: unless NSA_CPU_KERNELS is 0."""
    environ = os.environ if environ is None else environ
    return environ.get("NSA_CPU_KERNELS", "1") != "0"


def c_compiler(environ: Mapping[str, str] | None = None) -> str | None:
    """The C compiler that Triton takes for its launchers, as kernels for CPUs do; or None."""
    environ = os.environ if environ is None else environ
    path = environ.get("PATH")
    return environ.get("CC") or shutil.which("gcc", path=path) or shutil.which("clang", path=path)
