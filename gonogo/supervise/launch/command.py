"""The command line and the environment of an order's ranks. Standard library only.

Each rank runs behind the rank wrapper (`rank`). Only allowed programs start, with allowed names in
their environment. The keeper's own settings (keys, URLs) never reach a rank.
"""

import importlib.util
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.device_slots import gpus_of
from gonogo.environment_names import NO_SECRET, is_listed, may_hold_secret, referred
from gonogo.placeholders import RESUME, RUN_DIR, fill, fill_words
from gonogo.supervise.launch.nodes import Place, fence_of
from gonogo.supervise.processes import NODE_NAME, TOKEN_NAME, own_python

ENTRIES = frozenset({"nsa.train"})
"""Modules that an order may start; `--allow` of the keeper adds more on this host."""
GROUPS = frozenset(("step", "loss", "lr", "grad_norm", "tokens", "toks_per_s", "rank"))
"""Named groups of a pattern."""
ANY = "any"

_PASSED_ON = (
    "PATH", "PYTHONPATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "VIRTUAL_ENV", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "HF_HOME", "SSL_CERT_FILE",
)  # fmt: skip
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NO_GPU = ("", "-1")  # Values for a program that computes on the CPU.
_BEYOND_OUR_DEADLINES_S = 7200
OBSERVE = "GONOGO_OBSERVE"  # Name of the environment: `0` switches the observer off.
_OBSERVER = Path(__file__).resolve().parents[2] / "observer" / "site"
RECORDED_CALLS = "2000"  # Collectives that torch's flight recorder keeps of each rank.
_HERE = "127.0.0.1"
_JOIN_S = 600  # How long a torchrun waits for the others; torch may come from a cold file system.


class LaunchRefused(ValueError):
    """The order asks for something that this host does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What this host lets an order start and set, besides what every host allows."""

    programs: frozenset[str] = ENTRIES
    """Modules, scripts and programs, or `any`; a path allows what it leads to."""
    names: frozenset[str] = frozenset()
    """Names of the environment, or `any`; `any` also passes on the host's own environment."""

    def starts(self, program: str, cwd: Path) -> bool:
        """Say whether a program may be started."""
        if ANY in self.programs or program in self.programs:
            return True
        place = _place_of(program, cwd)
        return place is not None and any(_place_of(name, cwd) == place for name in self.programs)

    def sets(self, name: str) -> bool:
        """Say whether an order may set a name of the environment."""
        if name.startswith("GONOGO_"):
            return name == OBSERVE
        return ANY in self.names or name in self.names or is_listed(name)


def _place_of(program: str, cwd: Path) -> Path | None:
    """Return the file that a name leads to, links followed; None for a module."""
    if "/" in program or program.endswith(".py"):
        return (cwd / program).resolve()
    found = shutil.which(program)
    return None if found is None else Path(found).resolve()


def build_command(
    order: Mapping[str, Any],
    run_dir: Path,
    allowed: Allowed | None = None,
    place: Place | None = None,
) -> list[str]:
    """Return the command line of the agent: torchrun, or the wrapper of the only program.

    A command is started once on each node, as it is written, behind one wrapper. Must be called by
    the keeper, whose pid the wrappers check.

    Raises:
        LaunchRefused: the program or the folder is not allowed or missing, or this host cannot
            start such ranks.
    """
    allowed = allowed or Allowed()
    cwd = Path(order.get("cwd") or Path.cwd())
    if not cwd.is_dir():
        raise LaunchRefused(f"workload.cwd: there is no folder {cwd} on this host")
    absent = [name for name in order.get("files") or () if not (cwd / name).is_file()]
    if absent:
        raise LaunchRefused(f"workload.files: {', '.join(absent)}: no such file in {cwd}")
    if (wrong := check_patterns(order.get("patterns") or ())) is not None:
        raise LaunchRefused(wrong)
    python, here = own_python(), place or Place.of(order)
    wrapper = [
        python, "-P", "-m", "gonogo.supervise.launch.rank",
        "--dir", str(run_dir), "--keeper", str(os.getpid()),
    ]  # fmt: skip
    command = _words(order, "command", run_dir)
    if command:
        _check_program(command[0], cwd, allowed, "command")
        # Never before a module: torchrun would take `--node` for an option of its own.
        node = ["--node", str(here.node)] if here.node else []
        rank = [*wrapper, *node, "--", *command]
    else:
        entry = str(order.get("entry", "nsa.train"))
        _check_program(entry, cwd, allowed, "entry")
        program = (
            [entry]
            if entry.endswith(".py")
            else [*(["-P"] if entry in ENTRIES else []), "-m", entry]
        )
        args = _words(order, "args", run_dir)
        rank = [*wrapper, "--", python, *program, "--order", str(run_dir / "order.json"), *args]
    if command or (len(here.ranks) == 1 and here.is_whole and not _has_torch()):
        return rank
    if not _has_torch():
        ranks = int(order["world_size"])
        raise LaunchRefused(f"{ranks} ranks need torchrun, and torch is not installed here")
    return [
        python, "-P", "-m", "torch.distributed.run",
        *_rendezvous(order, here),
        "--nproc-per-node", str(len(here.ranks)),
        "--max-restarts", "0",
        "--monitor-interval", "0.1",
        "--log-dir", str(run_dir / here.own(".torchrun")),
        "--no-python", *rank,
    ]  # fmt: skip


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _rendezvous(order: Mapping[str, Any], place: Place) -> list[str]:
    """Return the options by which torchruns find each other.

    On several nodes they meet at node 0 under the id `{run}.{token}`, so the torchrun of an older
    attempt meets nobody. `--standalone` would resolve `localhost`, which not every host can.
    """
    if place.is_whole:
        endpoint, address, more = f"{_HERE}:0", _HERE, []
    elif place.rendezvous is None:
        raise LaunchRefused("it is not known where the nodes meet")
    else:
        limits = f"join_timeout={_JOIN_S},read_timeout={_JOIN_S}"
        more = ["--nnodes", str(place.nodes), "--rdzv-conf", f"is_host={int(place.leads)},{limits}"]
        endpoint, address = place.rendezvous, place.sorted_address
    meeting = str(order["run"]) if place.is_whole else fence_of(order)
    return [
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", meeting),
        *("--local-addr", address, *more),
    ]


