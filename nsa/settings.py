"""Read and check the environment; the only module of the trainer that does.

`TOGGLES` is the one table of `NSA_*` variables. Other names and values are errors.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from nsa.errors import BadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Toggle:
    """One environment variable: its default, the values it may have, and what it does.

    `allowed` is a tuple of literal values, or a key of `NUMBERS`.
    """

    name: str
    default: str
    allowed: tuple[str, ...] | str
    effect: str


_FLAG = ("0", "1")
NUMBERS: dict[str, str] = {
    "int >= 0": r"[0-9]{1,15}",
    "int >= 1": r"0*[1-9][0-9]{0,14}",
    "float > 0": (
        r"(?=[0-9.]*[1-9])(?:[0-9]{1,15}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,2})?"
    ),
    "float > 1": r"(?!0*1(?:\.0*)?$)0*[1-9][0-9]{0,14}(?:\.[0-9]{0,20})?",
    "0 < float < 1": r"0?\.[0-9]{0,20}[1-9][0-9]{0,20}",
}
"""What a number may be → how its whole text looks, in words that ECMA 262 and Python share."""
# Each of a pair takes back what the other asks for.
CONTRADICTIONS = (
    ("NSA_SDPA_NO_FLASH", "NSA_SDPA_FLASH_ONLY"),
    ("NSA_DDP_STATIC_GRAPH", "NSA_DDP_FIND_UNUSED"),
)


def _row(name: str, default: str, allowed: tuple[str, ...] | str, effect: str) -> Toggle:
    return Toggle(name=name, default=default, allowed=allowed, effect=effect)


TOGGLES: dict[str, Toggle] = {
    toggle.name: toggle
    for toggle in (
        _row("NSA_PREFILL_BATCHED", "1", _FLAG, "0: evaluation decodes token by token (slow)"),
        _row("NSA_SEL_RANGES_V2", "1", _FLAG, "0: that decoding merges ranges in a loop (V1)"),
        _row("NSA_CPU_KERNELS", "1", _FLAG, "0: no kernel in C is compiled for CPUs"),
        _row(
            "NSA_USE_FA2",
            "0",
            _FLAG,
            "flash-attn's kernels where installed, on GPUs in 16 bits; backend auto is torch",
        ),
        _row(
            "NSA_SDPA_NO_FLASH",
            "0",
            _FLAG,
            "switch PyTorch's flash SDPA kernel off; not with flash only; backend auto is torch",
        ),
        _row(
            "NSA_SDPA_FLASH_ONLY",
            "0",
            _FLAG,
            "switch every SDPA kernel but flash off; backend auto is torch",
        ),
        _row("NSA_DISABLE_AUX_STATS", "0", _FLAG, "no gate and selection statistics"),
        _row("NSA_TB_DISABLE", "0", _FLAG, "no TensorBoard files"),
        _row("NSA_DISABLE_CSV_LOGS", "0", _FLAG, "no CSV files"),
        _row("NSA_DDP_STATIC_GRAPH", "0", _FLAG, "DDP static_graph"),
        _row(
            "NSA_DDP_FIND_UNUSED", "0", _FLAG, "DDP find_unused_parameters; not with static graph"
        ),
        _row("NSA_DDP_BUCKET_MB", "25", "int >= 0", "DDP gradient bucket size in MB"),
        _row("NSA_DDP_COMPRESS", "none", ("none", "bf16"), "dtype of the gradient all-reduce"),
        _row("NSA_DDP_SAFE_MODE", "0", _FLAG, "find_unused on; static graph, compression off"),
        _row("NSA_DDP_DISABLE_GC", "0", _FLAG, "no gradient checkpointing under DDP"),
        _row(
            "NSA_ACCUM", "", "int >= 1", "batch.accumulate; refused when it disagrees with an order"
        ),
        _row("NSA_LR", "", "float > 0", "optim.lr; refused when it disagrees with an order"),
        _row(
            "NSA_MEM_DUMP_EVERY", "0", "int >= 0", "memory report before and after every Nth step"
        ),
        _row("NSA_SCALER_INIT_SCALE", "65536", "float > 0", "fp16: loss scale of the first step"),
        _row(
            "NSA_SCALER_GROWTH_INTERVAL",
            "2000",
            "int >= 1",
            "fp16: steps without overflow until the scale grows",
        ),
        _row("NSA_SCALER_GROWTH_FACTOR", "2.0", "float > 1", "fp16: by how much it grows"),
        _row(
            "NSA_SCALER_BACKOFF_FACTOR",
            "0.5",
            "0 < float < 1",
            "fp16: what an overflow multiplies it by",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOn:
    """Variables of other libraries that are recorded in `env.json` and left unchanged."""

    name: str
    default: str
    values: str
    effect: str


PASSED_ON = (
    PassedOn(
        name="CONFIG",
        default="",
        values="a name",
        effect="refused when it disagrees with the order",
    ),
    PassedOn(
        name="NCCL_*",
        default="",
        values="any",
        effect="NCCL's; what is not set gets topology-aware defaults (R48)",
    ),
    PassedOn(
        name="PYTORCH_CUDA_ALLOC_CONF", default="", values="any", effect="PyTorch's GPU allocator"
    ),
)

_RECORDED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "OMP_", "CUDA_VISIBLE_DEVICES")
_RECORDED_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "CONFIG")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The environment of this process, checked.

    `nsa_env` holds the `NSA_*` variables that are set. `recorded_env` holds the others that shape a
    run (NCCL_*, OMP_*, the allocator). `run` is the run that this process was started for, if
    known. Without torchrun it is rank 0 of 1.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    under_torchrun: bool = False
    config_name: str | None = None
    run: str | None = None
    nsa_env: Mapping[str, str]
    recorded_env: Mapping[str, str]

    def value(self, name: str) -> str:
        """The value of a toggle: as set, else its default."""
        return self.nsa_env.get(name, TOGGLES[name].default)

    def on(self, name: str) -> bool:
        """Whether a 0/1 toggle is 1."""
        return self.value(name) == "1"


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read and check the environment; BadConfig: an unknown name, or a value not allowed."""
    environ = os.environ if environ is None else environ
    nsa_env = {name: environ[name] for name in sorted(environ) if name.startswith("NSA_")}
    for name, value in nsa_env.items():
        _check(name, value)
    for one, other in CONTRADICTIONS:
        if nsa_env.get(one) == nsa_env.get(other) == "1":
            raise BadConfig(f"{one}=1 and {other}=1 exclude each other")
    return Settings(
        rank=_integer(environ, "RANK", 0),
        local_rank=_integer(environ, "LOCAL_RANK", 0),
        world_size=_integer(environ, "WORLD_SIZE", 1),
        local_world_size=_integer(environ, "LOCAL_WORLD_SIZE", 1),
        under_torchrun="MASTER_ADDR" in environ and "RANK" in environ,
        config_name=environ.get("CONFIG"),
        run=environ.get("GONOGO_RUN"),
        nsa_env=nsa_env,
        recorded_env={
            name: environ[name]
            for name in sorted(environ)
            if name in _RECORDED_NAMES or name.startswith(_RECORDED_PREFIXES)
        },
    )


def set_unless_set(variables: Mapping[str, str]) -> dict[str, str]:
    """Set variables of this process that nobody has chosen yet; returns those."""
    chosen = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(chosen)
    return chosen


def _check(name: str, value: str) -> None:
    toggle = TOGGLES.get(name)
    if toggle is None:
        raise BadConfig(f"unknown variable {name}; known: {', '.join(sorted(TOGGLES))}")
    if isinstance(toggle.allowed, tuple):
        if value not in toggle.allowed:
            expected = " or ".join(toggle.allowed) or "it to be unset"
            raise BadConfig(f"{name}={value!r}: expected {expected} ({toggle.effect})")
        return
    if re.fullmatch(NUMBERS[toggle.allowed], value) is None:
        raise BadConfig(f"{name}={value!r}: expected {toggle.allowed} ({toggle.effect})")


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environ.get(name, default))
    except ValueError:
        raise BadConfig(f"{name}={environ[name]!r}: expected a whole number") from None
