"""Are a run's devices fit? Judged from what the driver says of them; pure.

On a profile with devices what cannot be read fails: a device that does not say what is on it, what
its memory's errors are, or why its clock is held down is nobody's proof. Devices in use, with
uncorrectable errors, with rows that could not be remapped, held down by the power brake or missing
from the driver's list fail; pending rows, heat, memory without ECC and an MPS server warn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gonogo.contract.records import CheckOutcome
from gonogo.device_slots import gpus_of, is_slice
from gonogo.supervise.devices.look import DeviceSeen, Look

BUSY_DEVICE_MB = 512
BRAKES = frozenset({"hw_slowdown", "hw_power_brake_slowdown"})
HEAT = frozenset({"hw_thermal_slowdown", "sw_thermal_slowdown"})

FAIL, WARN = CheckOutcome.FAIL, CheckOutcome.WARN


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """What a look at a run's devices comes to."""

    outcome: CheckOutcome
    text: str
    unfit: dict[str, str] = field(default_factory=dict)
    """Device → why no run is to get it for now."""


def judge_devices(
    look: Look, held: Sequence[str], owed: int, more: Sequence[tuple[str, str]] = ()
) -> Fitness:
    """Say whether devices are fit.

    Args:
        look: what they say.
        held: the slots chosen for the run.
        owed: how many the profile owes the run; 0 where it owes none, and what cannot be read only
            warns.
        more: what else speaks against a device, as (UUID, text).
    """
    unfit: dict[str, list[str]] = {}
    said: list[str] = [] if look.error is None else [look.error]
    warned: list[str] = []
    for row in look.devices:
        for outcome, text in _judge(row, strict=owed > 0):
            if outcome is FAIL:
                unfit.setdefault(row.uuid, []).append(text)
            else:
                warned.append(f"device {row.index} {text}")
    for uuid, text in more:
        unfit.setdefault(uuid, []).append(text)
    seen = {row.uuid for row in look.devices}
    absent = [] if look.error or look.scripted else [u for u in gpus_of(held) if u not in seen]
    for uuid in absent:
        unfit.setdefault(uuid, []).append("is not in the driver's list")
    if len(look.devices) < owed and look.error is None:
        said.append(f"{len(look.devices)} devices can be read; {owed} ranks need one each")
    if look.silent:
        warned.append(f"{look.silent} GPUs of this host do not say who they are")
    names = {row.uuid: f"device {row.index}" for row in look.devices}
    failed = [f"{names.get(uuid, uuid)} {'; '.join(texts)}" for uuid, texts in unfit.items()]
    if failed or (said and owed):
        reasons = {uuid: "; ".join(texts) for uuid, texts in unfit.items()}
        return Fitness(outcome=FAIL, text="; ".join([*failed, *said]), unfit=reasons)
    if said or warned:
        return Fitness(outcome=WARN, text="; ".join([*said, *warned]))
    told = ", ".join(f"rank {row.rank}: {row.name} {row.uuid}" for row in look.devices)
    return Fitness(outcome=CheckOutcome.PASS, text=told)


def _judge(row: DeviceSeen, *, strict: bool) -> Iterator[tuple[CheckOutcome, str]]:
    """Yield what is said of one device that is not well; `strict`: what is unknown fails."""
    if row.processes:
        yield FAIL, f"is used by processes {row.processes}"
    elif row.mem_used_mb is not None and not row.mem_used_mb <= BUSY_DEVICE_MB:
        yield FAIL, f"has {row.mem_used_mb:.0f} MB in use"
    unknown = list(_unknown(row))
    if unknown:
        yield (FAIL if strict else WARN), f"does not say {', '.join(unknown)}"
    yield from _judge_health(row)


def _judge_health(row: DeviceSeen) -> Iterator[tuple[CheckOutcome, str]]:
    """Yield what a device says of its memory, its clock and its sharing."""
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
    if row.mps:
        yield WARN, "has an MPS server, through which others may share it"


def _unknown(row: DeviceSeen) -> Iterator[str]:
    """Yield what a device does not say that it must."""
    if row.processes is None or row.mem_used_mb is None:
        yield "what is on it"
    if row.throttle is None:
        yield "why its clock is held down"
    if row.ecc_on is None or (row.ecc_on and row.ecc_uncorrected is None):
        yield "its memory's errors"
    if row.remap_pending is None and not is_slice(row.uuid):  # of a cut GPU drivers say nothing
        yield "whether rows wait to be remapped"
