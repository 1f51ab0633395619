"""Makes the package `nsa_attention` of the repository's `nsa/attention` before it is built.

A source distribution holds the made files, and is built without the repository.
"""

import shutil
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "nsa" / "attention"
PACKAGE = HERE / "src" / "nsa_attention"


def make_package() -> None:
    """Copy the modules under their new name; what was made before is replaced."""
    if not SOURCE.is_dir():
        if not PACKAGE.is_dir():
            raise SystemExit(f"neither {SOURCE} nor {PACKAGE} is there: build from the repository")
        return
    shutil.rmtree(HERE / "src", ignore_errors=True)
    for file in sorted(file for kind in ("*.py", "*.c") for file in SOURCE.rglob(kind)):
        made = PACKAGE / file.relative_to(SOURCE)
        made.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        made.write_text(text.replace("nsa.attention", "nsa_attention"), encoding="utf-8")
    (PACKAGE / "py.typed").touch()
    shutil.copyfile(HERE.parents[1] / "LICENSE", HERE / "LICENSE")


make_package()
setup()
