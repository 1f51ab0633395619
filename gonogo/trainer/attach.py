"""Attach this process to its run as a rank, or find that there is no run."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gonogo.trainer import ranks
from gonogo.trainer.beat import Beat
from gonogo.trainer.encoding import digest
from gonogo.trainer.heartbeat_writer import (
    ATTACHED,
    SILENCED,
    HeartbeatWriter,
    Taken,
    end_observation,
    writes_already,
)
from gonogo.trainer.identity import count_environment, digest_files
from gonogo.trainer.run_dir import RunDir, load_run_dir
from gonogo.trainer.settings import Settings, load_settings


def attach(
    run_dir: str | Path | None = None,
    *,
    model: Any = None,
    config: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
    agree: Callable[[bool], bool] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Beat:
    """Attach this process as a rank, and wait until it may begin.

    Args:
        run_dir: default: GONOGO_RUN_DIR; without either nothing is written.
        model: torch module; its parameters are counted. A script that builds it later calls
            `beat.model(…)`, and waits there if the order checks its size or device.
        config: the whole configuration of the script, for its digest.
        identity: what cannot be counted, such as `dim`, `seq_len`, `dataset`.
        agree: gets this rank's answer and returns whether any rank's is yes, the same on every
            rank; default: through torch.distributed.
        rank: number of this rank; default: RANK, torch.distributed's, or 0.
        world_size: number of ranks; default: WORLD_SIZE, torch.distributed's, or 1.

    Returns:
        a context manager; leaving it writes `done` or the error.

    Raises:
        SystemExit: 3, halted before the start; 4, no `.GO` within two minutes.
        ValueError: order.json cannot be read.
    """
    beat = open_beat(run_dir, config, identity, agree=agree, rank=rank, world_size=world_size)
    if model is not None:
        beat.model(model)
    elif not beat.awaits_model:
        beat.boot()
    return beat


def open_beat(
    run_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
    *,
    agree: Callable[[bool], bool] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Beat:
    """Return the beat of this process in section boot, before anything is known of the model."""
    settings = load_settings()
    rank, world_size = _place(settings, rank, world_size)
    folder = settings.run_dir if run_dir is None else Path(run_dir)
    if folder is None:
        return Beat(rank, world_size)
    run = load_run_dir(folder)
    end_observation(run, rank)
    if writes_already(run, rank):
        _say(f"this process is attached to {run.path} already")
        return Beat(rank, world_size)
    if run.order.get("patterns"):
        _mark(run, ATTACHED)  # the reader of the output stops writing
    try:
        writer = HeartbeatWriter(run, rank)
    except Taken:
        _mark(run, SILENCED)
        _say(f"another process writes {run.heartbeat(rank).name}; this one says nothing")
        return Beat(rank, world_size)
    attempt = run.order.get("attempt", 1) if run.order else None
    return Beat(
        rank,
        world_size,
        writer,
        whose={"run": settings.run or run.order.get("run"), "attempt": attempt},
        identity={
            **count_environment(settings.nsa_env, world_size),
            **({} if config is None else {"config_digest": digest(config)}),
            **digest_files(run.order),
            **(identity or {}),
        },
        agree=agree,
    )


def _mark(run: RunDir, name: str) -> None:
    """Leave a mark in the run directory."""
    with suppress(OSError):
        (run.path / name).touch()


def _place(settings: Settings, rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, of torchrun, of torch.distributed, or 0 and 1."""
    group = ranks.group()
    if rank is None:
        rank = settings.rank
    if rank is None:
        rank = group.get_rank() if group is not None else 0
    if world_size is None:
        world_size = settings.world_size
    if world_size is None:
        world_size = group.get_world_size() if group is not None else 1
    return rank, world_size


def _say(text: str) -> None:
    print(f"gonogo: {text}", file=sys.stderr)
