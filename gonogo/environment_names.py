"""Common names of the environment that any plan may set, and references to secrets. Stdlib only.

No listed name stands for a file that is written, code that is loaded, or a device. A host allows
more names with `GONOGO_WORKER_ALLOW_ENV`. `secret:NAME` stands for the content of
`$GONOGO_HOME/secrets/NAME` on the host that starts the run; plan and order hold the reference.

Sources: NCCL's and PyTorch's lists of environment variables.
"""

import re

SECRET_PREFIX = "secret:"
SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
SECRETIVE = re.compile(r"(?:.*_)?(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)")
"""Names of secret values."""

NO_SECRET = "no secret goes under a name whose value is printed and recorded"

_NCCL = re.findall(
    r"\w+",
    """
    ALGO ASYNC_ERROR_HANDLING BLOCKING_WAIT BUFFSIZE COLLNET_ENABLE CROSS_NIC CUMEM_ENABLE DEBUG
    DEBUG_SUBSYS DMABUF_ENABLE GDRCOPY_ENABLE IB_ADAPTIVE_ROUTING IB_DISABLE IB_GID_INDEX IB_HCA
    IB_PCI_RELAXED_ORDERING IB_QPS_PER_CONNECTION IB_RETRY_CNT IB_SL IB_TC IB_TIMEOUT LAUNCH_MODE
    MAX_CTAS MAX_NCHANNELS MIN_CTAS MIN_NCHANNELS MNNVL_ENABLE NET NET_GDR_LEVEL NET_GDR_READ
    NSOCKS_PERTHREAD NTHREADS NVLS_ENABLE P2P_DISABLE P2P_LEVEL P2P_NET_CHUNKSIZE PROTO SHM_DISABLE
    SOCKET_FAMILY SOCKET_IFNAME SOCKET_NTHREADS
""",
)
_TORCH_NCCL = re.findall(
    r"\w+",
    """
    ASYNC_ERROR_HANDLING AVOID_RECORD_STREAMS BLOCKING_WAIT CUDA_EVENT_CACHE DESYNC_DEBUG
    DUMP_ON_TIMEOUT ENABLE_MONITORING ENABLE_TIMING HEARTBEAT_TIMEOUT_SEC HIGH_PRIORITY NAN_CHECK
    PROPAGATE_ERROR TRACE_BUFFER_SIZE TRACE_CPP_STACK
""",
)

LISTED = frozenset(
    {
        *(f"NCCL_{name}" for name in _NCCL),
        *(f"TORCH_NCCL_{name}" for name in _TORCH_NCCL),
        *("TORCH_DISTRIBUTED_DEBUG", "GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF"),
        *("CONFIG", "TOKENIZERS_PARALLELISM", "HF_TOKEN"),
    }
)
"""Names that every worker passes on, besides the workload's own `NSA_*`."""

_OWN = re.compile(r"NSA_[A-Z0-9_]+")


def is_listed(name: str) -> bool:
    """Say whether every worker passes a name on."""
    return name in LISTED or _OWN.fullmatch(name) is not None


def may_hold_secret(name: str) -> bool:
    """Say whether a name may hold a secret; programs may print the other listed names."""
    return not is_listed(name) or (name in LISTED and SECRETIVE.fullmatch(name) is not None)


def referred(value: str) -> str | None:
    """Return the name of the secret that a value refers to; None: it is a plain value.

    Raises:
        ValueError: the name of the secret is not valid.
    """
    if not value.startswith(SECRET_PREFIX):
        return None
    name = value.removeprefix(SECRET_PREFIX)
    if not SECRET_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a secret")
    return name
