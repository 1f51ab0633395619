"""Name the place where a stack stands: data loader, collective, checkpoint, user code and so on.

The innermost frame that a table knows decides. The place also holds the innermost frame of user
code. Only native frames (`py-spy dump --native`) show `loss.item()` and `work.wait()`. Standard
library only.
"""

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class PlaceKind(StrEnum):
    """What a rank does in a place, in words."""

    COLLECTIVE = "collective"
    DEVICE = "wait for the device"
    COMPUTE = "forward, backward or optimizer"
    DATA = "data loader"
    CHECKPOINT = "checkpoint"
    TRACKER = "tracker"
    DOWNLOAD = "download"
    COMPILATION = "compilation"
    USER = "user code"
    UNKNOWN = "unknown"


WAITS = frozenset({PlaceKind.COLLECTIVE, PlaceKind.DEVICE})  # Where a rank waits for others.
_NAMED = frozenset(PlaceKind) - WAITS - {PlaceKind.COMPUTE, PlaceKind.USER, PlaceKind.UNKNOWN}
"""Places that are no wait for others, even if native frames are missing."""

_TABLE: tuple[tuple[PlaceKind, str], ...] = (
    (PlaceKind.DATA, r"torch/utils/data/|torchdata/|webdataset/|/dali/|_\w+DatasetFetcher\.fetch"),
    (PlaceKind.DATA, r"datasets/(?:arrow_dataset|iterable_dataset|formatting)|streaming/base/"),
    (PlaceKind.COMPILATION, r"torch/_dynamo/convert_frame|triton/(?:compiler|runtime/jit)"),
    (PlaceKind.COMPILATION, r"torch/_inductor/(?:async_compile|graph|scheduler|codecache)"),
    (PlaceKind.COMPILATION, r"jax/_src/compiler|torch/utils/cpp_extension"),
    (PlaceKind.CHECKPOINT, r"torch/serialization|torch/distributed/checkpoint/|safetensors/"),
    (PlaceKind.CHECKPOINT, r"orbax/checkpoint|deepspeed/runtime/checkpoint_engine"),
    (PlaceKind.TRACKER, r"wandb/|mlflow/|comet_ml/|neptune/|aim/sdk/|clearml/|trackio/"),
    (PlaceKind.TRACKER, r"tensorboardX?/|torch/utils/tensorboard/"),
    (PlaceKind.DOWNLOAD, r"huggingface_hub/|transformers/utils/hub|datasets/(?:load|download/)"),
    (PlaceKind.DOWNLOAD, r"torch/hub\.py|tokenization_utils|tokenization_auto|timm/models/_hub"),
    (PlaceKind.COLLECTIVE, r"torch/distributed/(?:distributed_c10d|_functional_collectives)"),
    (PlaceKind.COLLECTIVE, r"torch/distributed/(?:rendezvous|nn/functional|device_mesh)"),
    (PlaceKind.COLLECTIVE, r"horovod/|mpi4py|deepspeed/comm/|jax/experimental/multihost_utils"),
    (PlaceKind.DEVICE, r"synchronize .*torch/(?:cuda|xpu|npu)/"),
    (PlaceKind.COMPUTE, r"torch/(?:autograd|_tensor|optim|nn/parallel|nn/modules)[/.]"),
    (PlaceKind.COMPUTE, r"torch/distributed/(?:fsdp|_composable|algorithms|pipelining|tensor)/"),
)
_NATIVE: tuple[tuple[PlaceKind, str], ...] = (
    (PlaceKind.COLLECTIVE, r"gloo|nccl|rccl|c10d|horovod|\bucp_|\bMPI_"),
    (PlaceKind.DEVICE, r"(?:stream|event|device|ctx)_?synchronize|libcuda|libamdhip"),
)
_CALLS = (
    ("time.sleep", r"time_sleep|pysleep|nanosleep"),
    ("a subprocess", r"waitpid|wait4|waitid"),
    ("a lock", r"lock_acquire|acquire_lock|acquire_timed|sem_(?:clock|timed)?wait"),
    ("a file or a socket", r"fsync|pread|pwrite|__read|__write|recv|poll|select"),
)
"""Calls by their native frames."""
_SLOW_CALLS = frozenset({"a subprocess", "a file or a socket"})
_LIBRARIES = frozenset({
    "torch", "torchvision", "torchaudio", "torchdata", "torchrun", "transformers", "accelerate",
    "peft", "trl", "lightning", "lightning_fabric", "pytorch_lightning", "composer", "deepspeed",
    "datasets", "tokenizers", "safetensors", "huggingface_hub", "wandb", "mlflow", "comet_ml",
    "neptune", "clearml", "tensorboard", "tensorboardX", "triton", "jax", "jaxlib", "flax",
    "optax", "orbax", "tensorflow", "keras", "numpy", "scipy", "pandas", "pyarrow", "PIL", "cv2",
    "requests", "urllib3", "httpx", "httpcore", "aiohttp", "fsspec", "s3fs", "gcsfs", "botocore",
    "boto3", "tqdm", "gonogo", "streaming", "webdataset",
})  # fmt: skip
_COMPILED = re.compile(r"\.so\b|\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|inl|pyx|rs|S)$")
_SCRIPTS = frozenset({"test", "code", "cmd", "profile", "main", "run"})
_FRAME = re.compile(r"\s+(?P<function>.+?) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)\s*")
_DUMPED = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a stack."""

    function: str
    file: str = ""
    line: int | None = None

    @property
    def native(self) -> bool:
        """Whether it is C or C++."""
        if self.file.endswith(".py") or self.file.startswith("<"):
            return False
        named = _COMPILED.search(self.file) is not None or "::" in self.function
        return named or (bool(self.file) and self.line is None)

    def text(self) -> str:
        """Return the frame in words: `train (train.py:6)`."""
        name = self.file.rpartition("/")[2]
        where = f"{name}:{self.line}" if self.line else name
        return f"{self.function} ({where})" if where else self.function


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a stack stands."""

    kind: PlaceKind
    frame: Frame | None = None  # The innermost known frame.
    user: Frame | None = None
    call: str = ""  # The call of the innermost Python frame: `time.sleep`.

    @property
    def takes_time(self) -> bool:
        """Whether a healthy rank may stand here for minutes."""
        return self.kind in _NAMED or self.call in _SLOW_CALLS

    def text(self) -> str:
        """Return the place in words: `data loader: fetch (fetch.py:54), from main (train.py:9)`."""
        user = None if self.user is None else self.user.text()
        if self.kind is PlaceKind.USER:
            inside = f"{self.call}, called from {user}" if self.call else str(user)
            return f"{inside}, user code"
        if self.frame is None:
            return ""
        return f"{self.kind}: {self.frame.text()}" + (f", from {user}" if user else "")


