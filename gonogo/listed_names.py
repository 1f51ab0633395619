"""Which names may any plan give the environment of a run? An exact list; standard library only.

None of them names a file that is written, code that is loaded (`NCCL_NET_PLUGIN` would be both) or
a device, which are those of the slots that a run holds.
What a team needs besides, a host's own `GONOGO_WORKER_ALLOW_ENV` allows. A value that is nobody's
business is said by reference: `secret:NAME` stands for the content of `$GONOGO_HOME/secrets/NAME`
on the host that runs it, and is neither in the plan nor in the order.

Sources: NCCL's and PyTorch's lists of environment variables.
"""

import re

SECRET_PREFIX = "secret:"
SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
SECRETIVE = re.compile(r"(?:.*_)?(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)")
"""Names whose values nobody is to read."""

NO_SECRET = "no secret goes under a name whose value is printed and recorded"
"""What is wrong with a listed name that stands for one (`may_hold_secret`)."""

_NCCL = [
    "ALGO",
    "ALLOC_P2P_NET_LL_BUFFERS",
    "ASYNC_ERROR_HANDLING",
    "BLOCKING_WAIT",
    "BUFFSIZE",
    "CGA_CLUSTER_SIZE",
    "CHECKS_DISABLE",
    "CHECK_POINTERS",
    "COLLNET_ENABLE",
    "COLLNET_NODE_THRESHOLD",
    "COMM_BLOCKING",
    "CROSS_NIC",
    "CTA_POLICY",
    "CUMEM_ENABLE",
    "CUMEM_HOST_ENABLE",
    "DEBUG",
    "DEBUG_SUBSYS",
    "DEBUG_TIMESTAMP_FORMAT",
    "DEBUG_TIMESTAMP_LEVELS",
    "DMABUF_ENABLE",
    "GDRCOPY_ENABLE",
    "GDRCOPY_FLUSH_ENABLE",
    "GDRCOPY_SYNC_ENABLE",
    "GRAPH_MIXING_SUPPORT",
    "GRAPH_REGISTER",
    "IB_ADAPTIVE_ROUTING",
    "IB_ADDR_FAMILY",
    "IB_ADDR_RANGE",
    "IB_AR_THRESHOLD",
    "IB_CUDA_SUPPORT",
    "IB_DISABLE",
    "IB_ECE_ENABLE",
    "IB_FIFO_TC",
    "IB_GID_INDEX",
    "IB_HCA",
    "IB_MERGE_NICS",
    "IB_MERGE_VFS",
    "IB_PCI_RELAXED_ORDERING",
    "IB_QPS_PER_CONNECTION",
    "IB_RETRY_CNT",
    "IB_RETURN_ASYNC_EVENTS",
    "IB_ROCE_VERSION_NUM",
    "IB_SL",
    "IB_SPLIT_DATA_ON_QPS",
    "IB_TC",
    "IB_TIMEOUT",
    "IGNORE_CPU_AFFINITY",
    "IPC_USE_ABSTRACT_SOCKET",
    "LAUNCH_MODE",
    "LAUNCH_ORDER_IMPLICIT",
    "LAUNCH_RACE_FATAL",
    "LEGACY_CUDA_REGISTER",
    "LL_THRESHOLD",
    "LOCAL_REGISTER",
    "MAX_CTAS",
    "MAX_NCHANNELS",
    "MAX_P2P_NCHANNELS",
    "MEM_SYNC_DOMAIN",
    "MIN_CTAS",
    "MIN_NCHANNELS",
    "MIN_P2P_NCHANNELS",
    "MNNVL_CLIQUE_ID",
    "MNNVL_ENABLE",
    "MNNVL_UUID",
    "NCHANNELS_PER_NET_PEER",
    "NET",
    "NETDEVS_POLICY",
    "NET_FORCE_FLUSH",
    "NET_GDR_C2C",
    "NET_GDR_LEVEL",
    "NET_GDR_READ",
    "NET_SHARED_BUFFERS",
    "NET_SHARED_COMMS",
    "NSOCKS_PERTHREAD",
    "NTHREADS",
    "NVB_DISABLE",
    "NVLS_ENABLE",
    "NVLS_NCHANNELS",
    "OOB_NET_ENABLE",
    "OOB_NET_IFNAME",
    "P2P_DIRECT_DISABLE",
    "P2P_DISABLE",
    "P2P_LEVEL",
    "P2P_LL_THRESHOLD",
    "P2P_NET_CHUNKSIZE",
    "P2P_NVL_CHUNKSIZE",
    "P2P_PCI_CHUNKSIZE",
    "P2P_PXN_LEVEL",
    "PROTO",
    "PXN_DISABLE",
    "RAS_ENABLE",
    "RUNTIME_CONNECT",
    "SHM_DISABLE",
    "SHM_USE_CUDA_MEMCPY",
    "SINGLE_PROC_MEM_REG_ENABLE",
    "SOCKET_FAMILY",
    "SOCKET_IFNAME",
    "SOCKET_NTHREADS",
    "SOCKET_POLL_TIMEOUT_MSEC",
    "SOCKET_RETRY_CNT",
    "SOCKET_RETRY_SLEEP_MSEC",
    "TREE_THRESHOLD",
    "UID_STAGGER_RATE",
    "UID_STAGGER_THRESHOLD",
    "WIN_ENABLE",
    "WIN_STRIDE",
    "WORK_FIFO_BYTES",
]

_TORCH_NCCL = [
    "ASYNC_ERROR_HANDLING",
    "AVOID_RECORD_STREAMS",
    "BCAST_UNIQUEID",
    "BLOCKING_WAIT",
    "COORD_CHECK_MILSEC",
    "CUDA_EVENT_CACHE",
    "DESYNC_DEBUG",
    "DUMP_ON_TIMEOUT",
    "ENABLE_MONITORING",
    "ENABLE_TIMING",
    "EXTRA_DUMP_ON_EXEC",
    "HEARTBEAT_TIMEOUT_SEC",
    "HIGH_PRIORITY",
    "LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN",
    "NAN_CHECK",
    "PROPAGATE_ERROR",
    "RANKS_PER_ROOT",
    "RETHROW_CUDA_ERRORS",
    "SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING",
    "TRACE_BUFFER_SIZE",
    "TRACE_CPP_STACK",
    "USE_COMM_NONBLOCKING",
    "USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "WAIT_TIMEOUT_DUMP_MILSEC",
]

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
    """Say whether a name may stand for a secret: whoever reads another listed one may print it.

    Of names that are not listed the host that allows them knows who reads them.
    """
    return not is_listed(name) or (name in LISTED and SECRETIVE.fullmatch(name) is not None)


def referred(value: str) -> str | None:
    """Return the name of the secret that a value stands for; None: it is the value itself.

    Raises:
        ValueError: it is no name of a secret.
    """
    if not value.startswith(SECRET_PREFIX):
        return None
    name = value.removeprefix(SECRET_PREFIX)
    if not SECRET_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a secret")
    return name