def _words(order: Mapping[str, Any], field: str, run_dir: Path) -> list[str]:
    words = [str(word) for word in order.get(field) or ()]
    return fill_words(words, _known(order, run_dir)) if _is_filled(order, field) else words


def _is_filled(order: Mapping[str, Any], field: str) -> bool:
    return field in (order.get("filled_at_start") or ())


def _known(order: Mapping[str, Any], run_dir: Path) -> dict[str, str]:
    point = (order.get("resume_from") or {}).get("path")
    return {RUN_DIR: str(run_dir), RESUME: str(run_dir / point) if point else ""}


def _check_program(program: str, cwd: Path, allowed: Allowed, what: str) -> None:
    if not allowed.starts(program, cwd):
        listed = ", ".join(sorted(allowed.programs))
        raise LaunchRefused(
            f"{what} {program!r} is not allowed on this host (it allows {listed};"
            " GONOGO_WORKER_ALLOW of its worker names more)"
        )


def build_environment(
    order: Mapping[str, Any],
    run_dir: Path,
    environ: Mapping[str, str],
    devices: Collection[str],
    allowed: Allowed | None = None,
    place: Place | None = None,
) -> dict[str, str]:
    """Return the environment of the agent and its ranks.

    Raises:
        LaunchRefused: the order sets a name that is not allowed, needs a secret that is missing,
            or names GPUs although it holds some.
    """
    allowed = allowed or Allowed()
    if ANY in allowed.names:
        chosen = {name: text for name, text in environ.items() if not name.startswith("GONOGO_")}
    else:
        chosen = {name: environ[name] for name in _PASSED_ON if name in environ}
    gpus = gpus_of(devices)
    if gpus:
        chosen[_VISIBLE] = ",".join(gpus)
    chosen.update(
        {
            **({} if order.get("command") else {"OMP_NUM_THREADS": "1"}),
            **_observer_path(order, chosen),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "TORCH_FR_BUFFER_SIZE": RECORDED_CALLS,
            "TORCH_NCCL_TRACE_BUFFER_SIZE": RECORDED_CALLS,  # its name before torch 2.9
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(run_dir / "nccl_trace_rank_"),
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(run_dir / ".nccl_dump_rank_"),
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(_BEYOND_OUR_DEADLINES_S),
        }
    )
    known = _known(order, run_dir) if _is_filled(order, "env") else {}
    for name, value in dict(order.get("env") or {}).items():
        if not allowed.sets(name):
            raise LaunchRefused(
                f"environment name {name!r} is not allowed on this host"
                " (GONOGO_WORKER_ALLOW_ENV of its worker names more)"
            )
        if name == _VISIBLE and gpus and str(value) not in _NO_GPU:
            raise LaunchRefused(f"{name}: a run has the GPUs that it holds, {chosen[name]}")
        text = fill(str(value), known) if known else str(value)
        chosen[name] = _value(name, text, environ)
    chosen[TOKEN_NAME] = str(order["run"])
    if place is not None and not place.is_whole:
        chosen[NODE_NAME] = f"{order['run']}/{place.node}"
    chosen["GONOGO_RUN_DIR"] = str(run_dir)
    return chosen


def _observer_path(order: Mapping[str, Any], chosen: Mapping[str, str]) -> dict[str, str]:
    if not order.get("command") or dict(order.get("env") or {}).get(OBSERVE) == "0":
        return {}
    path = [str(_OBSERVER), *filter(None, [chosen.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}


def _value(name: str, value: str, environ: Mapping[str, str]) -> str:
    """Return a value, or the secret of this host's home that it refers to."""
    try:
        secret = referred(value)
    except ValueError as error:
        raise LaunchRefused(f"environment name {name!r}: {error}") from error
    if secret is None:
        return value
    if not may_hold_secret(name):
        raise LaunchRefused(f"environment name {name!r}: {NO_SECRET}")
    path = Path(environ.get("GONOGO_HOME") or "~/.gonogo").expanduser() / "secrets" / secret
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchRefused(
            f"environment name {name!r}: secret {secret!r} cannot be read on this host"
            f" ({type(error).__name__}); put it into $GONOGO_HOME/secrets/{secret}"
        ) from error


def check_patterns(patterns: Sequence[str]) -> str | None:
    """Return what is wrong with the first unusable pattern; None if all can be used."""
    for text in patterns:
        try:
            groups = re.compile(text).groupindex.keys()
        except re.error as error:
            return f"pattern {text!r}: {error}"
        if unknown := sorted(groups - GROUPS):
            known = ", ".join(sorted(GROUPS))
            return f"pattern {text!r}: found group {unknown[0]!r}; expected one of {known}"
        if not groups & {"step", "loss"}:
            return f"pattern {text!r}: it names neither (?P<step>…) nor (?P<loss>…)"
    return None