def parse_frames(listing: str) -> tuple[Frame, ...]:
    """Return the main thread of a `py-spy` or `faulthandler` listing, innermost frame first."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in listing.splitlines():
        if line and not line[0].isspace():
            threads.append((line, []))
        elif threads and (found := _DUMPED.fullmatch(line) or _FRAME.fullmatch(line)):
            number = found["line"]
            threads[-1][1].append(
                Frame(
                    function=found["function"],
                    file=found["file"],
                    line=int(number) if number else None,
                )
            )
    threads = [row for row in threads if row[1]]
    main = [row for row in threads if "MainThread" in row[0] or row[0].startswith("Current thread")]
    if not main and threads:
        dumped = threads[0][0].startswith("Thread 0x")  # faulthandler lists the main thread last
        main = [threads[-1] if dumped else threads[0]]
    return tuple(main[0][1]) if main else ()


def classify(frames: Sequence[Frame]) -> Place:
    """Return the place of a stack, given its innermost frame first."""
    user = next((frame for frame in frames if _is_user(frame)), None)
    outer = next((at for at, frame in enumerate(frames) if not frame.native), len(frames))
    inner, python = frames[:outer], [frame for frame in frames if not frame.native]
    for kind, pattern in _NATIVE:
        for frame in inner:
            if re.search(pattern, f"{frame.function} {frame.file}", re.IGNORECASE):
                shown = next((row for row in python if _kind(row) is kind), frame)
                return Place(kind=kind, frame=shown, user=user)
    call = next((name for name, words in _CALLS if _any(words, inner)), "")
    for frame in python:
        kind_of = _kind(frame)
        if kind_of is not None:
            return Place(kind=kind_of, frame=frame, user=user, call=call)
    if user is None:
        return Place(kind=PlaceKind.UNKNOWN, call=call)
    return Place(kind=PlaceKind.USER, frame=user, user=user, call=call)


def describe_places(stacks: Mapping[int, Sequence[Frame]]) -> str:
    """Return which ranks stand outside of a wait; empty if nobody waits.

    Example: `rank 1 is in evaluate (train.py:6), user code; ranks 0, 2-3 wait in all_reduce`.
    """
    places = {rank: classify(frames) for rank, frames in sorted(stacks.items()) if frames}
    waits = {rank: place for rank, place in places.items() if place.kind in WAITS}
    apart = {rank: place for rank, place in places.items() if rank not in waits}
    if not waits or not apart or 2 * len(apart) > len(places):
        return ""
    said: dict[str, list[int]] = {}
    for rank, place in apart.items():
        said.setdefault(f"in {place.text() or 'an unknown place'}", []).append(rank)
    waiting: dict[str, list[int]] = {}
    for rank, place in waits.items():
        waiting.setdefault(place.frame.function if place.frame else place.kind, []).append(rank)
    parts = [f"{_subject(of, 'is', 'are')} {text}" for text, of in said.items()]
    parts += [f"{_subject(of, 'waits', 'wait')} in {text}" for text, of in waiting.items()]
    return "; ".join(parts)


def _subject(ranks: Collection[int], one: str, several: str) -> str:
    return f"{ranks_text(ranks)} {one if len(ranks) == 1 else several}"


def ranks_text(ranks: Collection[int]) -> str:
    """Return `rank 1`, or `ranks 0, 2-63`."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {', '.join(texts)}"


def _any(words: str, frames: Sequence[Frame]) -> bool:
    return any(re.search(words, frame.function) for frame in frames)


def _kind(frame: Frame) -> PlaceKind | None:
    text = f"{frame.function} ({frame.file}"
    return next((kind for kind, pattern in _TABLE if re.search(rf"\b(?:{pattern})", text)), None)


def _is_user(frame: Frame) -> bool:
    if frame.native or frame.file.startswith("<") or not frame.file:
        return False
    if re.search(r"(?:site|dist)-packages/|/lib(?:64)?/python\d", frame.file):
        return False
    top = frame.file.lstrip("/").partition("/")[0].removesuffix(".py")
    if frame.file.startswith("/"):
        return True
    own = top in sys.stdlib_module_names and top not in _SCRIPTS
    return not own and top not in _LIBRARIES
