"""What is trained, and how? The whole training configuration, typed.

There are no defaults here: a missing key and an unknown key are errors, so that two runs with
the same digest trained the same thing. The same schema serves `nsa/configs/*.yaml` and the
`train` object of an order. Two whole sections, `engine` and `packing`, may be left out; their
absence is part of the digest.
"""

import dataclasses
import hashlib
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rfc8785
import yaml

from nsa.errors import BadConfig

# The byte that ends a document, wherever documents are packed one after another.
SEPARATOR = b"\0"
CONFIG_DIR = Path(__file__).parent / "configs"
_LARGEST_INT = 2**53 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of the language model. `ffn_width` is the inner width of SwiGLU."""

    dim: int
    layers: int
    heads: int
    groups: int
    head_dim: int
    vocab: int
    seq_len: int
    ffn_width: int
    rope_theta: float
    norm_eps: float
    init_std: float
    gradient_checkpointing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """`kind` nsa | dense; the rest are the NSA paper's l, d, l', n and w, in tokens or blocks."""

    kind: str
    backend: str
    l: int  # noqa: E741 - the paper's letter
    d: int
    l_sel: int
    n_sel: int
    w: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """AdamW with linear warm-up and cosine decay to `min_lr_ratio` × lr at `decay_steps`."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip: float
    warmup_steps: int
    decay_steps: int
    min_lr_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """`global_seqs` sequences per optimizer step over all ranks, in `accumulate` parts a rank."""

    global_seqs: int
    accumulate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Held-out loss every `every_steps` (0 = never) over `batches` global batches."""

    every_steps: int
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the machine does it; without this section: by its own lights, and everything is kept.

    `fused_adamw`: the optimizer as one kernel. `compile`: torch.compile of the feed-forward parts.
    `keep_checkpoints`: the newest n of this run stay (0 = all). `profile_steps`: so many steps,
    from the run's third, are profiled (0 = none).
    """

    fused_adamw: bool
    compile: bool
    keep_checkpoints: int
    profile_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """How documents share a sequence; without this section they are one text.

    `documents_apart`: no token attends to another document than its own; a zero byte ends one.
    """

    documents_apart: bool


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
    data: str
    seed: int
    dtype: str
    parallel: str
    steps: int
    params: int
    engine: EngineConfig | None = None
    packing: PackingConfig | None = None


def build_config(mapping: Mapping[str, Any]) -> TrainConfig:
    """A checked configuration from parsed YAML or JSON.

    Raises:
        BadConfig: a key is missing, unknown, of the wrong type, or the values do not fit.
    """
    config: TrainConfig = _build(TrainConfig, mapping, "train")
    _check(config)
    return config


