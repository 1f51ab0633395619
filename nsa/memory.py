"""Count the memory of a training step from the configuration.

An upper bound for one rank: states (weights, gradients, two moments, fp32) and what the backward
pass needs. Not counted: the allocator's gaps, the CUDA context, a compiler.
"""

from nsa.config import TrainConfig

_FP32 = 4
_STATES = 4


def count_memory(config: TrainConfig) -> dict[str, int]:
    """Bytes of one rank's training step: `states`, `layers`, `ends` and their `total`."""
    tokens = config.batch.global_seqs // config.batch.accumulate * config.model.seq_len
    model = config.model
    a_layer = tokens * _layer_bytes_per_token(config)
    if model.gradient_checkpointing is False:
        layers = model.layers * a_layer
    else:
        layers = model.layers * tokens * model.dim * _FP32 + a_layer
    counted = {
        "states": _STATES * _FP32 * config.params,
        "layers": layers,
        # Logits, their fp32 copy, log-softmax and gradient; embedding and last norm.
        "ends": tokens * _FP32 * (4 * model.vocab + 4 * model.dim),
    }
    return {**counted, "total": sum(counted.values())}


def _layer_bytes_per_token(config: TrainConfig) -> int:
    """What one layer keeps of a token for its backward pass, and what that pass adds."""
    model, attention = config.model, config.attention
    width = _FP32 if config.dtype == "fp32" else 2
    heads, groups = model.heads * model.head_dim, model.groups * model.head_dim
    # Each of two norms: input, its square's root, product with the weight, cast for the matrices.
    norms = 2 * (3 * _FP32 + width) * model.dim
    pairs = 6 if attention.kind == "nsa" else 2
    # Queries and keys before and after turning (that in fp32), values; outputs of three branches.
    projected = (2 * width + 2 * _FP32) * (heads + pairs * groups)
    outputs = (3 * _FP32 + 2 * width) * heads if attention.kind == "nsa" else 2 * width * heads
    blocks = model.seq_len // attention.l_sel if attention.kind == "nsa" else 0
    scores = _FP32 * 2 * model.groups * blocks + 8 * model.groups * attention.n_sel
    feed_forward = 6 * width * model.ffn_width
    return norms + projected + outputs + scores + feed_forward
