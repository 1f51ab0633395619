"""FineWeb-Edu's 10-billion-token sample on the Hugging Face hub, streamed over `hf://`."""

from importlib.util import find_spec

from nsa.errors import DataFailure

_URL = "hf://datasets/HuggingFaceFW/fineweb-edu@{revision}/sample/10BT"


def fineweb_edu_url(revision: str) -> str:
    """Where a revision of it lies.

    Raises:
        DataFailure: the package that reads the hub is not installed.
    """
    url = _URL.format(revision=revision)
    if url.startswith("hf://") and find_spec("huggingface_hub") is None:
        raise DataFailure("data fineweb_edu needs huggingface_hub: pip install huggingface_hub")
    return url
