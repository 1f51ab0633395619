"""Do alerts arrive at a real receiver that fails, hangs and drops, signed and under one id?"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from sqlalchemy.orm import Session
from standardwebhooks import Webhook

from gonogo.contract.wire import Kind, new_id
from service.alerts.webhooks import SETTINGS_WEBHOOK, Deliveries, is_wanted, subscribe_settings
from service.context import Context, open_context
from service.db.schema import AlertRow, DeliveryRow, WebhookRow
from service.settings import Settings
from tests.service.conftest import Plane, serving

SECRET = "whsec_" + "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"


@dataclass
class Receiver:
    """What arrived, and how the next requests are answered (200 by default)."""

    answers: list[int | str] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    release: threading.Event = field(default_factory=threading.Event)

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]

    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            receiver.got.append(({"webhook-id": "GET"}, b"{}"))
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            how = receiver.answers.pop(0) if receiver.answers else 200
            receiver.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
            if how == "hang":
                receiver.release.wait(20)
            if isinstance(how, str):
                self.close_connection = True
                return
            self.send_response(how)
            if how in (301, 302, 307, 308):
                self.send_header("Location", f"{receiver.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@dataclass
class Outbox:
    """A database with an outbox, a clock that a test moves, and the loop that empties it."""

    context: Context
    deliveries: Deliveries
    clock: list[float]
    stopped: bool = False

    def subscribe(self, url: str, *types: str, at: float = 0.0) -> str:
        webhook = new_id(Kind.WEBHOOK)
        self.context.store.write(
            lambda session: session.add(
                WebhookRow(id=webhook, url=url, secret=SECRET, types=list(types), created_at=at)
            )
        )
        return webhook

    def alert(self, kind: str = "finding.halt") -> str:
        alert = new_id(Kind.ALERT)
        data = {"alert_id": alert, "experiment": "exp_1", "text": "it hangs", "url": ""}
        self.context.store.write(
            lambda session: session.add(
                AlertRow(
                    id=alert, type=kind, experiment="exp_1", data=data, at=self.clock[0],
                    spread=False,
                )
            )
        )  # fmt: skip
        return alert

    def rows(self) -> list[DeliveryRow]:
        return self.context.store.read(lambda session: session.query(DeliveryRow).all())

    def run_until(self, ready: Callable[[], Any]) -> None:
        """Run passes, each two seconds later by the clock, until something holds."""
        for _ in range(2_000):
            if not self.stopped:
                self.deliveries.run_once()
            if ready():
                return
            self.clock[0] += 2.0
            self.context.closing.wait(0.01)
        raise AssertionError(f"it did not happen; deliveries: {[vars(row) for row in self.rows()]}")

    def settled(self) -> bool:
        rows = self.rows()
        return bool(rows) and all(row.state != "pending" for row in rows)


@pytest.fixture
def outbox(settings: Settings) -> Iterator[Outbox]:
    clock = [1_800_000_000.0]
    context = open_context(settings, now=lambda: clock[0])
    deliveries = Deliveries(context, timeout_s=1.0)
    yield Outbox(context, deliveries, clock)
    context.closing.set()
    deliveries.close()
    context.store.close()


def test_an_alert_arrives_signed_with_its_id(plane: Plane, receiver: Receiver) -> None:
    made = plane.call("POST", "/webhooks", json={"url": receiver.url, "types": ["decision.made"]})
    experiment = plane.submit()
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    plane.wait(lambda: receiver.got, "an alert")
    headers, body = receiver.got[0]
    Webhook(made.json()["secret"]).verify(body, headers)
    told = json.loads(body)
    assert told["type"] == "decision.made"
    assert told["data"]["alert_id"] == headers["webhook-id"]
    assert told["data"]["experiment"] == experiment
    assert told["data"]["url"] == f"{plane.context.url}/experiments/{experiment}"
    assert told["data"]["decision"]["verdict"] == "GO"
    alert = plane.wait(
        lambda: [row for row in plane.get("/alerts")["items"] if row["state"] == "delivered"],
        "the mark",
    )[-1]
    assert alert["id"] == headers["webhook-id"]


@pytest.mark.parametrize(
    ("types", "verdict", "wanted"),
    [
        ([], "GO", True), (["decision.made"], "GO", True), (["decision.made:no_go"], "GO", False),
        (["decision.made:no_go"], "NO_GO", True),
        (["decision.made:no_go", "run.lost"], None, False), (["run.lost"], "NO_GO", False),
        (["decision.made:go"], "CONDITIONAL_GO", False),
    ],
)  # fmt: skip
def test_a_subscription_may_ask_for_decisions_of_one_verdict(
    types: list[str], verdict: str | None, wanted: bool
) -> None:
    """Every GO woke a person who wants only important alerts."""
    alert = AlertRow(type="decision.made", data={"decision": {"verdict": verdict}})
    assert is_wanted(alert, types) is wanted


@pytest.mark.parametrize(
    "answers",
    [[500, 503, 429], ["hang"], ["drop", "drop"], [302], [404]],
    ids=["fails", "hangs", "drops", "redirects", "not-found"],
)
def test_a_receiver_that_recovers_gets_it_under_the_same_id_and_body(
    outbox: Outbox, receiver: Receiver, answers: list[int | str]
) -> None:
    receiver.answers = list(answers)
    outbox.subscribe(receiver.url)
    alert = outbox.alert()
    outbox.run_until(outbox.settled)
    assert receiver.ids() == [alert] * (len(answers) + 1)
    assert len({body for _, body in receiver.got}) == 1
    (row,) = outbox.rows()
    assert (row.state, row.attempts, row.error) == ("delivered", len(answers) + 1, None)


def test_what_was_alerted_before_a_subscription_is_not_told_to_it(
    outbox: Outbox, receiver: Receiver
) -> None:
    outbox.alert()
    outbox.clock[0] += 1.0
    outbox.subscribe(receiver.url, at=outbox.clock[0])
    later = outbox.alert()
    outbox.run_until(outbox.settled)
    assert receiver.ids() == [later]


def test_a_receiver_that_never_answers_is_given_up(outbox: Outbox, receiver: Receiver) -> None:
    receiver.answers = [500] * 10_000
    outbox.subscribe(receiver.url)
    outbox.alert()

    def later() -> bool:
        outbox.clock[0] += 3_600.0
        return outbox.settled()

    outbox.run_until(later)
    (row,) = outbox.rows()
    assert (row.state, row.error) == ("failed", "HTTP 500")


def test_a_receiver_that_hangs_delays_no_other(outbox: Outbox, receiver: Receiver) -> None:
    outbox.deliveries.close()
    outbox.deliveries = Deliveries(outbox.context, timeout_s=60.0)
    with receiving() as slow:
        slow.answers = ["hang"]
        hanging = outbox.subscribe(slow.url)
        outbox.alert()
        outbox.run_until(lambda: slow.got)
        outbox.subscribe(receiver.url)
        alert = outbox.alert()
        outbox.run_until(lambda: receiver.got)
        assert receiver.ids() == [alert]
        assert len(slow.got) == 1
        tries = {row.attempts for row in outbox.rows() if row.webhook == hanging}
        assert tries == {0}, "its first one is still under way"
    outbox.deliveries.close()


def test_only_the_types_asked_for_are_sent(outbox: Outbox, receiver: Receiver) -> None:
    outbox.subscribe(receiver.url, "finding.halt")
    outbox.alert("decision.made")
    wanted = outbox.alert("finding.halt")
    outbox.run_until(outbox.settled)
    assert receiver.ids() == [wanted]


def test_what_was_sent_and_not_marked_is_sent_again_under_the_same_id(
    outbox: Outbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.subscribe(receiver.url)
    alert = outbox.alert()

    died = threading.Event()

    def die(session: Session, *_: object) -> None:
        died.set()
        raise RuntimeError("killed between send and mark")

    with monkeypatch.context() as patched:
        patched.setattr("service.alerts.webhooks.mark", die)
        outbox.run_until(died.is_set)
    outbox.run_until(outbox.settled)
    assert len(receiver.got) >= 2
    assert set(receiver.ids()) == {alert}
    assert receiver.bodies()[0] == receiver.bodies()[1]


def test_the_environments_subscription_follows_the_environment(outbox: Outbox) -> None:
    store = outbox.context.store

    def row() -> WebhookRow:
        return store.read(lambda session: session.get_one(WebhookRow, SETTINGS_WEBHOOK))

    store.write(lambda session: subscribe_settings(session, "http://a", SECRET, 1.0))
    store.write(lambda session: subscribe_settings(session, "http://b", SECRET, 2.0))
    assert (row().url, row().secret, row().disabled_at) == ("http://b", SECRET, None)
    store.write(lambda session: subscribe_settings(session, None, None, 3.0))
    assert row().disabled_at == 3.0


def test_a_service_that_is_started_again_delivers_what_is_left(
    settings: Settings, receiver: Receiver
) -> None:
    context = open_context(settings)
    box = Outbox(context, Deliveries(context), [0.0])
    box.subscribe(receiver.url)
    alert = box.alert()
    box.deliveries.close()
    box.stopped = True
    with serving(context):
        box.run_until(lambda: receiver.got)
    assert receiver.ids() == [alert]
