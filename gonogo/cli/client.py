"""A thin REST client of the control plane; its errors are those of the contract."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import httpx
import typer

from gonogo import __version__
from gonogo.cli.output import ago
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.api import ExperimentView, FoundView, RunView
from gonogo.contract.errors import Conflict, NotAllowed, NotFound, Problem, Rejected, Unavailable
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.wire import SHORT_LENGTH, Kind, is_id

_ERRORS = {401: NotAllowed, 403: NotAllowed, 404: NotFound}
_HERE = ("localhost", "127.0.0.1", "::1")
_TIMEOUT = httpx.Timeout(180.0, connect=30.0)
"""A report takes long: its pictures are drawn when it is asked for."""
_PATIENCE_S = 60.0
"""How long a read is repeated while the service restarts or the machine is starved."""


class Client:
    """Calls of `/api/v1`; every method raises `GonogoError`s only."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        unanswered: str = "is it running? (`gonogo up`)",
        refused: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url
        self._unanswered, self._refused = unanswered, refused
        self._answered = False
        self.meanwhile: Callable[[], object] = lambda: None
        """Called before each try to read; a demo restarts its own service here."""
        try:
            self._http = httpx.Client(
                base_url=f"{url}/api/v1",
                headers={
                    "User-Agent": f"gonogo/{__version__}",
                    **({"Authorization": f"Bearer {key}"} if key else {}),
                },
                timeout=_TIMEOUT,
                transport=transport,
                verify=httpx.URL(url).scheme != "http",  # certificates take 25 ms to load
                trust_env=httpx.URL(url).host not in _HERE,  # a proxy knows no way to this host
            )
        except httpx.InvalidURL as error:
            raise Rejected(f"GONOGO_URL: found {url!r}; expected http://HOST:PORT") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Return the response of one call; parameters that are None are left out."""
        try:
            response = self._http.request(
                method,
                path,
                json=body,
                params={name: row for name, row in (params or {}).items() if row is not None},
                headers=headers,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"no answer from {self.url} ({error}); {self._unanswered}") from error
        self._answered = True
        if response.is_success:
            return response
        if response.status_code == 401 and self._refused is not None:
            raise NotAllowed(f"{self.url} {self._refused}")
        raise _error_of(response)

    def get(self, path: str, **params: Any) -> Any:
        """Return the answer of a GET; a service that has answered before is tried for a minute."""
        give_up = time.monotonic() + (_PATIENCE_S if self._answered else 0.0)
        while True:
            self.meanwhile()
            try:
                return self._document(self.call("GET", path, params=params))
            except Unavailable:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.5)

    def post(self, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> Any:
        """Return the JSON answer of a POST."""
        return self._document(self.call("POST", path, body=body or {}, headers=headers))

    def _document(self, response: httpx.Response) -> dict[str, Any]:
        found = _object_in(response)
        if found is None:
            text = f"something else than gonogo answers at {self.url}; {self._unanswered}"
            raise Unavailable(text)
        return found

    def pages(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield the items of a paged collection, page by page."""
        cursor = None
        while True:
            page = self.get(path, cursor=cursor, **params)
            yield from page["items"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def experiment(self, experiment: str) -> ExperimentView:
        """Return an experiment by its id, the beginning of it, its name, or `last`."""
        _, found = resolve(self, experiment, Kind.EXPERIMENT)
        return ExperimentView.model_validate(self.get(f"/experiments/{found}"))

    def run(self, run: str) -> RunView:
        """Return a run."""
        return RunView.model_validate(self.get(f"/runs/{run}"))


def connect(settings: Settings | None = None) -> Client:
    """Return a client of the service that the environment or its home names."""
    settings = settings or load_settings()
    if settings.service.stale is not None and settings.api_key is None:
        raise Unavailable(settings.service.unanswered())
    return Client(
        settings.url,
        settings.key(),
        unanswered=settings.service.unanswered(),
        refused=settings.key_refused(),
    )


def _object_in(response: httpx.Response) -> dict[str, Any] | None:
    try:
        found = response.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _error_of(response: httpx.Response) -> Exception:
    status = f"{response.status_code} {response.reason_phrase}"
    body = _object_in(response)
    if body is None:
        body, status = {}, f"{status} from {response.url.netloc.decode()}, not from gonogo"
    detail = str(body.get("detail") or status)
    if response.status_code >= 500 or response.status_code == 429:
        return Unavailable(detail)
    if response.status_code == 409:
        return Conflict(detail, state=body.get("state"), allowed=tuple(body.get("allowed") or ()))
    problems = tuple(
        Problem(path=str(row.get("path", "")), message=str(row.get("message", "")))
        for row in body.get("errors") or ()
    )
    return _ERRORS.get(response.status_code, Rejected)(detail, problems=problems)


WORD = {
    Kind.EXPERIMENT: "experiment",
    Kind.RUN: "run",
    Kind.DECISION: "decision",
    Kind.CAMPAIGN: "campaign",
}
Id = Annotated[str, typer.Argument(help="Experiment: id, beginning of it, name, or `last`.")]
LAST = "last"
_BEGIN = {
    Kind.EXPERIMENT: "gonogo submit demo",
    Kind.CAMPAIGN: "gonogo campaign submit campaign-demo",
}
SHOWN = 10
"""Candidates that are listed of an ambiguous text."""
LEAST_LETTERS = 4
"""Letters of an id, without its kind, that name a file or folder of a home."""


class Ambiguous(Rejected):
    """The text may mean several things; `problems` are the candidates."""


def pick_id(text: str, kind: Kind, known: Iterable[Path]) -> Path | None:
    """Return the file or folder that is named by the id that a text means; None: none of them."""
    letters = text.removeprefix(f"{kind.value}_").upper()
    if len(letters) < LEAST_LETTERS or re.search(r"[^0-9A-Z]", letters):
        return None
    shown = len(letters) == SHORT_LENGTH
    found = {
        path.stem: path
        for path in known
        if is_id(path.stem, kind)
        and (path.stem[4:].startswith(letters) or (shown and path.stem.endswith(letters)))
    }
    if len(found) > 1:
        rows = [Problem(path=stem, message=str(path)) for stem, path in sorted(found.items())]
        words = f"{text!r} may mean {len(found)} {WORD[kind]}s of this home; say which by its id:"
        raise Ambiguous(words, problems=tuple(rows[:SHOWN]))
    return next(iter(found.values()), None)


def resolve(client: Client, text: str, *kinds: Kind) -> tuple[Kind, str]:
    """Return the kind and the id of what a text names; `kinds` are what may be meant."""
    for kind in kinds:
        if is_id(text, kind):
            return kind, text
    if Kind.EXPERIMENT in kinds and is_id(text, Kind.RUN):
        return Kind.EXPERIMENT, str(client.get(f"/runs/{text}")["experiment"])
    for kind, begin in _BEGIN.items():
        if text == LAST and kind in kinds:
            newest = client.get(f"/{WORD[kind]}s", limit=1)["items"]
            if not newest:
                raise NotFound(f"there is no {WORD[kind]} yet; begin one with: {begin}")
            return kind, str(newest[0]["id"])
    answer = client.get("/find", text=text, kind=[kind.value for kind in kinds], limit=SHOWN + 1)
    found = [FoundView.model_validate(row) for row in answer["items"]] if text else []
    if not found:
        words = " or ".join(WORD[kind] for kind in kinds)
        shows = "gonogo campaign list" if kinds == (Kind.CAMPAIGN,) else "gonogo list"
        raise NotFound(f"there is no {words} {text!r}; `{shows}` shows what there is")
    if len(found) > 1:
        count = f"{len(found)} things" if len(found) <= SHOWN else f"more than {SHOWN} things"
        rows = tuple(Problem(path=row.id, message=describe(row)) for row in found[:SHOWN])
        raise Ambiguous(f"{text!r} may mean {count}; say which by its id:", problems=rows)
    return found[0].kind, found[0].id


def resolve_run(client: Client, text: str) -> str | None:
    """Return the id of a run; of an experiment its newest, or None while it has none."""
    kind, found = resolve(client, text, Kind.RUN, Kind.EXPERIMENT)
    if kind is Kind.RUN:
        return found
    runs = [run for phase in client.experiment(found).phases for run in phase.runs]
    return max(runs, default=None)


def origin_of(client: Client, text: str) -> str:
    """Return `EXP:PHASE[@STEP]` with the id of its experiment."""
    name, colon, rest = text.rpartition(":")
    if not (name and colon and rest):
        raise Rejected(f"--from: found {text!r}; expected EXP:PHASE, such as last:smoke")
    _, experiment = resolve(client, name, Kind.EXPERIMENT)
    return f"{experiment}:{rest}"


def describe(row: FoundView) -> str:
    """Return a description: `smoke of nightly, GO, 3 min ago`."""
    what = f"{row.phase} of {row.name}" if row.phase else row.name
    active = row.kind is Kind.EXPERIMENT and row.state != ExperimentState.FINISHED
    words = row.state if active else row.verdict or row.state
    return f"{what}, {words}{' by hand' if row.by_hand and not active else ''}, {ago(row.at)}"
