"""How does the kernel in C come to be: compiled once a machine, checked before it is loaded?

The library lies in this user's cache, under a name made of the source, the compiler and the
processor: a change of any asks for another. Nobody else may be able to write it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nsa.attention.settings import c_compiler, cache_folder, cpu_kernels

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("decode.c")
LIMIT_S = 60.0
"""What the compiler may take; two to ten seconds are usual."""
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=gnu11")
_PROCESSOR = Path("/proc/cpuinfo")
_REASON_LIMIT = 200


@functools.cache
def load_library() -> ctypes.CDLL | str:
    """Return the kernel of this machine, or why there is none."""
    if not cpu_kernels():
        return "NSA_CPU_KERNELS=0 switches it off"
    compiler, base = c_compiler(), cache_folder()
    if compiler is None:
        return "it needs a C compiler (gcc, clang, or one that CC names), and there is none"
    if base is None:
        return "it needs a folder to be kept in, and this user has no home"
    try:
        return ctypes.CDLL(str(build_library(shlex.split(compiler), base / "nsa-cpu")))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = f"it could not be built: {_why(error)}"
        logger.warning("the attention's CPU kernel: %s; PyTorch's operations serve", reason)
        return reason


def build_library(compiler: Sequence[str], folder: Path) -> Path:
    """Return the library of this machine in a folder, compiled if it is not there.

    Raises:
        OSError: The folder cannot be written, or others can write it.
        ValueError: No compiler is named.
        subprocess.SubprocessError: The compiler fails, or takes too long.
    """
    if not compiler:
        raise ValueError("CC is empty")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owned(folder)
    library = folder / f"{_digest(compiler)}.so"
    if not library.exists():
        _compile(compiler, library)
    _check_owned(library)
    return library


def _compile(compiler: Sequence[str], library: Path) -> None:
    handle, name = tempfile.mkstemp(prefix=".making-", suffix=".so", dir=library.parent)
    os.close(handle)
    made = Path(name)
    logger.info("compiling the attention's CPU kernel, once for this machine")
    try:
        subprocess.run(
            [*compiler, *_FLAGS, "-o", str(made), str(SOURCE), "-lm"],
            check=True, capture_output=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        made.chmod(0o700)
        made.replace(library)
    finally:
        made.unlink(missing_ok=True)


def _digest(compiler: Sequence[str]) -> str:
    told = subprocess.run(
        [*compiler, "--version"],
        check=True, capture_output=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    parts = (
        SOURCE.read_bytes(),
        told.stdout,
        " ".join((*compiler, *_FLAGS)).encode(),
        _processor(),
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:24]


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
