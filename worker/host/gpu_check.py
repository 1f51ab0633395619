"""Checks a run's GPUs under load for about ten seconds: `python -m nsa.probe --node`.

Due before the first run after a boot, after a failed run or an Xid on a device, and once a day. A
result that passed is kept in `GONOGO_HOME/proven/` (`gonogo.supervise.device_records`). NCCL gets
the settings of the order: a host may reach its own GPUs only with `NCCL_P2P_DISABLE=1`.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.records import CheckOutcome
from gonogo.device_slots import is_slice
from gonogo.environment_names import LISTED
from gonogo.supervise.device_records import load_proof, prove
from gonogo.supervise.preflight.device_checks import Result
from gonogo.supervise.preflight.node_load import NodeLoad, judge_node
from worker.host.probe import ProbeStore, read_answer

LIMIT_S = 180.0
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class GpuCheck:
    """The check of a run's GPUs under load, made by `result` if it is due.

    Args:
        store: starts programs of the workload.
        profile: name of the order's hardware profile; without devices nothing is checked.
        devices: of the run; slices of a GPU are not checked.
        env: of the order; the names of NCCL count.
        wall: returns Unix seconds.
    """

    store: ProbeStore
    profile: str
    devices: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    wall: Callable[[], float] = time.time
    unfit: dict[str, str] = field(default_factory=dict)
    """Device → why it is not fit for any run; filled by `result`."""

    def __post_init__(self) -> None:
        profile = hardware_profiles().get(self.profile)
        owed = self.devices if profile is not None and profile.has_devices else ()
        self.devices = tuple(device for device in owed if not is_slice(device))

    def result(self) -> Result:
        """Return the result; a check that could not be made fails."""
        now = self.wall()
        known = load_proof(self.store.home, self.devices, now)
        if known is not None:
            return CheckOutcome(known[0]), f"{known[1]} (known)"
        load, error = self._measured()
        if load is None:
            return CheckOutcome.FAIL, error
        profile = hardware_profiles().get(self.profile)
        result, self.unfit = judge_node(
            load,
            self.devices,
            peak_flops=None if profile is None else profile.peak_flops,
            floor_gb_s=None if profile is None else profile.all_reduce_gb_s,
        )
        if result[0] is not CheckOutcome.FAIL:
            self._keep(result, now)
        return result

    def _measured(self) -> tuple[NodeLoad | None, str]:
        """Run the program; what it measured, or why there is nothing."""
        ours = {name: said for name, said in self.env.items() if name in LISTED and _is_nccl(name)}
        try:
            process = self.store.run("nsa.probe", self.devices, "--node", env=ours)
        except OSError as failed:
            return None, f"nsa.probe --node cannot be started: {failed}"
        found, error = read_answer(process, "nsa.probe --node", LIMIT_S)
        if found is None:
            return None, error
        try:
            return NodeLoad.model_validate(found["node"]), ""
        except (ValueError, KeyError):
            return None, "nsa.probe --node printed something else"

    def _keep(self, result: Result, now: float) -> None:
        try:
            prove(self.store.home, self.devices, *result, now=now)
        except OSError as error:
            _log.warning("no proof: %s", error, extra={"action": "proof_unsaved"})


def _is_nccl(name: str) -> bool:
    return name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG")
