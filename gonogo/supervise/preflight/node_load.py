"""Judge the devices of a host under load, from the measurements of `python -m nsa.probe --node`.

Measured are a sustained product on all devices at once, the bits of one product before and after
it, and the bandwidth between the devices. Pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from pydantic import BaseModel, ConfigDict

from gonogo.contract.records import CheckOutcome
from gonogo.supervise.preflight.device_checks import Result, judge_peaks

LEAST_LINK = 0.9
"""Share of the devices' median below which a bandwidth is reported."""

_MEMORY_MB = 4096


class DeviceLoad(BaseModel):
    """What one device did under load."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    sms: int | None = None
    """Streaming multiprocessors."""
    memory_mb: int | None = None
    flops: float | None = None
    """Sustained FLOP/s, all devices at once."""
    h2d_gb_s: float | None = None
    """Copies from the host's memory, GB/s."""
    checksums: tuple[str, ...] = ()
    """Checksums of one product's bits, before the load and after it."""

    @property
    def kind(self) -> tuple[str, int | None, int | None]:
        """What equal cards have in common; memory is rounded to `_MEMORY_MB`."""
        memory = None if self.memory_mb is None else round(self.memory_mb / _MEMORY_MB)
        return self.name, self.sms, memory


class NodeLoad(BaseModel):
    """What the devices of a host did together, in the order in which they were given."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    devices: tuple[DeviceLoad, ...]
    p2p_gb_s: tuple[tuple[float | None, ...], ...] = ()
    all_reduce_gb_s: float | None = None


def judge_node(
    load: NodeLoad,
    devices: Sequence[str],
    *,
    peak_flops: float | None,
    floor_gb_s: float | None,
) -> tuple[Result, dict[str, str]]:
    """Return whether the devices are sound under load, and which are not.

    A device fails if it computes other bits than the majority of its kind. Without a majority, all
    of the kind fail. Slow connections only warn.

    Args:
        load: what was measured.
        devices: UUIDs in its order.
        peak_flops: the profile's peak of one device, FLOP/s.
        floor_gb_s: the profile's bus bandwidth of an all-reduce, GB/s.
    """
    if len(load.devices) != len(devices):
        text = f"{len(load.devices)} of {len(devices)} devices were measured"
        return (CheckOutcome.FAIL, text), {}
    rows = dict(zip(devices, load.devices, strict=True))
    kinds = {row.kind for row in load.devices}
    same = {d: row.flops for d, row in rows.items() if row.flops is not None}
    result, unfit = judge_peaks(
        {device: row.flops for device, row in rows.items()},
        same if len(kinds) == 1 else {},
        peak_flops,
    )
    unfit = {**unfit, **_odd_bits(rows)}
    if unfit:
        return (CheckOutcome.FAIL, "; ".join(f"{d} {why}" for d, why in unfit.items())), unfit
    told = [result[1]] if result[0] is CheckOutcome.WARN else []
    told += _slow_links(load, devices)
    told += _slower(
        {device: row.h2d_gb_s for device, row in rows.items() if row.h2d_gb_s is not None},
        "from the host",
    )
    bandwidth = load.all_reduce_gb_s
    if floor_gb_s is not None and len(devices) > 1:
        if bandwidth is None:
            told.append("no all-reduce was measured")
        elif bandwidth < floor_gb_s:
            told.append(f"all-reduce {bandwidth:g} GB/s, the profile's floor is {floor_gb_s:g}")
    if told:
        return (CheckOutcome.WARN, "; ".join(told)), {}
    summed = result[1].replace("measured", "sustained, all at once, equal bits")
    return (CheckOutcome.PASS, summed + _reduced(bandwidth)), {}


def _reduced(bandwidth: float | None) -> str:
    return "" if bandwidth is None else f"; all-reduce {bandwidth:g} GB/s"


def _odd_bits(rows: Mapping[str, DeviceLoad]) -> dict[str, str]:
    """Return the devices whose products change, or differ from those of equal devices."""
    odd: dict[str, str] = {}
    kinds: dict[tuple[str, int | None, int | None], dict[str, str]] = {}
    for device, row in rows.items():
        if len(row.checksums) < 2:
            odd[device] = "the bits of its products were not compared"
        elif len(set(row.checksums)) > 1:
            odd[device] = "one product gives other bits after two seconds of load"
        else:
            kinds.setdefault(row.kind, {})[device] = row.checksums[0]
    for sums in kinds.values():
        if len(set(sums.values())) <= 1:
            continue
        (most, votes), *_ = Counter(sums.values()).most_common()
        trusted = most if 2 * votes > len(sums) else None
        odd |= {
            device: "one product gives other bits than on the devices beside it"
            for device, checksum in sums.items()
            if checksum != trusted
        }
    return odd


def _slow_links(load: NodeLoad, devices: Sequence[str]) -> list[str]:
    """Return a sentence for each device with slower connections than the others."""
    means = {
        device: fmean(known)
        for device, row in zip(devices, load.p2p_gb_s, strict=False)
        if (known := [rate for rate in row if rate is not None])
    }
    return _slower(means, "to the devices beside it")


def _slower(rates: Mapping[str, float], where: str) -> list[str]:
    """Return a sentence for each device below the median, if there are three or more."""
    if len(rates) < 3:
        return []
    middle = median(rates.values())
    return [
        f"{device}: {rate:.3g} GB/s {where}, the devices' median is {middle:.3g}"
        for device, rate in rates.items()
        if rate < LEAST_LINK * middle
    ]
