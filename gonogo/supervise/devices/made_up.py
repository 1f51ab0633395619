"""Which devices stand for a fault that is theirs? The script of `xid` and `imbalance`. Pure.

Every rank has a healthy device; the fault's own rank has one that shows the fault from its step on,
in every attempt. So the faults of devices can be shown on a host that has none.
"""

from gonogo.contract.device import DevicesScript, ScriptedDevice, ScriptedSample
from gonogo.contract.fault import values_of

_MEM_USED_MB = 20_000.0


def build_fault_script(spec: str, world_size: int) -> DevicesScript | None:
    """Return the script of a fault of devices; None for every other fault.

    Args:
        spec: the order's SPEC, such as `xid:code=79,rank=1,step=12`.
        world_size: number of ranks, each with a device of its own.
    """
    kind, values = values_of(spec)
    if kind == "xid":
        shown = _healthy(
            int(values["rank"]), at_step=int(values["step"]), xids=[int(values["code"])]
        )
    elif kind == "imbalance":
        shown = _healthy(
            int(values["rank"]), at_step=int(values["from"]), util=float(values["util"])
        )
    else:
        return None
    ranks = range(world_size)
    return DevicesScript(
        devices=[ScriptedDevice(uuid=_uuid(rank), index=rank) for rank in ranks],
        samples=[*(_healthy(rank, at_s=0.0) for rank in ranks), shown],
    )


def _uuid(rank: int) -> str:
    return f"GPU-scripted-{rank}"


def _healthy(
    rank: int,
    *,
    at_s: float | None = None,
    at_step: int | None = None,
    util: float = 96.0,
    xids: list[int] | None = None,
) -> ScriptedSample:
    """Return a busy device's sample."""
    return ScriptedSample(
        uuid=_uuid(rank),
        at_s=at_s,
        at_step=at_step,
        util=util,
        mem_used_mb=_MEM_USED_MB,
        sm_clock_mhz=1410.0,
        power_w=280.0,
        temp_c=58.0,
        throttle=[],
        ecc_uncorrected=0,
        remap_pending=False,
        nvlink_errors=0,
        xids=xids or [],
    )
