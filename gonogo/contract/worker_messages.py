"""The messages between a worker and the control plane: `/api/v1/agent/…`.

Every write for a run carries its fencing token and, in the header `X-Gonogo-Claim`, the secret of
its claim. A stale token is answered 409 `stale_token`, another secret 403; both change nothing.

Growing files are sent by byte offset. The answer holds the offset of each file, and the sender
continues there. So lost, doubled and late messages do no harm. Small records are sent whole,
because facts hold their digests.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from gonogo.contract.finding import Finding, Near
from gonogo.contract.heartbeat import Count
from gonogo.contract.lifecycle import RunEvent
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, ModelRecord, Preflight
from gonogo.contract.wire import Document, Labels, Submitted, Text
from gonogo.contract.workload import EngineName

WAKE_QUEUE_PREFIX = "gonogo-"
WAKE_JOB = "worker.claims.loop.wake"

MAX_TELEMETRY_LINES = 5_000
MAX_LOG_BYTES = 65_536
MAX_EVIDENCE_BYTES = 50 * 2**20
MAX_FINDINGS_BYTES = 262_144
MAX_EVIDENCE_FILES = 1_000
MAX_EVIDENCE_PATH = 400
MAX_FINDINGS = 5_000  # Findings of a run in the database, besides its first halt.
MAX_STREAM_BYTES = 2**20
MAX_RECORD_BYTES = 2**20  # A larger record stays on the host and is not judged.
MAX_RECORDS_BYTES = 128 * 2**20  # Bytes of all small records of a run; the rest stays on the host.

STREAMS = ("watch.jsonl", "devices.jsonl", "findings.jsonl")
STREAM_NAME = r"^(watch|devices|findings|watch_node[0-9]{1,4})\.jsonl$"
RECORD_PATH = (
    r"^(order\.json|exit\.json|exit_(?:rank|node)[0-9]{1,4}\.json"
    r"|preflight/(?:node[0-9]{1,4}/)?preflight\.json|model\.json|env\.json|\.HALT|\.kill)$"
)

RankName = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,5})$")]
StreamName = Annotated[str, Field(pattern=STREAM_NAME)]
RecordPath = Annotated[str, Field(pattern=RECORD_PATH)]
Word = Annotated[str, Field(max_length=255)]
Words = Annotated[list[Word], Field(max_length=4096)]
Path = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]
Paths = Annotated[list[Path], Field(max_length=1024)]
MOST_WAITS = 4096
MOST_WAIT_TEXT = 1000
Waits = Annotated[
    dict[Word, Annotated[str, Field(max_length=MOST_WAIT_TEXT)]], Field(max_length=MOST_WAITS)
]
CLAIM_HEADER = "X-Gonogo-Claim"


class ClaimRequest(Submitted):
    """POST /agent/claims: a worker offers its free devices."""

    worker: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    host: Word
    boot_id: Word  # Boot id of the kernel. A new one proves that everything before it is dead.
    machine_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    pid: int
    version: Word
    labels: Labels = {}
    profiles: Words = []
    devices: Words = []
    free: Words = []
    active: Words = []  # Runs that live here or wait to be shipped.
    waits: Waits = {}  # Run → what it waits for at the scheduler.
    allow: Paths = []
    allow_env: Words = []
    engine: EngineName = EngineName.LOCAL
    metrics_url: Annotated[str, Field(max_length=2000)] | None = None
    draining: bool = False


class ClaimAnswer(Submitted):
    """An order, or nothing."""

    order: Order | None = None
    secret: str | None = None  # Sent with every message about the run.
    untold: list[str] = []
    """Runs that the control plane believes this worker holds, although it did not list them.
    After a database restore the worker sends their ends again."""
    over: list[str] = []  # Listed runs that were declared dead, such as by a takeover.


class RankTelemetry(Submitted):
    """Complete lines of one rank's heartbeat file."""

    rank: Count
    start: Count
    end: Count
    lines: Annotated[list[str], Field(max_length=MAX_TELEMETRY_LINES)]  # Invalid UTF-8 is replaced.
    raw_b64: str | None = None  # The bytes themselves, if `lines` differ from them.


class StreamTelemetry(Submitted):
    """Complete lines of another growing file."""

    name: StreamName
    start: Count
    content_b64: Annotated[str, Field(max_length=3 * MAX_STREAM_BYTES)]


class LogTelemetry(Submitted):
    """A part of one log file."""

    name: Annotated[str, Field(pattern=r"^(torchrun|rank[0-9]{1,4})\.log$")]
    start: Count
    text: Annotated[str, Field(max_length=MAX_LOG_BYTES)]
    end: Count


class Telemetry(Submitted):
    """POST /agent/runs/{id}/telemetry; an empty one renews the lease and returns the offsets."""

    token: int
    ranks: list[RankTelemetry] = []
    logs: list[LogTelemetry] = []
    files: list[StreamTelemetry] | None = None
    suspect: bool = False
    near: Annotated[dict[str, Near], Field(max_length=200)] | None = None
    """By detector; null: unchanged."""


class CommandKind(StrEnum):
    """What an operator asks of a run."""

    HALT = "halt"
    CANCEL = "cancel"
    SUPERSEDE = "supersede"


class Command(Submitted):
    """End the run with a checkpoint."""

    kind: CommandKind
    reason: Text = ""
    actor: Word = ""
    again: bool = False  # Asked a second time: the run ends at once.


class TelemetryAck(Submitted):
    """Bytes of each file in the database, and the operator's command."""

    acked: dict[str, Count] = {}
    logs: dict[str, Count] = {}
    files: dict[str, Count] = {}
    command: Command | None = None


class StateReport(Document):
    """POST /agent/runs/{id}/state: the run reached another state.

    `sizes`, `findings`, `files` and `records` come with `end`. The judge waits for all of them.
    """

    token: int
    event: RunEvent
    at: float
    dir: Path | None = None
    preflight: Preflight | None = None
    model: ModelRecord | None = None
    exit: ExitRecord | None = None
    sizes: dict[RankName, Count] = {}  # Rank → bytes of complete lines in its file.
    findings: Count = 0
    files: dict[StreamName, Count] = {}  # Growing file → bytes of complete lines in it.
    records: dict[RecordPath, str] = {}  # Small record → SHA-256 of its bytes.


class FindingsReport(Document):
    """POST /agent/runs/{id}/findings; idempotent by key."""

    token: int
    findings: Annotated[list[Finding], Field(max_length=10_000)]


class EvidenceReport(Submitted):
    """POST /agent/runs/{id}/evidence: one file, base64."""

    token: int
    path: Annotated[str, Field(max_length=MAX_EVIDENCE_PATH)]
    content_b64: Annotated[str, Field(max_length=2 * MAX_EVIDENCE_BYTES)]
    truncated: bool = False


class RecordReport(Submitted):
    """POST /agent/runs/{id}/records: one small record, base64; idempotent."""

    token: int
    path: RecordPath
    content_b64: Annotated[str, Field(max_length=2 * MAX_RECORD_BYTES)]


class Accepted(Submitted):
    """The message was accepted."""

    ok: bool = True
    detail: dict[str, Any] = {}
