"""Judge whether the devices of a run are fit, from what the driver reports and what was measured.

On a profile with devices, a device fails if it does not report its use, its memory's errors or why
its clock is held down. Devices in use, with uncorrectable errors, with rows that could not be
remapped, held down by the power brake, missing, or slow fail. Pending rows, heat and memory without
ECC warn. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from gonogo.contract.records import CheckOutcome
from gonogo.device_slots import gpus_of
from gonogo.supervise.devices.query import SeenDevice, SeenDevices

BUSY_DEVICE_MB = 512
BRAKES = frozenset({"hw_slowdown", "hw_power_brake_slowdown"})
HEAT = frozenset({"hw_thermal_slowdown", "sw_thermal_slowdown"})
LEAST_OF_PROFILE = 0.5
"""Share of the profile's peak below which a GPU is another one than ordered, or sick."""
GOOD_OF_PROFILE = 0.65
LEAST_OF_NODE = 0.9
"""Share of the host's median below which a GPU holds all others up."""
FAIL, WARN = CheckOutcome.FAIL, CheckOutcome.WARN

Result = tuple[CheckOutcome, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """Whether the devices of a run are fit."""

    outcome: CheckOutcome
    text: str
    unfit: dict[str, str] = field(default_factory=dict)
    """Device → why no run should get it for now."""


def judge_devices(seen: SeenDevices, held: Sequence[str], needed: int) -> Fitness:
    """Return whether the devices of a run are fit.

    Args:
        seen: what they report.
        held: the slots chosen for the run.
        needed: number of devices that the profile requires; if 0, what is unknown only warns.
    """
    unfit: dict[str, list[str]] = {}
    said: list[str] = [] if seen.error is None else [seen.error]
    warned: list[str] = []
    for row in seen.devices:
        for outcome, text in _judge(row, strict=needed > 0):
            if outcome is FAIL:
                unfit.setdefault(row.uuid, []).append(text)
            else:
                warned.append(f"device {row.index} {text}")
    known = {row.uuid for row in seen.devices}
    absent = [] if seen.error or seen.scripted else [u for u in gpus_of(held) if u not in known]
    for uuid in absent:
        unfit.setdefault(uuid, []).append("is not in the driver's list")
    if len(seen.devices) < needed and seen.error is None:
        said.append(f"{len(seen.devices)} devices can be read; {needed} ranks need one each")
    if seen.silent:
        warned.append(f"{seen.silent} GPUs of this host do not say who they are")
    names = {row.uuid: f"device {row.index}" for row in seen.devices}
    failed = [f"{names.get(uuid, uuid)} {'; '.join(texts)}" for uuid, texts in unfit.items()]
    if failed or (said and needed):
        reasons = {uuid: "; ".join(texts) for uuid, texts in unfit.items()}
        return Fitness(outcome=FAIL, text="; ".join([*failed, *said]), unfit=reasons)
    if said or warned:
        return Fitness(outcome=WARN, text="; ".join([*said, *warned]))
    told = ", ".join(f"rank {row.rank}: {row.name} {row.uuid}" for row in seen.devices)
    return Fitness(outcome=CheckOutcome.PASS, text=told)


def _judge(row: SeenDevice, *, strict: bool) -> Iterator[tuple[CheckOutcome, str]]:
    """Yield what is wrong with one device; `strict`: what is unknown fails."""
    if row.processes:
        yield FAIL, f"is used by processes {row.processes}"
    elif row.mem_used_mb is not None and not row.mem_used_mb <= BUSY_DEVICE_MB:
        yield FAIL, f"has {row.mem_used_mb:.0f} MB in use"
    unknown = list(_unknown(row))
    if unknown:
        yield (FAIL if strict else WARN), f"does not say {', '.join(unknown)}"
    yield from _judge_health(row)


def _judge_health(row: SeenDevice) -> Iterator[tuple[CheckOutcome, str]]:
    """Yield what is wrong with a device's memory and clock."""
    if row.ecc_uncorrected:
        yield FAIL, f"has {row.ecc_uncorrected} uncorrectable memory errors"
    if row.remap_failed:
        yield FAIL, "has a row that could not be remapped"
    elif row.remap_pending:
        yield WARN, "has a row to remap"
    held_down = set(row.throttle or ())
    if held_down & BRAKES:
        yield FAIL, f"is held down: {', '.join(sorted(held_down & BRAKES))}"
    elif held_down & HEAT:
        yield WARN, f"is held down by heat: {', '.join(sorted(held_down & HEAT))}"
    if row.ecc_on is False:
        yield WARN, "corrects no memory errors: ECC is off"


def _unknown(row: SeenDevice) -> Iterator[str]:
    """Yield what a device does not report but must."""
    if row.processes is None or row.mem_used_mb is None:
        yield "what is on it"
    if row.throttle is None:
        yield "why its clock is held down"
    if row.ecc_on is None or (row.ecc_on and row.ecc_uncorrected is None):
        yield "its memory's errors"
    if row.remap_pending is None:
        yield "whether rows wait to be remapped"


def judge_peaks(
    measured: Mapping[str, float | None], node: Mapping[str, float], profile_flops: float | None
) -> tuple[Result, dict[str, str]]:
    """Return whether every device of a run is fast enough, and which are not.

    Args:
        measured: device of the run → FLOP/s; None: not measured.
        node: GPU of the host → FLOP/s, of the same kind.
        profile_flops: the profile's peak of one device.
    """
    unfit: dict[str, str] = {}
    slow: list[str] = []
    middle = median(node.values()) if node else None
    for device, flops in measured.items():
        if flops is None:
            unfit[device] = "its matrix product was not measured"
        elif profile_flops is not None and flops < LEAST_OF_PROFILE * profile_flops:
            unfit[device] = f"{_tera(flops)}: {flops / profile_flops:.0%} of the profile's"
        elif middle is not None and flops < LEAST_OF_NODE * middle:
            unfit[device] = f"{_tera(flops)}: {flops / middle:.0%} of this host's median"
        elif profile_flops is not None and flops < GOOD_OF_PROFILE * profile_flops:
            slow.append(f"{device} {_tera(flops)}: {flops / profile_flops:.0%} of the profile's")
    if unfit:
        text = "; ".join(f"{device} {why}" for device, why in unfit.items())
        return (CheckOutcome.FAIL, text), unfit
    if slow:
        return (CheckOutcome.WARN, "; ".join(slow)), {}
    total = sum(flops for flops in measured.values() if flops is not None)
    return (CheckOutcome.PASS, f"{_tera(total)} measured"), {}


def _tera(flops: float) -> str:
    return f"{flops / 1e12:.3f} TFLOP/s"
