"""Client of the control plane's agent calls.

Every call ends within its timeouts. A failure is one of the contract's errors: `Unavailable` (try
again), `StaleToken` (a newer claim owns the run), `Conflict` (an event that does not fit), another
`Rejected` (never by repeating). Only the control plane refuses: what a proxy or a sign-in page
answers, with any status, is an outage. Nothing is retried here, and neither key nor secrets enter a
message or a log.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from gonogo.contract.api import PROBLEM_URN, ProblemBody
from gonogo.contract.errors import (
    Conflict,
    NotAllowed,
    NotFound,
    Rejected,
    StaleToken,
    Unavailable,
)
from gonogo.contract.worker_messages import (
    CLAIM_HEADER,
    Accepted,
    ClaimAnswer,
    ClaimRequest,
    EvidenceReport,
    FindingsReport,
    RecordReport,
    StateReport,
    Telemetry,
    TelemetryAck,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The growing pauses between tries of one thing that may fail; a success resets them."""

    first_s: float
    """The first pause, at most."""
    longest_s: float
    """Any pause, at most."""
    jitter: float = 1.0
    """Share of a pause that chance decides: 1 = all of it, 0 = none."""
    failures: int = 0
    """How often it failed, one after the other."""
    pause_s: float = 0.0
    """The pause that was drawn at the last failure."""
    not_before: float = float("-inf")
    """When it may be tried again, on the clock that `later` was given."""

    def later(self, now: float) -> Self:
        """Return the state after a failure at `now` (seconds of a monotonic clock)."""
        most_s = min(self.longest_s, self.first_s * 2 ** min(self.failures, 32))
        pause_s = most_s * (1 - self.jitter * random.random())
        return replace(self, failures=self.failures + 1, pause_s=pause_s, not_before=now + pause_s)


CONNECT_TIMEOUT_S = 2.0
CALL_TIMEOUT_S = 10.0
EVIDENCE_TIMEOUT_S = 30.0


class Intercepted(Unavailable):
    """A stranger between here and the control plane refuses."""


class KeyRefused(NotAllowed):
    """The key is not valid."""


_A = TypeVar("_A", bound=BaseModel)


class ControlPlane:
    """The control plane at `url`; after a failure its present address and key are asked for."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        secret_of: Callable[[str], str | None] = lambda run: None,
        find_url: Callable[[], str | None] = lambda: None,
        find_key: Callable[[], str | None] = lambda: None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._secret_of, self._find_url, self._find_key = secret_of, find_url, find_key
        self._http = httpx.Client(
            base_url=_base_of(url),
            headers=_signed(key),
            timeout=httpx.Timeout(CALL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            transport=transport,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def post_claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Offer free devices; return an order or nothing."""
        return self._post("/claims", request, ClaimAnswer)

    def post_telemetry(self, run: str, telemetry: Telemetry) -> TelemetryAck:
        """Send heartbeats and logs, renew the lease; return what has arrived so far."""
        return self._post_about(run, "telemetry", telemetry, TelemetryAck)

    def post_state(self, run: str, report: StateReport) -> Accepted:
        """Report an event of the run's lifecycle."""
        return self._post_about(run, "state", report, Accepted)

    def post_findings(self, run: str, report: FindingsReport) -> Accepted:
        """Report findings; known ones change nothing."""
        return self._post_about(run, "findings", report, Accepted)

    def post_evidence(self, run: str, report: EvidenceReport) -> Accepted:
        """Upload one file of evidence."""
        return self._post_about(run, "evidence", report, Accepted, timeout_s=EVIDENCE_TIMEOUT_S)

    def post_record(self, run: str, report: RecordReport) -> Accepted:
        """Upload one small record; the same bytes again change nothing."""
        return self._post_about(run, "records", report, Accepted, timeout_s=EVIDENCE_TIMEOUT_S)

    def _post_about(
        self,
        run: str,
        call: str,
        body: BaseModel,
        answer: type[_A],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> _A:
        """Post one message about a run, with the secret of its claim."""
        path = f"/runs/{run}/{call}"
        try:
            secret = self._secret_of(run)
        except OSError as error:
            raise Unavailable(f"{path}: the claim's secret cannot be read: {error}") from error
        headers = {CLAIM_HEADER: secret} if secret else {}
        return self._post(path, body, answer, headers=headers, timeout_s=timeout_s)

    def _post(
        self,
        path: str,
        body: BaseModel,
        answer: type[_A],
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> _A:
        """Post one message; after a failure the next one goes to the present address."""
        try:
            response = self._http.post(
                path,
                content=body.model_dump_json(),
                headers={"Content-Type": "application/json", **(headers or {})},
                timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            )
            if not response.is_success:
                raise _error_of(path, response)
            return answer.model_validate_json(response.content)
        except (httpx.HTTPError, ValidationError, Rejected, Unavailable) as error:
            self._http.base_url = self._find_url_or(str(self._http.base_url))
            if isinstance(error, KeyRefused):
                self._http.headers.update(_signed(self._find_key()))
            if isinstance(error, ValidationError):
                text = f"{path}: the answer is not that of a control plane"
                raise Unavailable(text) from error
            if isinstance(error, httpx.HTTPError):
                raise Unavailable(f"{path}: {type(error).__name__}: {error}") from error
            raise

    def _find_url_or(self, base: str) -> str:
        url = self._find_url()
        return base if url is None else _base_of(url)


def _signed(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _base_of(url: str) -> str:
    return f"{url.rstrip('/')}/api/v1/agent"


def _error_of(path: str, response: httpx.Response) -> Rejected | Unavailable:
    """Return the contract's error for an answer that is not a success."""
    status = response.status_code
    problem = _problem_of(response)
    detail = f"{path}: {status}: {problem.detail if problem else response.reason_phrase}"
    if status == 413:
        return Rejected(detail)
    if status == 429 or not response.is_client_error:
        return Unavailable(detail)
    if problem is None:
        return Intercepted(f"{detail}, which is no answer of the control plane's")
    if status == 409 and problem.code == StaleToken.code and problem.token is not None:
        return StaleToken(detail, newer=problem.token)
    if status == 409:
        return Conflict(detail, state=problem.state, allowed=tuple(problem.allowed))
    simple = {401: KeyRefused, 403: NotAllowed, 404: NotFound}
    return simple.get(status, Rejected)(detail)


def _problem_of(response: httpx.Response) -> ProblemBody | None:
    try:
        problem = ProblemBody.model_validate_json(response.content)
    except ValidationError:
        return None
    return problem if problem.type.startswith(PROBLEM_URN) else None
