"""Compile the kernels in C once a machine, into a library in the user's cache.

The name of a library covers the source, the compiler, its flags and the processor. It is compiled
beside its place and tried by another process before it is renamed.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nsa.attention.settings import c_compiler, cache_folder, cpu_kernels

logger = logging.getLogger(__name__)

LIMIT_S = 60.0
"""What the compiler may take; two to ten seconds are usual."""
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=gnu11")
_TRIAL = "import ctypes, sys; [getattr(ctypes.CDLL(sys.argv[1]), name) for name in sys.argv[2:]]"
_PROCESSOR = Path("/proc/cpuinfo")
_REASON_LIMIT = 200


class Kernel(NamedTuple):
    """A source beside this module, and the functions that its library must have."""

    source: Path
    functions: tuple[str, ...]

    @classmethod
    def of(cls, name: str, *functions: str) -> Kernel:
        """Return the kernel of a source by its name."""
        return cls(Path(__file__).with_name(name), functions)


@functools.cache
def load_library(kernel: Kernel) -> ctypes.CDLL | str:
    """Return the library of a kernel on this machine, or why there is none."""
    if not cpu_kernels():
        return "NSA_CPU_KERNELS=0 switches it off"
    compiler, base = c_compiler(), cache_folder()
    if not compiler:
        return "it needs a C compiler (gcc, clang, or one that CC names), and there is none"
    if base is None:
        return "it needs a folder to be kept in, and this user has no home"
    try:
        return ctypes.CDLL(str(build_library(shlex.split(compiler), base / "nsa-cpu", kernel)))
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode("utf-8", "replace").strip()
        reason = f"it could not be built: {(said or str(error)).splitlines()[0][:_REASON_LIMIT]}"
        logger.warning(
            "the CPU kernel %s: %s; PyTorch's operations serve", kernel.source.stem, reason
        )
        return reason


def build_library(compiler: Sequence[str], folder: Path, kernel: Kernel) -> Path:
    """Return a kernel's library in a folder, compiled if it is not there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    library = folder / f"{_digest(compiler, kernel)}.so"
    if library.exists():
        return library
    handle, spare = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    made = Path(spare)
    logger.info("compiling the CPU kernel %s, once for this machine", kernel.source.stem)
    try:
        _run([*compiler, *_FLAGS, "-o", str(made), str(kernel.source), "-lm"])
        # Elsewhere first: a library that is linked to a sanitizer ends the process that loads it.
        _run([sys.executable or "python3", "-I", "-S", "-c", _TRIAL, spare, *kernel.functions])
        made.replace(library)
    finally:
        made.unlink(missing_ok=True)
    return library


def _run(command: Sequence[str]) -> bytes:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=True
    ).stdout


def _digest(compiler: Sequence[str], kernel: Kernel) -> str:
    parts = (
        kernel.source.read_bytes(),
        _run([*compiler, "--version"]),
        " ".join((*compiler, *_FLAGS)).encode(),
        _processor(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _processor() -> bytes:
    """What this processor is and has: a home may be shared by hosts that differ."""
    named = f"{platform.machine()} {platform.processor()}".encode()
    try:
        lines = _PROCESSOR.read_bytes().splitlines()
    except OSError:
        return named
    telling = (b"model name", b"flags", b"Features", b"CPU part")
    return b"\n".join([named, *sorted({line for line in lines if line.startswith(telling)})])
