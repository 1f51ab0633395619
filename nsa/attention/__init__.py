"""Native Sparse Attention (arXiv 2502.11089) as one differentiable operation.

`nsa_attention` has several implementations of the same mathematics ("backends"):

- `reference`: the equations written out; any dtype; S x S memory; the truth of the tests.
- `torch`: fast PyTorch for CPU and CUDA; no S x S tensor.
- `triton`: GPU kernels for any group of heads; `auto` takes them where a proof (proof.py) shows
  them right and faster.

`prefill` and `decode` generate with a cache; `counters.snapshot()` says which path served.
"""

from nsa.attention.backends import BackendUnavailableError, available_backends
from nsa.attention.cache import NsaCache
from nsa.attention.compression import Compression, MeanCompression, MlpCompression
from nsa.attention.decode import decode, prefill
from nsa.attention.kernels import Kernels, dense_attention, use_kernels
from nsa.attention.module import NativeSparseAttention
from nsa.attention.operation import nsa_attention, nsa_attention_varlen
from nsa.attention.tensors import Sizes

__all__ = [
    "BackendUnavailableError",
    "Compression",
    "Kernels",
    "MeanCompression",
    "MlpCompression",
    "NativeSparseAttention",
    "NsaCache",
    "Sizes",
    "available_backends",
    "decode",
    "dense_attention",
    "nsa_attention",
    "nsa_attention_varlen",
    "prefill",
    "use_kernels",
]
