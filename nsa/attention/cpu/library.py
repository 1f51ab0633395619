"""How do the kernels in C come to be: compiled once a machine, checked before they are loaded?

A library lies in this user's cache, under a name made of the source, the compiler and the
processor, and of what it holds: a change of any asks for another, and so does one that is not whole
(a power cut). Nobody else may be able to write it. It is loaded by another process first.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nsa.attention.settings import c_compiler, cache_folder, cpu_kernels

logger = logging.getLogger(__name__)

LIMIT_S = 60.0
"""What the compiler may take; two to ten seconds are usual."""
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=gnu11")
_TRIAL = """
import ctypes, sys
try:
    library = ctypes.CDLL(sys.argv[1])
    [getattr(library, name) for name in sys.argv[2:]]
except (OSError, AttributeError) as error:
    sys.exit(str(error))
"""
_MAKING = ".making-"
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
    if not hasattr(os, "geteuid"):
        return "it needs a POSIX system"
    compiler, base = c_compiler(), cache_folder()
    if compiler is None:
        return "it needs a C compiler (gcc, clang, or one that CC names), and there is none"
    if base is None:
        return "it needs a folder to be kept in, and this user has no home"
    try:
        folder = base / "nsa-cpu"
        return ctypes.CDLL(str(build_library(shlex.split(compiler), folder, kernel)))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = f"it could not be built: {_why(error)}"
        name = kernel.source.stem
        logger.warning("the CPU kernel %s: %s; PyTorch's operations serve", name, reason)
        return reason


def build_library(compiler: Sequence[str], folder: Path, kernel: Kernel) -> Path:
    """Return a kernel's library in a folder, compiled if it is not there whole.

    Raises:
        OSError: The folder cannot be written, or others can write it.
        ValueError: No compiler is named.
        subprocess.SubprocessError: The compiler fails, takes too long, or makes something else.
    """
    if not compiler:
        raise ValueError("CC is empty")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owned(folder)
    name = _digest(compiler, kernel)
    library = next(filter(_is_whole, sorted(folder.glob(f"{name}-*.so"))), None)
    if library is None:
        library = _compile(compiler, folder, name, kernel)
    _check_owned(library)
    return library


def _is_whole(library: Path) -> bool:
    """Whether a library holds what was compiled: after a power cut it may be cut short."""
    return library.stem.endswith(f"-{_short_digest(library.read_bytes())}")


def _compile(compiler: Sequence[str], folder: Path, name: str, kernel: Kernel) -> Path:
    _remove_forgotten(folder)
    handle, spare = tempfile.mkstemp(prefix=_MAKING, suffix=".so", dir=folder)
    os.close(handle)
    made = Path(spare)
    logger.info("compiling the CPU kernel %s, once for this machine", kernel.source.stem)
    try:
        _say([*compiler, *_FLAGS, "-o", str(made), str(kernel.source), "-lm"])
        made.chmod(0o700)
        # Elsewhere first: what a sanitizer is linked to ends the process that loads it.
        python = sys.executable or "python3"
        _say([python, "-I", "-S", "-c", _TRIAL, str(made), *kernel.functions])
        library = folder / f"{name}-{_short_digest(made.read_bytes())}.so"
        _place(made, library)
    finally:
        made.unlink(missing_ok=True)
    return library


def _place(made: Path, library: Path) -> None:
    """Give a library its name; one that is there whole stays.

    Another host of this home may have compiled it meanwhile and run in it: on a network file system
    what is replaced is gone under who has it open, which ends him.
    """
    try:
        os.link(made, library)
    except OSError:  # it is there, or there are no links here
        if not library.exists() or not _is_whole(library):
            made.replace(library)


def _remove_forgotten(folder: Path) -> None:
    """Remove what compilations left that were killed."""
    for spare in folder.glob(f"{_MAKING}*"):
        with suppress(OSError):
            if time.time() - spare.stat().st_mtime > 2 * LIMIT_S:
                spare.unlink()


def _say(command: Sequence[str]) -> bytes:
    """Return what a program says; one that takes too long ends with all that it has started.

    Raises:
        OSError: It cannot be started.
        subprocess.SubprocessError: It fails, or takes too long.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out, err)
    return out


def _digest(compiler: Sequence[str], kernel: Kernel) -> str:
    parts = (
        kernel.source.read_bytes(),
        _say([*compiler, "--version"]),
        " ".join((*compiler, *_FLAGS)).encode(),
        _processor(),
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:24]


def _short_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _processor() -> bytes:
    """What this processor is and has: a home may be shared by hosts that differ."""
    named = f"{platform.machine()} {platform.processor()}".encode()
    try:
        lines = _PROCESSOR.read_bytes().splitlines()
    except OSError:
        return named
    telling = (b"model name", b"flags", b"Features", b"CPU part")
    return b"\n".join([named, *sorted({line for line in lines if line.startswith(telling)})])


def _check_owned(path: Path) -> None:
    """Refuse what another user could have put there.

    Raises:
        PermissionError: It is another's, or others may write it.
    """
    found = path.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(f"{path} is not this user's alone")


def _why(error: Exception) -> str:
    said = getattr(error, "stderr", None)
    if said:
        lines: list[str] = said.decode("utf-8", "replace").strip().splitlines()
        return (lines or [str(error)])[0][:_REASON_LIMIT]
    return str(error)[:_REASON_LIMIT]
