"""What should a machine give? The hardware table: floor, devices and peak of every profile."""

from importlib import resources

from gonogo.contract.wire import Submitted
from gonogo.contract.yaml_text import parse_yaml


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


def hardware_profiles() -> dict[str, HardwareProfile]:
    """Return the hardware table (hardware.yaml)."""
    text = resources.files("gonogo.contract").joinpath("hardware.yaml").read_text()
    return {name: HardwareProfile.model_validate(row) for name, row in parse_yaml(text).items()}
