"""The scripted driver as a module of the name that is imported; SCRIPTED_NVML names its GPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.supervise.devices.fake_nvml import FakeNvml


def __getattr__(name: str) -> Any:
    path = os.environ.get("SCRIPTED_NVML")
    if path is None or name.startswith("__"):
        raise AttributeError(name)
    return getattr(FakeNvml(gpus=json.loads(Path(path).read_text())), name)
