"""How does the worker's side call the control plane? The agent calls over HTTP, thinly.

Guarantees: every call ends within its timeouts; a failure is one of the contract's errors
(`Unavailable`: try again; `StaleToken`: the control plane itself says that a newer claim owns the
run; other `Conflict`: a step that does not fit; other `Rejected`: never by repeating). Only the
control plane refuses: what a stranger on the way says (a proxy, a page to sign in), by whatever
status, is weather. Nothing here retries, and neither key nor secrets enter a message or a log line.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from gonogo.contract.agent import (
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
from gonogo.contract.api import PROBLEM_URN, ProblemBody
from gonogo.contract.errors import (
    Conflict,
    NotAllowed,
    NotFound,
    Rejected,
    StaleToken,
    Unavailable,
)

CONNECT_TIMEOUT_S = 2.0
CALL_TIMEOUT_S = 10.0
EVIDENCE_TIMEOUT_S = 30.0


_ALWAYS_SAID: Mapping[type[BaseModel], frozenset[str]] = {
    ClaimAnswer: frozenset({"order"}),
    TelemetryAck: frozenset({"acked"}),
    Accepted: frozenset({"ok", "detail"}),
}
"""What the control plane says in every answer: to `{}` and `{"ok": true}` strangers come, too."""


class Intercepted(Unavailable):
    """A stranger between here and the control plane refuses; it says nothing of what was sent."""


class TooLarge(Rejected):
    """The message is too large for the control plane, or for anybody on the way."""


class KeyRefused(NotAllowed):
    """The key is not valid: of a run that says nothing."""


_A = TypeVar("_A", bound=BaseModel)


class ControlPlane:
    """The control plane at `url`, called with a worker key; safe to use from several threads.

    Args:
        url: its address.
        key: the worker key.
        secret_of: returns the secret of a run's claim.
        moved: returns where it is by now, asked after each call that it did not take; None: there.
        renewed: returns the key as it is by now, asked after each call whose key it refused; None:
            it is not known to have changed.
        transport: what carries the calls.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        secret_of: Callable[[str], str | None] = lambda run: None,
        moved: Callable[[], str | None] = lambda: None,
        renewed: Callable[[], str | None] = lambda: None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._secret_of, self._moved, self._renewed = secret_of, moved, renewed
        headers = _signed(key) if key else {}
        self._http = httpx.Client(
            base_url=_base_of(url),
            headers=headers,
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
        """Report that the run's lifecycle went on."""
        return self._post_about(run, "state", report, Accepted)

    def post_findings(self, run: str, report: FindingsReport) -> Accepted:
        """Report findings; those that are known already change nothing."""
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
        except OSError as error:  # without it the control plane would refuse what is said
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
        """Post one message; after a failure the next goes where the control plane is by now.

        After one whose key was refused it goes with the key that there is by now.

        Raises: see `_post_there`.
        """
        try:
            return self._post_there(path, body, answer, headers=headers, timeout_s=timeout_s)
        except (Rejected, Unavailable) as error:
            url = self._moved()
            if url is not None:
                self._http.base_url = _base_of(url)
            key = self._renewed() if isinstance(error, KeyRefused) else None
            if key is not None:
                self._http.headers.update(_signed(key))
            raise

    def _post_there(
        self,
        path: str,
        body: BaseModel,
        answer: type[_A],
        *,
        headers: Mapping[str, str] | None,
        timeout_s: float,
    ) -> _A:
        """Post one message.

        Raises:
            Unavailable: no answer, 5xx, 429, or an answer that is not of this protocol; nothing
                is sent of a run whose secret cannot be read just now.
            Intercepted: a refusal that is no problem of ours.
            StaleToken: by the answer's code, and only with the newer token.
            Conflict, NotFound, NotAllowed, Rejected: by the status of a problem of ours.
            TooLarge: anybody on the way finds the message too large.
        """
        try:
            response = self._http.post(
                path,
                content=body.model_dump_json(),
                headers={"Content-Type": "application/json", **(headers or {})},
                timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            )
        except httpx.HTTPError as error:
            raise Unavailable(f"{path}: {type(error).__name__}: {error}") from error
        if response.is_success:
            text = f"{path}: the answer is not that of a control plane"
            try:
                found = answer.model_validate_json(response.content)
            except ValidationError as error:
                raise Unavailable(text) from error
            if not found.model_fields_set.issuperset(_ALWAYS_SAID[answer]):
                raise Unavailable(text)
            return found
        raise _error_of(path, response)


def _signed(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _base_of(url: str) -> str:
    return f"{url.rstrip('/')}/api/v1/agent"


def _error_of(path: str, response: httpx.Response) -> Rejected | Unavailable:
    """Return the contract's error for an answer that is not a success."""
    status = response.status_code
    problem = _problem_of(response)
    detail = f"{path}: {status}: {problem.detail if problem else response.reason_phrase}"
    if response.is_client_error and problem is None and status not in (413, 429):
        return Intercepted(f"{detail}, which is no answer of the control plane's")
    if status == 409 and problem and problem.code == StaleToken.code and problem.token is not None:
        return StaleToken(detail, newer=problem.token)
    if status == 409:
        allowed = tuple(problem.allowed) if problem else ()
        return Conflict(detail, state=problem.state if problem else None, allowed=allowed)
    if status == 413:
        return TooLarge(detail)
    if status == 404:
        return NotFound(detail)
    if status == 401:
        return KeyRefused(detail)
    if status == 403:
        return NotAllowed(detail)
    if status == 429 or status >= 500 or not response.is_client_error:
        return Unavailable(detail)
    return Rejected(detail)


def _problem_of(response: httpx.Response) -> ProblemBody | None:
    """Return the problem of ours that an answer is, or None where something else came back."""
    try:
        problem = ProblemBody.model_validate_json(response.content)
    except ValidationError:
        return None
    return problem if problem.type.startswith(PROBLEM_URN) else None
