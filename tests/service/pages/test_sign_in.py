"""Signing in: by a link or a key, for how long, and what a session opens."""

from __future__ import annotations

import httpx
import pytest

from service.http.auth import COOKIE, LINK_S, SESSION_S, Role, create_key, revoke_key
from service.pages.sign_in import local_path
from tests.service.conftest import Plane


def link_of(plane: Plane) -> str:
    answer = plane.call("POST", "/sign-in-links")
    assert answer.status_code == 201
    assert answer.json()["url"].startswith(plane.context.url)
    return str(answer.json()["url"])


def browser(plane: Plane) -> httpx.Client:
    return httpx.Client(base_url=plane.context.url, timeout=120, trust_env=False)


def sees(client: httpx.Client, path: str = "/") -> bool:
    answer = client.get(path)
    if answer.status_code == 200:
        return True
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in?next=")
    return False


def new_key(plane: Plane, role: Role, name: str = "ann") -> str:
    store = plane.context.store
    return store.write(lambda session: create_key(session, name, role, plane.context.now()))


def test_a_link_opens_one_browser_once(plane: Plane) -> None:
    link = link_of(plane)
    with browser(plane) as first, browser(plane) as second:
        answer = first.get(link)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert sees(first)
        again = second.get(link)
        assert again.status_code == 403
        assert "used before" in again.text
        assert not sees(second)


def test_a_link_and_a_session_expire(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    now = plane.context.now()
    link = link_of(plane)
    fresh = link_of(plane)
    with browser(plane) as client:
        assert client.get(fresh).status_code == 303
        monkeypatch.setattr(plane.context, "now", lambda: now + LINK_S + 60)
        assert client.get(link).status_code == 403
        assert sees(client)
        monkeypatch.setattr(plane.context, "now", lambda: now + SESSION_S + 60)
        assert not sees(client)


def test_a_key_opens_the_pages_and_leads_back(plane: Plane) -> None:
    with browser(plane) as client:
        asked = client.get("/workers?x=1")
        assert asked.headers["location"] == "/sign-in?next=%2Fworkers%3Fx%3D1"
        form = client.get(asked.headers["location"])
        assert 'value="/workers?x=1"' in form.text
        data = {"key": new_key(plane, Role.VIEWER), "next": "/workers?x=1"}
        answer = client.post("/sign-in", data=data)
        assert (answer.status_code, answer.headers["location"]) == (303, "/workers?x=1")
        assert sees(client, "/workers")


@pytest.mark.parametrize("key", ["", "nonsense", "worker"])
def test_no_other_key_does(plane: Plane, key: str) -> None:
    with browser(plane) as client:
        sent = plane.key("worker_key") if key == "worker" else key
        answer = client.post("/sign-in", data={"key": sent})
        assert answer.status_code == 403
        assert COOKIE not in answer.headers.get("set-cookie", "")
        assert not sees(client)


def test_a_session_ends_with_its_key_and_when_one_signs_out(plane: Plane) -> None:
    key = new_key(plane, Role.OPERATOR)
    with browser(plane) as one, browser(plane) as other:
        for client in (one, other):
            assert client.post("/sign-in", data={"key": key}).status_code == 303
        stolen = one.cookies[COOKIE]
        assert one.post("/sign-out").status_code == 303
        assert not sees(one)
        one.cookies.set(COOKIE, stolen)
        assert not sees(one)
        assert sees(other)
        store = plane.context.store
        store.write(lambda session: revoke_key(session, "ann", plane.context.now()))
        assert not sees(other)


def test_the_cookie_does_not_open_the_api(plane: Plane) -> None:
    with browser(plane) as client:
        client.get(link_of(plane))
        assert client.get("/api/v1/experiments").status_code == 401
        assert client.post("/api/v1/experiments", json={"plan": "demo"}).status_code == 401


def test_links_need_an_admin(plane: Plane) -> None:
    key = new_key(plane, Role.OPERATOR)
    assert plane.call("POST", "/sign-in-links", key=key).status_code == 403
    assert plane.http.post("/api/v1/sign-in-links").status_code == 401


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("/workers", "/workers"), ("//evil.example", "/"), ("/\\evil.example", "/"),
        ("https://evil.example", "/"), ("", "/"), ("/a\r\nSet-Cookie: x", "/"),
    ],
)  # fmt: skip
def test_nobody_is_led_to_another_site(path: str, to: str) -> None:
    assert local_path(path) == to
