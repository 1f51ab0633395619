"""Native Sparse Attention (arXiv 2502.11089) as one differentiable operation.

`nsa_attention` has several implementations of the same mathematics ("backends"):

- `reference`: the equations written out; any dtype; S x S memory; the truth of the tests.
- `torch`: fast PyTorch for CPU and CUDA; no S x S tensor.
- `triton`: GPU kernels; not part of this release, asking for it says so.
"""

from nsa.attention.backends import BackendUnavailableError, available_backends
from nsa.attention.operation import nsa_attention

__all__ = ["BackendUnavailableError", "available_backends", "nsa_attention"]
