"""Do the devices compute as fast as their kind, and as each other? Judged by measurements; pure."""

from collections.abc import Mapping
from statistics import median

from gonogo.contract.records import CheckOutcome

LEAST_OF_PROFILE = 0.5
"""Share of the profile's peak below which a GPU is not the one that was ordered, or is sick."""
GOOD_OF_PROFILE = 0.65
LEAST_OF_NODE = 0.9
"""Share of the host's median below which a GPU holds all others up."""

Result = tuple[CheckOutcome, str]


def judge_peaks(
    measured: Mapping[str, float | None], node: Mapping[str, float], profile_flops: float | None
) -> tuple[Result, dict[str, str]]:
    """Say whether every device of a run is fast enough; and which are not, and why.

    Args:
        measured: device of the run → FLOP/s, None where it was not measured.
        node: GPU of the host → FLOP/s, of the same kind.
        profile_flops: what the profile promises of one.
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