def load_config(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file; a bare name means `nsa/configs/NAME.yaml`.

    Raises:
        BadConfig: the file cannot be read or is not a mapping.
    """
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
    return hashlib.sha256(rfc8785.dumps(config_mapping(config))).hexdigest()


def config_mapping(config: TrainConfig) -> dict[str, Any]:
    """What `build_config` makes this configuration of."""
    mapping = dataclasses.asdict(config)
    return {name: value for name, value in mapping.items() if value is not None}


def _build(cls: Any, mapping: Any, path: str) -> Any:
    if not isinstance(mapping, Mapping):
        raise BadConfig(f"{path}: expected a mapping, found {mapping!r}")
    hints = typing.get_type_hints(cls)
    unknown = sorted(str(key) for key in set(mapping) - set(hints))
    if unknown:
        raise BadConfig(f"{path}: unknown key {unknown[0]!r}; known: {', '.join(sorted(hints))}")
    optional = {
        field.name for field in dataclasses.fields(cls) if field.default is not dataclasses.MISSING
    }
    missing = [name for name in hints if name not in mapping and name not in optional]
    if missing:
        raise BadConfig(f"{path}: missing key {missing[0]!r}")
    return cls(
        **{
            name: _value(hint, mapping[name], f"{path}.{name}")
            for name, hint in hints.items()
            if name in mapping
        }
    )


def _value(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, path)
    if isinstance(hint, types.UnionType):  # a section that may be left out, but not be null
        return _build(typing.get_args(hint)[0], value, path)
    if type(value) is not hint and not (hint is float and type(value) is int):
        raise BadConfig(f"{path}: expected {hint.__name__}, found {value!r}")
    if type(value) is int and abs(value) > _LARGEST_INT:
        raise BadConfig(f"{path}: {value} is more than JSON holds exactly ({_LARGEST_INT})")
    if hint is float and not math.isfinite(value):
        raise BadConfig(f"{path}: expected a finite number, found {value!r}")
    return hint(value)


def _check(config: TrainConfig) -> None:
    rules = (
        *_shape_rules(config.model, config.attention),
        *_optim_rules(config.optim),
        *_run_rules(config),
    )
    for holds, text in rules:
        if not holds:
            raise BadConfig(text)


def _shape_rules(model: ModelConfig, attention: AttentionConfig) -> Iterator[tuple[bool, str]]:
    yield min(dataclasses.astuple(model)[:8]) >= 1, "model: sizes must be at least 1"
    yield model.heads % model.groups == 0, "model.heads must be a multiple of model.groups"
    yield model.head_dim % 2 == 0, "model.head_dim must be even (RoPE turns pairs)"
    yield model.vocab >= 256, "model.vocab must hold every byte (256)"
    yield model.rope_theta > 0, "model.rope_theta must be positive"
    yield model.norm_eps > 0, "model.norm_eps must be positive"
    yield model.init_std >= 0, "model.init_std must not be negative"
    yield attention.kind in ("nsa", "dense"), "attention.kind must be nsa or dense"
    if attention.kind == "dense":
        return
    sizes = (attention.l, attention.d, attention.l_sel, attention.w)
    yield min(sizes) >= 1, "attention.l, d, l_sel and w must be at least 1"
    yield attention.l % attention.d == 0, "attention.d must divide attention.l"
    yield attention.l_sel % attention.d == 0, "attention.d must divide attention.l_sel"
    yield attention.n_sel >= 3, "attention.n_sel must be at least 3: that many blocks are forced"
    yield (
        model.seq_len >= attention.l,
        "model.seq_len must be at least attention.l: a branch without blocks learns nothing",
    )


def _optim_rules(optim: OptimConfig) -> Iterator[tuple[bool, str]]:
    yield optim.lr > 0 and optim.clip > 0, "optim.lr and optim.clip must be positive"
    yield 0 <= optim.beta1 < 1 and 0 <= optim.beta2 < 1, "optim.beta1 and beta2 must be in [0, 1)"
    yield optim.eps > 0, "optim.eps must be positive"
    yield optim.weight_decay >= 0, "optim.weight_decay must not be negative"
    yield 0 <= optim.min_lr_ratio <= 1, "optim.min_lr_ratio must be in [0, 1]"
    yield optim.warmup_steps >= 0, "optim.warmup_steps must not be negative"
    yield optim.decay_steps >= 1, "optim.decay_steps must be at least 1"


def _run_rules(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    engine = config.engine
    yield config.dtype in ("fp32", "bf16", "fp16"), "dtype must be fp32, bf16 or fp16"
    yield config.parallel in ("single", "ddp", "fsdp"), "parallel must be single, ddp or fsdp"
    yield config.batch.global_seqs >= 1, "batch.global_seqs must be at least 1"
    yield config.batch.accumulate >= 1, "batch.accumulate must be at least 1"
    yield config.eval.every_steps >= 0, "eval.every_steps must not be negative"
    yield config.eval.batches >= 1, "eval.batches must be at least 1"
    yield config.steps >= 1, "steps must be at least 1"
    yield config.seed >= 0, "seed must not be negative"
    yield config.params >= 1, "params must be at least 1"
    yield (
        engine is None or min(engine.keep_checkpoints, engine.profile_steps) >= 0,
        "engine: numbers must not be negative",
    )
