"""Where does FineWeb-Edu come from? The 10-billion-token sample on the Hugging Face hub.

It is streamed row group by row group over fsspec's `hf://`, which the `huggingface_hub` package
provides; nothing is downloaded whole. Whoever holds a copy uses `data: parquet:PATH` instead: the
layout is the same.
"""

from importlib.util import find_spec
from pathlib import Path

from nsa.data.cache import RowGroupCache
from nsa.data.parquet import ParquetText
from nsa.errors import DataFailure

URL = "hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT"
CACHE_LIMIT_BYTES = 4 * 2**30


def open_fineweb_edu(seed: int, lanes: int) -> ParquetText:
    """The streaming source.

    Raises:
        DataFailure: the package that reads the hub is not installed.
    """
    if URL.startswith("hf://") and find_spec("huggingface_hub") is None:
        raise DataFailure("data fineweb_edu needs huggingface_hub: pip install huggingface_hub")
    cache = RowGroupCache(Path.home() / ".cache" / "nsa" / "fineweb_edu", CACHE_LIMIT_BYTES)
    return ParquetText(URL, seed, lanes, cache)
