"""The whole training configuration, typed.

There are no defaults: a missing key and an unknown key are errors, so equal digests mean equal
training. Three sections (`engine`, `packing`, `loader`) and two keys (`attention.compression`,
`engine.cuda_graphs`) may be left out; their absence is part of the digest.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from nsa.errors import BadConfig
from nsa.fields import Bounds, optional_fields, read
from nsa.relations import OF_A_CONFIGURATION, check_relations

# ECMAScript writes numbers from 1e-6 below 1e21 without an exponent.
_LEAST_PLAIN, _LEAST_WITH_EXPONENT = 1e-6, 1e21


def canonical_bytes(value: Any) -> bytes:
    """The RFC 8785 bytes of a JSON value; ValueError where JSON has no form for it."""
    return _text(value).encode()


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, Mapping):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{_text(name)}:{_text(value[name])}" for name in names) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(_text, value)) + "]"
    raise ValueError(f"a {type(value).__name__} has no JSON form")


def _number(value: float) -> str:
    if isinstance(value, int):
        if float(value) != value:
            raise ValueError(f"no double holds {value}")
        value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent or 0)  # digits before the decimal point
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    if not _LEAST_PLAIN <= abs(value) < _LEAST_WITH_EXPONENT:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{point - 1:+d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    return f"{sign}{digits[:point]}.{digits[point:]}"


# The byte that ends a document, wherever documents are packed one after another.
SEPARATOR = b"\0"
CONFIG_DIR = Path(__file__).parent / "configs"

_LARGEST_SIZE = 2**24  # far beyond any model; products of two stay exact in a double
Size = Annotated[int, Bounds(at_least=1, at_most=_LARGEST_SIZE)]
Steps = Annotated[int, Bounds(at_least=1, at_most=10**9)]
Count = Annotated[int, Bounds(at_least=0)]
Positive = Annotated[float, Bounds(above=0)]
NotNegative = Annotated[float, Bounds(at_least=0)]
Momentum = Annotated[float, Bounds(at_least=0, below=1)]
Share = Annotated[float, Bounds(at_least=0, at_most=1)]
DataName = Annotated[
    str,
    Bounds(
        pattern=r"synthetic|local_text|fineweb_edu|parquet:.+",
        words="synthetic, local_text, fineweb_edu or parquet:PATH",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of the language model. `ffn_width` is the inner width of SwiGLU.

    `gradient_checkpointing` computes a layer's inside again in the backward pass. `reentrant` is
    PyTorch's older way of it: DDP that looks for unused parameters marks each parameter ready twice
    under it and fails in its first backward pass (R22); FSDP bears it.
    """

    dim: Size
    layers: Size
    heads: Size
    groups: Size
    head_dim: Annotated[
        int,
        Bounds(
            at_least=2,
            at_most=_LARGEST_SIZE,
            multiple_of=2,
            words="an even number (RoPE turns pairs)",
        ),
    ]
    vocab: Annotated[
        int, Bounds(at_least=256, at_most=_LARGEST_SIZE, words="at least 256 (every byte)")
    ]
    seq_len: Size
    ffn_width: Size
    rope_theta: Positive
    norm_eps: Positive
    init_std: NotNegative
    gradient_checkpointing: bool | Literal["reentrant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """`kind` nsa | dense; the rest are the NSA paper's l, d, l', n and w, in tokens or blocks.

    `compression` is the paper's φ: mean, which is also what its absence means, or mlp (learned).
    """

    kind: Literal["nsa", "dense"]
    backend: Literal["auto", "reference", "torch", "triton"]
    l: Size  # noqa: E741 - the paper's letter
    d: Size
    l_sel: Size
    n_sel: Annotated[
        int,
        Bounds(at_least=3, at_most=_LARGEST_SIZE, words="at least 3: that many blocks are forced"),
    ]
    w: Size
    compression: Literal["mean", "mlp"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """AdamW with linear warm-up and cosine decay to `min_lr_ratio` × lr at `decay_steps`."""

    lr: Positive
    beta1: Momentum
    beta2: Momentum
    eps: Positive
    weight_decay: NotNegative
    clip: Positive
    warmup_steps: Count
    decay_steps: Steps
    min_lr_ratio: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """`global_seqs` sequences per optimizer step over all ranks, in `accumulate` parts a rank."""

    global_seqs: Size
    accumulate: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Held-out loss every `every_steps` (0 = never) over `batches` global batches."""

    every_steps: Count
    batches: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the machine does it; without this section: by its own lights, and everything is kept.

    `fused_adamw`: the optimizer as one kernel; null = on GPUs. `compile`: torch.compile of the
    feed-forward parts. `keep_checkpoints`: the
    newest n of this run stay (0 = all). `profile_steps`: so many steps, from the run's third, are
    profiled (0 = none). `cuda_graphs`: a layer's forward and backward pass are started as one CUDA
    graph each (false, which is also what its absence means: kernel by kernel).
    """

    fused_adamw: bool | None
    compile: bool
    keep_checkpoints: Count
    profile_steps: Count
    cuda_graphs: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """How documents share a sequence; without this section they are one text.

    `documents_apart`: no token attends to another document than its own; a zero byte ends one.
    """

    documents_apart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """How texts come over a network; without this section as `AS_IF_ABSENT` says.

    `revision`: the commit of FineWeb-Edu on the hub (`data: fineweb_edu`). `first_batch_limit_s`:
    how long the first batch of a process may take, index and cold connections included;
    `batch_limit_s`: how long every other may. `cache_gb`: so much of remote Parquet files is kept
    in `$XDG_CACHE_HOME/gonogo/row-groups` (2^30 bytes; 0 = nothing).
    """

    revision: Annotated[
        str, Bounds(pattern=r"[0-9a-f]{40}", words="a commit: 40 hexadecimal digits")
    ]
    first_batch_limit_s: Positive
    batch_limit_s: Positive
    cache_gb: NotNegative

    @classmethod
    def as_if_absent(cls) -> "LoaderConfig":
        """What the absence of the section amounts to."""
        return cls(**AS_IF_ABSENT["loader"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that decides the numbers of a run; `params` is what the model must count.

    `dtype` is fp32, bf16 or fp16 and names the arithmetic: the parameters are always fp32.
    """

    config: str
    model: ModelConfig
    attention: AttentionConfig
    optim: OptimConfig
    batch: BatchConfig
    eval: EvalConfig
    data: DataName
    seed: Count
    dtype: Literal["fp32", "bf16", "fp16"]
    parallel: Literal["single", "ddp", "fsdp"]
    steps: Steps
    params: Annotated[int, Bounds(at_least=1)]
    engine: EngineConfig | None = None
    packing: PackingConfig | None = None
    loader: LoaderConfig | None = None


AS_IF_ABSENT: Mapping[str, Mapping[str, Any]] = {
    "engine": {
        "fused_adamw": None,
        "compile": False,
        "keep_checkpoints": 0,
        "profile_steps": 0,
    },
    "packing": {"documents_apart": False},
    "loader": {
        "revision": "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9",
        "first_batch_limit_s": 180.0,
        "batch_limit_s": 60.0,
        "cache_gb": 4.0,
    },
}
"""Values that a missing section stands for; a user who adds one of its keys writes all of them."""


def build_config(mapping: Mapping[str, Any]) -> TrainConfig:
    """A checked configuration from parsed YAML or JSON; BadConfig at the first mistake."""
    config: TrainConfig = read(TrainConfig, mapping, "train")
    check_relations(OF_A_CONFIGURATION, {"train": config_mapping(config)})
    return config


def load_config(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file; a bare name means `nsa/configs/NAME.yaml`."""
    if file.suffix == "" and not file.exists():
        file = CONFIG_DIR / f"{file.name}.yaml"
    try:
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadConfig(f"cannot read configuration {file}: {error}") from error
    if not isinstance(loaded, dict):
        raise BadConfig(f"{file} holds no mapping")
    return loaded


def config_digest(config: TrainConfig) -> str:
    """SHA-256 (hex) of the RFC 8785 form of the configuration that was built."""
    return hashlib.sha256(canonical_bytes(config_mapping(config))).hexdigest()


def config_mapping(config: TrainConfig) -> dict[str, Any]:
    """What `build_config` makes this configuration of."""
    return _stated(config)


def _stated(section: Any) -> dict[str, Any]:
    """A dataclass without what was left out of it."""
    mapping = {}
    for name in (field.name for field in dataclasses.fields(section)):
        value = getattr(section, name)
        if value is None and name in optional_fields(section.__class__):
            continue
        mapping[name] = _stated(value) if dataclasses.is_dataclass(value) else value
    return mapping
