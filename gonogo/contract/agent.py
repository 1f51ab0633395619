"""What do a worker and the control plane say to each other? The messages of `/api/v1/agent/…`.

Every write for a run carries its fencing token and, in the header `X-Gonogo-Claim`, the secret that
its claim was answered with. A stale token is answered 409 `stale_token`, another secret 403; both
change nothing.
Growing files (heartbeats, ticks, device samples, findings) are sent by byte offset: the control
plane answers up to which byte it has each, and the sender goes on from there, so a lost, doubled or
late message costs nothing. Small records are sent whole, as the bytes that they are: their digests
are part of the facts.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from gonogo.contract.cluster import EngineName
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Count
from gonogo.contract.lifecycle import RunEvent
from gonogo.contract.nearness import Near
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, ModelRecord, Preflight
from gonogo.contract.wire import Document, Labels, Submitted, Text

WAKE_QUEUE_PREFIX = "gonogo-"
WAKE_JOB = "worker.claims.loop.wake"
"""The one function that a queue message may name; anything else is refused."""

MAX_TELEMETRY_LINES = 5_000
MAX_LOG_BYTES = 65_536
MAX_EVIDENCE_BYTES = 50 * 2**20
MAX_FINDINGS_BYTES = 262_144
"""Of findings.jsonl in one message, which may say each at several times its length in the file."""
MAX_EVIDENCE_FILES = 1_000
MAX_EVIDENCE_PATH = 400
MAX_FINDINGS = 5_000
"""Of a run that the control plane keeps, tells and waits for, and the first that halts beside them:
findings.jsonl, which verdicts rest on, holds the rest."""
MAX_STREAM_BYTES = 2**20
"""Of one growing file in one message."""
MAX_RECORD_BYTES = 2**20
"""Of one small record; a larger one stays on the host and is not judged."""
MAX_RECORDS_BYTES = 128 * 2**20
"""Of all small records of a run; what is beyond stays on the host, the ranks' own first."""

STREAMS = ("watch.jsonl", "devices.jsonl", "findings.jsonl")
"""Growing files of every run besides the ranks' heartbeats."""
STREAM_NAME = r"^(watch|devices|findings|watch_node[0-9]{1,4})\.jsonl$"
"""Those, and of a run on several nodes what each one's follower told."""

RECORD_PATH = (
    r"^(order\.json|exit\.json|exit_(?:rank|node)[0-9]{1,4}\.json"
    r"|preflight/(?:node[0-9]{1,4}/)?preflight\.json|model\.json|env\.json|\.HALT|\.kill)$"
)
"""Small records of a run directory that judging needs byte by byte."""


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
    """Stable name of the worker on its host."""
    host: Word
    boot_id: Word
    """/proc/sys/kernel/random/boot_id: a new one of the same machine proves that everything before
    it is dead."""
    machine_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    """What tells the host from every other, whatever its name; null from a worker of before."""
    pid: int
    version: Word
    labels: Labels = {}
    profiles: Words = []
    """Hardware profiles that this worker can serve; empty = any."""
    devices: Words = []
    """All devices of the worker, such as `cpu:0`, `GPU-…`."""
    free: Words = []
    """Those without a living keeper."""
    active: Words = []
    """Runs that live or wait to be shipped on this worker. A run claimed by this worker that is
    not among them never started, or is over: it may be given out again."""
    waits: Waits = {}
    """Run → for what it waits at the worker's engine, or why nothing is heard of it, in the
    scheduler's words."""
    allow: Paths = []
    """What plans may start on this host besides nsa.train: modules, paths, or `any`."""
    allow_env: Words = []
    """Names that plans may set there besides the listed ones, or `any`."""
    engine: EngineName = EngineName.LOCAL
    """Who starts its runs: the worker itself, on one host and its devices, or a scheduler."""
    metrics_url: Annotated[str, Field(max_length=2000)] | None = None
    """Where Prometheus finds the worker's exporter."""
    draining: bool = False
    tells_again: bool = False
    """Whether it knows what `untold` in the answer means."""
    lets_go: bool = False
    """Whether it knows what `over` in the answer means."""


