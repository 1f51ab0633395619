"""The environment of a rank; read only here."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The environment of one rank; None: not set."""

    run_dir: Path | None
    run: str | None
    rank: int | None
    world_size: int | None
    nsa_env: dict[str, str]


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of `environ`, by default of this process.

    Raises:
        ValueError: RANK or WORLD_SIZE is no number.
    """
    said = os.environ if environ is None else environ
    run_dir = said.get("GONOGO_RUN_DIR")
    return Settings(
        run_dir=Path(run_dir) if run_dir else None,
        run=said.get("GONOGO_RUN") or None,
        rank=_number(said, "RANK"),
        world_size=_number(said, "WORLD_SIZE"),
        nsa_env={name: text for name, text in said.items() if name.startswith("NSA_")},
    )


def _number(said: Mapping[str, str], name: str) -> int | None:
    text = said.get(name)
    return int(text) if text else None
