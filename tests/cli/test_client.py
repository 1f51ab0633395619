"""The client turns every answer into the contract's errors, and pages through collections."""

import ssl
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gonogo.cli.client import Client
from gonogo.contract.errors import Conflict, NotAllowed, NotFound, Rejected, Unavailable

Answer = Callable[[httpx.Request], httpx.Response]


def client_of(answer: Answer, key: str | None = "k") -> Client:
    return Client("http://service", key, transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, NotAllowed), (403, NotAllowed), (404, NotFound), (409, Conflict), (400, Rejected),
        (422, Rejected), (429, Unavailable), (500, Unavailable), (503, Unavailable),
    ],
)  # fmt: skip
def test_a_problem_document_becomes_its_own_error(status: int, kind: type[Exception]) -> None:
    body = {"title": "t", "status": status, "detail": "what to do", "code": "c"}
    with client_of(lambda _: httpx.Response(status, json=body)) as client:
        with pytest.raises(kind, match="what to do") as caught:
            client.get("/experiments")
    assert type(caught.value) is kind


def test_a_conflict_says_what_is_allowed_now() -> None:
    body = {"detail": "no", "state": "finished", "allowed": ["rerun"]}
    with client_of(lambda _: httpx.Response(409, json=body)) as client:
        with pytest.raises(Conflict) as caught:
            client.post("/experiments/exp_1/halt")
    assert (caught.value.state, caught.value.allowed) == ("finished", ("rerun",))


def test_problems_keep_their_paths() -> None:
    rows = [{"path": "phases.smoke.stps", "message": "unknown key"}]
    with client_of(lambda _: httpx.Response(422, json={"detail": "d", "errors": rows})) as client:
        with pytest.raises(Rejected) as caught:
            client.post("/experiments", {})
    assert caught.value.problems[0].path == "phases.smoke.stps"


def test_an_error_page_that_is_not_json_is_still_one_error() -> None:
    with client_of(lambda _: httpx.Response(502, text="<html>")) as client:
        with pytest.raises(Unavailable, match="502"):
            client.get("/experiments")


@pytest.mark.parametrize("text", ["<html>", "", "[1, 2]", '"ok"', "\x00"])
def test_another_program_at_the_address_is_named_as_one(text: str) -> None:
    with client_of(lambda _: httpx.Response(200, text=text)) as client:
        for call in (client.get, client.post):
            with pytest.raises(Unavailable, match="else than gonogo answers at http://service; is"):
                call("/experiments")
    with client_of(lambda _: httpx.Response(200, text=text)) as client:
        with pytest.raises(Unavailable):  # at once: nobody of ours has answered it before
            next(client.pages("/alerts"))
    with client_of(lambda _: httpx.Response(404, text=text)) as client:
        with pytest.raises(NotFound, match="404 Not Found from service, not from gonogo"):
            client.get("/experiments")


def test_no_answer_is_unavailable_and_says_how_to_start_the_service() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with client_of(refuse) as client, pytest.raises(Unavailable, match="gonogo up"):
        client.get("/experiments")


def test_before_each_try_to_read_the_caller_may_start_the_service_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if len(tries) == 2:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, json={})

    monkeypatch.setattr("time.sleep", lambda _: None)
    with client_of(answer) as client:
        client.meanwhile = lambda: tries.append(1)
        client.get("/experiments")
        assert client.get("/experiments") == {}
    assert len(tries) == 3


@pytest.mark.parametrize("url", ["https://service", "HTTPS://service"])
def test_certificates_are_checked_wherever_there_are_any(url: str) -> None:
    with Client(url, None) as client:
        transport: Any = client._http._transport
        assert transport._pool._ssl_context.verify_mode == ssl.CERT_REQUIRED


def test_pages_are_followed_to_the_end() -> None:
    pages = {None: ([1, 2], "b"), "b": ([3], "c"), "c": ([], None)}

    def answer(request: httpx.Request) -> httpx.Response:
        items, following = pages[request.url.params.get("cursor")]
        return httpx.Response(
            200, json={"items": [{"n": n} for n in items], "next_cursor": following}
        )

    with client_of(answer) as client:
        assert [row["n"] for row in client.pages("/alerts")] == [1, 2, 3]


def test_a_url_that_is_none_is_rejected() -> None:
    with pytest.raises(Rejected, match="GONOGO_URL"):
        Client("http://[::", None)


@pytest.mark.parametrize(
    ("host", "proxied"), [("127.0.0.1", 0), ("localhost", 0), ("[::1]", 0), ("service.example", 1)]
)
def test_no_proxy_is_asked_for_the_service_of_this_host(
    host: str, proxied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know the way, and would be shown the key."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy.example:1")
    with Client(f"http://{host}:8750", "k") as client:
        mounts = [row for row in client._http._mounts.values() if row is not None]
        assert len(mounts) == proxied