class ClaimAnswer(Submitted):
    """An order, or nothing."""

    order: Order | None = None
    secret: str | None = None
    """What every message about the run brings in `X-Gonogo-Claim`; it stays with the worker."""
    untold: list[str] = []
    """Runs of the worker that are under way as far as is known here, and that it does not name:
    where it told their end already, a database of before that was restored, and it tells all of
    them again. One that had not started is asked for once before it is given out again, and so is
    one that has waited in the queue since before the service's start."""
    over: list[str] = []
    """Runs that it names and that were declared dead here, such as by a takeover: no word of theirs
    is waited for any more."""


class RankTelemetry(Submitted):
    """A stretch of one rank's heartbeat file."""

    rank: Count
    start: Count
    """Byte of the file at which the stretch begins (what the control plane last acknowledged)."""
    end: Count
    """Byte after the last complete line of the stretch."""
    lines: Annotated[list[str], Field(max_length=MAX_TELEMETRY_LINES)]
    """The complete lines as they stand in the file (undecodable bytes replaced)."""
    raw_b64: str | None = None
    """The stretch's bytes, where the lines with a newline after each do not give them back."""


class StreamTelemetry(Submitted):
    """A stretch of complete lines of another growing file, as the bytes that they are."""

    name: StreamName
    start: Count
    content_b64: Annotated[str, Field(max_length=3 * MAX_STREAM_BYTES)]


class LogTelemetry(Submitted):
    """A stretch of one log file."""

    name: Annotated[str, Field(pattern=r"^(torchrun|rank[0-9]{1,4})\.log$")]
    start: Count
    text: Annotated[str, Field(max_length=MAX_LOG_BYTES)]
    end: Count


class Telemetry(Submitted):
    """POST /agent/runs/{id}/telemetry; an empty one renews the lease and asks for the offsets."""

    token: int
    ranks: list[RankTelemetry] = []
    logs: list[LogTelemetry] = []
    files: list[StreamTelemetry] | None = None
    """None: a sender of before there were any, which must not be answered about them."""
    suspect: bool = False
    backlog_lines: Count = 0
    near: Annotated[dict[str, Near], Field(max_length=200)] | None = None
    """Detector → how near it is to its limit; null: as told before."""


class CommandKind(StrEnum):
    """What an operator (or the control plane for him) asks of a run."""

    HALT = "halt"
    CANCEL = "cancel"
    SUPERSEDE = "supersede"


class Command(Submitted):
    """Stop with a checkpoint."""

    kind: CommandKind
    reason: Text = ""
    actor: Word = ""
    again: bool = False
    """Whether the operator asked a second time: the run is to end at once."""


class TelemetryAck(Submitted):
    """What the control plane has, and what it asks."""

    acked: dict[str, Count] = {}
    """Rank → bytes of its heartbeat file that are in the database."""
    logs: dict[str, Count] = {}
    files: dict[str, Count] = {}
    """Growing file → bytes of it that are in the database; unsaid to whom does not know it."""
    command: Command | None = None


class StateReport(Document):
    """POST /agent/runs/{id}/state: the run's lifecycle went on."""

    token: int
    event: RunEvent
    at: float
    dir: Path | None = None
    preflight: Preflight | None = None
    model: ModelRecord | None = None
    exit: ExitRecord | None = None
    sizes: dict[RankName, Count] = {}
    """With `end`: rank → bytes of complete lines in its file; judgement waits for all of them."""
    findings: Count = 0
    """With `end`: number of findings recorded; judgement waits for all of them."""
    files: dict[StreamName, Count] = {}
    """With `end`: growing file → bytes of complete lines in it; judgement waits for all of them."""
    records: dict[RecordPath, str] = {}
    """With `end`: small record → SHA-256 of its bytes; judgement waits for these very bytes."""


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
    """POST /agent/runs/{id}/records: one small record as it stands, base64; idempotent."""

    token: int
    path: RecordPath
    content_b64: Annotated[str, Field(max_length=2 * MAX_RECORD_BYTES)]


class Accepted(Submitted):
    """Answer of the calls that have nothing to say."""

    ok: bool = True
    detail: dict[str, Any] = {}
