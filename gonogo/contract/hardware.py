"""What should a machine give? The hardware table: floor, devices and peak of every profile."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

import yaml

from gonogo.contract.wire import Submitted


class HardwareProfile(Submitted):
    """One row of the hardware table."""

    floor_tok_s: float | None = None
    gpus: int = 0
    peak_flops: float | None = None
    text: str = ""

    @property
    def has_devices(self) -> bool:
        """Whether utilisation and device memory apply."""
        return self.gpus > 0


@cache
def hardware_profiles() -> Mapping[str, HardwareProfile]:
    """Return the hardware table (hardware.yaml), read once."""
    text = resources.files("gonogo.contract").joinpath("hardware.yaml").read_text()
    rows = yaml.safe_load(text).items()
    return MappingProxyType({name: HardwareProfile.model_validate(row) for name, row in rows})
