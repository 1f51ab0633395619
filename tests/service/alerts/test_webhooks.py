"""Addresses that a webhook may have, and the test of a subscription."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from gonogo.contract.api import AlertBody, AlertData
from gonogo.contract.errors import Rejected
from service.alerts.webhooks import check_reach, post_alert
from service.http.auth import COOKIE, SECURE_COOKIE
from service.settings import load_settings, new_secret
from service.text import stamp
from tests.service.alerts.test_delivery import receiving
from tests.service.conftest import Plane


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/", "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/", "http://0.0.0.0/",
    ],
)  # fmt: skip
def test_no_webhook_leads_to_a_metadata_service(plane: Plane, url: str) -> None:
    answer = plane.call("POST", "/webhooks", json={"url": url})
    assert answer.status_code == 422
    assert "no webhook may lead" in answer.text


@pytest.mark.parametrize("port", ["99999", "0", "http"])
def test_a_webhook_whose_port_is_none_is_refused(plane: Plane, port: str) -> None:
    """Each try of it was a traceback, and the alert due again."""
    answer = plane.call("POST", "/webhooks", json={"url": f"http://127.0.0.1:{port}/"})
    assert answer.status_code == 422


@pytest.mark.parametrize("url", ["http://10.0.0.7/", "http://[::1]/", "http://[64:ff9b::a00:7]/"])
def test_receivers_of_ones_own_are_reached(url: str) -> None:
    check_reach(url)


def test_a_name_that_leads_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at the time of a try: a name may have come to lead elsewhere."""

    def look_up(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(Rejected, match=r"inside\.example leads to 169\.254\.169\.254"):
        check_reach("http://inside.example/hook")
    body = AlertBody(
        type="run.lost",
        timestamp=stamp(0.0),
        data=AlertData(alert_id="alt_1", text="lost", url="http://gonogo.example"),
    )
    error = post_alert(
        "http://inside.example/hook", new_secret(), "alt_1", body, 0.0, timeout_s=5.0
    )
    assert "inside.example leads to 169.254.169.254" in (error or "")


def test_a_subscription_can_be_tried_and_its_address_is_in_no_log(
    plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    """The address of a receiver (Slack's) is a secret: its holder may post there."""
    caplog.set_level("INFO")
    with receiving() as receiver:
        receiver.url += "/services/T0/whose"
        made = plane.call("POST", "/webhooks", json={"url": receiver.url}).json()
        path = f"/webhooks/{made['id']}/test"
        assert plane.call("POST", path).json() == {"delivered": True, "error": None}
        headers, body = receiver.got[-1]
        assert Webhook(made["secret"]).verify(body, headers)["type"] == "ping"
        receiver.answers = [500]
        assert plane.call("POST", path).json() == {"delivered": False, "error": "HTTP 500"}
    assert "whose" not in caplog.text
    assert plane.call("POST", "/webhooks/wh_none/test").status_code == 404


@pytest.mark.parametrize("url", ["gonogo.example", "ftp://x", "https://", "https://x/?a=1"])
def test_what_is_no_address_is_refused_at_the_start(tmp_path: Path, url: str) -> None:
    with pytest.raises(Rejected, match="GONOGO_PUBLIC_URL"):
        load_settings({"GONOGO_HOME": str(tmp_path), "GONOGO_PUBLIC_URL": url})


def test_links_lead_where_people_are_and_the_cookie_never_leaves_tls(plane: Plane) -> None:
    plane.context.url = "https://gonogo.example"
    link = plane.call("POST", "/sign-in-links").json()["url"]
    assert link.startswith("https://gonogo.example/sign-in?token=")
    path = link.removeprefix("https://gonogo.example")
    cookie = plane.http.get(path).headers["set-cookie"]
    assert cookie.startswith(f"{SECURE_COOKIE}=")
    assert SECURE_COOKIE.startswith("__Host-"), "browsers then insist on what follows"
    for part in ("Secure", "HttpOnly", "Path=/", "SameSite=lax"):
        assert part in cookie
    assert "Domain" not in cookie
    assert f"{COOKIE}=" not in cookie.replace(SECURE_COOKIE, "")
