"""`python -m nsa.describe --config FILE | --schema`: how large is a model, what may be configured?

`--config` prints one JSON object: parameters (counted on the built model, without allocating it),
shapes and FLOPs per token. A multiplication and an addition are two FLOPs; the backward pass counts
twice the forward. Element-wise work, norms and the optimizer are not counted. `--schema` prints the
JSON Schema of every configuration and variable that the trainer takes (`nsa.describe`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsa.config import (
    AS_IF_ABSENT,
    AttentionConfig,
    TrainConfig,
    build_config,
    config_digest,
    load_config,
)
from nsa.errors import BadConfig
from nsa.fields import schema_of
from nsa.relations import OF_A_CONFIGURATION, OF_A_RUN
from nsa.settings import CONTRADICTIONS, NUMBERS, TOGGLES, Toggle

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build_schema() -> dict[str, Any]:
    """The whole document."""
    train = schema_of(TrainConfig)
    for name, default in AS_IF_ABSENT.items():
        train["properties"][name]["default"] = dict(default)
    return {
        "$schema": DIALECT,
        "title": "nsa.train",
        "description": "The inputs of a run of nsa.train: configuration, environment, ranks.",
        "type": "object",
        "properties": {
            "train": train,
            "env": _environment(),
            "world_size": {"type": "integer", "minimum": 1},
        },
        "required": ["train", "env", "world_size"],
        "additionalProperties": False,
        "relations": [row.document() for row in (*OF_A_CONFIGURATION, *OF_A_RUN)],
    }


def schema_text() -> str:
    """The document as the file that others keep a copy of."""
    return json.dumps(build_schema(), indent=1, ensure_ascii=False) + "\n"


def _environment() -> dict[str, Any]:
    """Every `NSA_*` variable; other names are others' business."""
    return {
        "type": "object",
        "properties": {toggle.name: _variable(toggle) for toggle in TOGGLES.values()},
        "patternProperties": {"^(?!NSA_)": {"type": "string"}},
        "additionalProperties": False,
        "allOf": [
            {
                "description": f"{one}=1 and {other}=1 exclude each other",
                "not": {
                    "properties": {one: {"enum": ["1"]}, other: {"enum": ["1"]}},
                    "required": [one, other],
                },
            }
            for one, other in CONTRADICTIONS
        ],
    }


def _variable(toggle: Toggle) -> dict[str, Any]:
    said: dict[str, Any] = {"description": toggle.effect}
    if toggle.default:
        said["default"] = toggle.default
    if isinstance(toggle.allowed, tuple):
        return {"enum": list(toggle.allowed), **said}
    pattern = f"^(?:{NUMBERS[toggle.allowed]})$(?!\\n)"
    return {"type": "string", "title": toggle.allowed, "pattern": pattern, **said}


if TYPE_CHECKING:
    from nsa.model import LanguageModel


def describe(config: TrainConfig) -> dict[str, Any]:
    """Parameters, shapes and FLOPs per token of a configuration."""
    import torch  # takes seconds, and the schema needs none of it

    from nsa.model import build_model

    with torch.device("meta"):
        model = build_model(config)
    parameters = dict(model.named_parameters())
    forward = forward_flops_per_token(model, config)
    return {
        "config": config.config,
        "config_digest": config_digest(config),
        "params": sum(parameter.numel() for parameter in parameters.values()),
        "params_expected": config.params,
        "tokens_per_step": config.batch.global_seqs * config.model.seq_len,
        "flops_per_token": {"forward": forward, "train": 3 * forward},
        "pairs_per_token": pairs_per_token(config.attention, config.model.seq_len),
        "shapes": {name: list(parameter.shape) for name, parameter in parameters.items()},
    }


def forward_flops_per_token(model: LanguageModel, config: TrainConfig) -> int:
    """Mean FLOPs of one token's forward pass at the configured sequence length.

    Every weight matrix but the embedding is multiplied once, a learned compression's for every
    block and group; every query-key pair costs one dot product and one weighted sum of head_dim per
    head.
    """
    shape = config.model
    matrices = sum(
        parameter.numel() * (shape.groups / config.attention.d if ".compression." in name else 1)
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and not name.startswith("embedding")
        if not name.endswith(".position")
    )
    pairs = sum(pairs_per_token(config.attention, shape.seq_len).values())
    return round(2 * matrices + 4 * pairs * shape.head_dim * shape.heads * shape.layers)


def pairs_per_token(attention: AttentionConfig, seq_len: int) -> dict[str, float]:
    """Keys that a query attends to in each branch, averaged over the positions of a sequence."""
    if attention.kind == "dense":
        return {"dense": (seq_len + 1) / 2}
    l, d, l_sel = attention.l, attention.d, attention.l_sel  # noqa: E741 - the paper's letter
    compressed = selected = window = 0
    for t in range(seq_len):
        compressed += max(0, (t + 1 - l) // d + 1)
        whole_blocks = min(attention.n_sel, t // l_sel + 1) - 1
        selected += whole_blocks * l_sel + t % l_sel + 1
        window += min(attention.w, t + 1)
    return {
        "compressed": compressed / seq_len,
        "selected": selected / seq_len,
        "window": window / seq_len,
    }


def main() -> int:
    """Print the description or the schema; exit code 4 for a bad configuration."""
    parser = argparse.ArgumentParser(prog="python -m nsa.describe", allow_abbrev=False)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--config", type=Path, help="YAML file, or a bundled name")
    asked.add_argument("--schema", action="store_true", help="what may be configured")
    given = parser.parse_args()
    if given.schema:
        print(schema_text(), end="")
        return 0
    try:
        config = build_config(load_config(given.config))
    except BadConfig as error:
        print(json.dumps({"error": str(error)}))
        return error.code
    print(json.dumps(describe(config), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
