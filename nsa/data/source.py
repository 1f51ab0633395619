"""What may a run train on? Named sources of numbered sequences.

A source maps (split, index) to the same bytes on every rank and after every restart. So the data
position of a run is one number, any rank can fetch its own share without reading the others', and
nothing has to be replayed on resume. A new source is one class here and one line in `open_source`.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nsa.data.local_text import LocalText
from nsa.data.synthetic import MarkovBytes
from nsa.errors import DataFailure


class Source(Protocol):
    """Numbered sequences of two splits, "train" and "val", that share no document."""

    def sequence(self, split: str, index: int, length: int) -> NDArray[np.uint8]:
        """Sequence number `index` (0, 1, 2, … without end), `length` + 1 bytes.

        Raises:
            DataFailure: it cannot be read.
        """
        ...


def open_source(name: str, seed: int) -> Source:
    """The source of a `data` name: synthetic or local_text.

    Raises:
        DataFailure: the name is unknown, or what it needs is not here.
    """
    if name == "synthetic":
        return MarkovBytes(seed)
    if name == "local_text":
        return LocalText.of_standard_library(seed)
    if name == "fineweb_edu":
        raise DataFailure("data fineweb_edu needs the streaming loader, which is not built yet")
    if name.startswith("parquet:"):
        raise DataFailure(f"data {name} needs the Parquet loader, which is not built yet")
    raise DataFailure(f"unknown data {name!r}; known: synthetic, local_text")
