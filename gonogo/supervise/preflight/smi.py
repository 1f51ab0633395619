"""What does `nvidia-smi -q -x` have against a device? A second opinion, from its XML; pure.

The driver's own tool says in words what its library leaves out: `[Unknown Error]`, `GPU requires
reset`, an MPS client (`M+C`). What cannot be parsed, or lacks a device, speaks against it.
"""

from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element, ParseError, fromstring

_BAD_WORDS = ("unknown error", "requires reset", "gpu is lost", "err!", "insufficient permissions")
_UNREAD = ("", "n/a", "[n/a]")
_MPS_SERVER = "nvidia-cuda-mps-server"


def complaints(xml: bytes, uuids: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (UUID, text) for each thing said against one of the GPUs.

    Args:
        xml: the recorded output.
        uuids: of whole GPUs.
    """
    try:
        found = {_text(row, "uuid"): row for row in fromstring(xml).iter("gpu")}
    except ParseError as error:
        for uuid in uuids:
            yield uuid, f"nvidia-smi cannot be parsed: {error}"
        return
    for uuid in uuids:
        row = found.get(uuid)
        if row is None:
            yield uuid, "is not in nvidia-smi's list"
            continue
        for text in _against(row):
            yield uuid, f"nvidia-smi: {text}"


def _against(row: Element) -> Iterator[str]:
    """Yield what one GPU's element says that is not well."""
    for leaf in row.iter():
        said = (leaf.text or "").strip()
        if any(word in said.lower() for word in _BAD_WORDS):
            yield f"{leaf.tag}: {said}"
            return  # a GPU that is gone says it of everything
    if _text(row, "fb_memory_usage/used").lower() in _UNREAD:
        yield "memory in use: N/A"
    if _text(row, "gpu_reset_status/reset_required") == "Yes":
        yield "a reset is required"
    if _text(row, "compute_mode") == "Prohibited":
        yield "compute mode: Prohibited"
    for process in row.iter("process_info"):
        kind, name = _text(process, "type"), _text(process, "process_name")
        if "C" in kind and not name.endswith(_MPS_SERVER):
            client = " through MPS" if kind.startswith("M") else ""
            yield f"process {_text(process, 'pid')} computes on it{client}"


def _text(row: Element, path: str) -> str:
    found = row.find(path)
    return "" if found is None else (found.text or "").strip()
