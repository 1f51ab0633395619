"""`python -m nsa.export CHECKPOINT OUT`: a checkpoint as others read it.

    python -m nsa.export RUN_DIR exported
    python -m nsa.export RUN_DIR/checkpoints/step_000040 exported

Writes `model.safetensors` and `config.json`, which `transformers` loads as a causal language model
(`nsa.attention.hf`, or `nsa_attention.hf` of the distribution `nsa-attention`):

    from nsa_attention.hf import NsaForCausalLM
    model = NsaForCausalLM.from_pretrained("exported")

CHECKPOINT is a checkpoint's folder, or a run's, whose newest is taken; the manifest is checked
first. The model reads bytes: a token is a byte's number. Dense models are not exported.
Exit codes: 0 done, 4 bad arguments or a checkpoint that cannot be used.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nsa.command_line import Arguments, open_trained
from nsa.config import SEPARATOR, TrainConfig
from nsa.errors import BadConfig


def exported_config(config: TrainConfig) -> dict[str, Any]:
    """The arguments of `NsaConfig` for a training configuration; BadConfig if it is dense."""
    model, attention = config.model, config.attention
    if attention.kind != "nsa":
        raise BadConfig(f"only models with attention.kind nsa are exported, not {attention.kind}")
    apart = config.packing is not None and config.packing.documents_apart
    return {
        "vocab_size": model.vocab,
        "hidden_size": model.dim,
        "intermediate_size": model.ffn_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.groups,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.seq_len,
        "rope_theta": model.rope_theta,
        "rms_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "compression_block": attention.l,
        "compression_stride": attention.d,
        "selection_block": attention.l_sel,
        "selected_blocks": attention.n_sel,
        "window": attention.w,
        "compression": attention.compression or "mean",
        "separator": SEPARATOR[0] if apart else None,
        # A zero byte ends a document, and with it a text.
        "eos_token_id": SEPARATOR[0],
        "bos_token_id": SEPARATOR[0],
    }


def export(checkpoint: Path, out: Path) -> int:
    """Write a checkpoint's model to a new or empty folder; returns its step."""
    from nsa.checkpoint import load_weights

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadConfig(f"{out} is there already: name a folder that is not")
    snapshot, config = open_trained(checkpoint)
    arguments = exported_config(config)
    try:
        from safetensors import SafetensorError

        from nsa.attention.hf import NsaConfig, NsaForCausalLM
    except ImportError as error:
        raise BadConfig(f"exporting needs transformers and safetensors: {error}") from error
    model = NsaForCausalLM(NsaConfig(**arguments))
    load_weights(model, checkpoint, snapshot.model)
    try:
        out.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(out)
    except (OSError, SafetensorError) as error:
        raise BadConfig(f"cannot write to {out}: {error}") from error
    return snapshot.step


def main(arguments: list[str] | None = None) -> int:
    """Export; returns the exit code."""
    parser = Arguments("nsa.export", __doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint's folder, or a run's")
    parser.add_argument("out", type=Path, help="a folder that is not there yet, or empty")
    try:
        given = parser.parse_args(arguments)
        step = export(given.checkpoint, given.out)
    except BadConfig as error:
        print(f"BadConfig: {error}", file=sys.stderr)
        return error.code
    print(f"step {step}: {given.out / 'model.safetensors'}, {given.out / 'config.json'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
