"""Does the API keep to what it says of itself? Generated requests to every operation of it.

Each answer has a status, a content type and a body that the OpenAPI document names, whatever was
asked; none is an unexpected error. Most requests are about existing things in several states, and
come from an allowed role. Some are about nothing, or come from another role. The same requests
every time here; `make fuzz` asks for an hour, with new ones. Streams of events are left
out: they end when the client does.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.contract.order import Order
from service.conductor.judge import Judging
from service.db.schema import ExperimentRow, RunRow, WebhookRow
from service.http.auth import Role
from tests.service.conftest import Plane
from tests.service.fake_worker import FakeWorker, beats
from tests.service.test_auth import CALLS, new_key

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "1"))
"""Requests an operation, way of making them, and database."""
FRAMING = ("content-length", "transfer-encoding")
"""Headers that the server itself reads: wrong ones are no HTTP, and no route sees them."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NOBODY: dict[str, str] = {}


@dataclass
class Site:
    """A control plane with things in it that can be asked about, in several states."""

    plane: Plane
    worker: FakeWorker = field(init=False)
    """The worker whose key a worker's call has."""
    running: Order = field(init=False)
    """The order of `worker`."""
    waiting: tuple[str, str] = field(init=False)
    """A queued experiment and its run."""
    ended: tuple[str, str] = field(init=False)
    """An experiment with a decision, and the run that was judged."""
    decision: str = field(init=False)
    campaign: str = field(init=False)
    webhook: str = field(init=False)
    keys: dict[Role | None, dict[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        plane, self.worker = self.plane, self.plane.worker()
        experiment = plane.submit(set={"phases.sanity.approve": "always"})
        order = self._claim()
        self.worker.start(order)
        lines = {rank: beats(order, rank, upto=1, done=False) for rank in range(order.world_size)}
        self.worker.ship(order, lines)
        assert self.worker.end(order, lines, "oom", code=1).status_code == 200
        judging = Judging(plane.context)
        judging.settle()
        judging.close()
        self.ended = experiment, order.run
        (decision,) = plane.get(f"/experiments/{experiment}/decisions")["items"]
        self.decision = decision["id"]
        made = plane.call("POST", "/campaigns", json={"plan": "campaign-demo"})
        self.campaign = made.json()["id"]
        self._subscribe()
        self._queue()
        self._start()
        roles = {role: new_key(plane, f"a {role}", role) for role in Role}
        keys = {**roles, Role.WORKER: self.worker.key}
        self.keys = {
            None: NOBODY,
            **{role: {"Authorization": f"Bearer {key}"} for role, key in keys.items()},
        }

    def renew(self) -> None:
        """Have another in place of what was ended by what was asked."""
        store = self.plane.context.store
        run = store.read(lambda session: session.get(RunRow, self.running.run))
        if run is None or run.state is not RunState.RUNNING:
            self._start()
        queued = store.read(lambda session: session.get(ExperimentRow, self.waiting[0]))
        if queued is None or queued.state is not ExperimentState.QUEUED:
            self._queue()
        webhook = store.read(lambda session: session.get(WebhookRow, self.webhook))
        if webhook is None or webhook.disabled_at is not None:
            self._subscribe()

    def about(self, case: schemathesis.Case, which: str) -> None:
        """Have a request ask about one of the things that are there."""
        experiment, run = {
            "running": (self.running.experiment, self.running.run),
            "ended": self.ended,
            "waiting": self.waiting,
        }[which]
        known = {
            "experiment": experiment,
            "run": run,
            "decision": self.decision,
            "campaign": self.campaign,
            "webhook": self.webhook,
            "picture": "loss",
            "path": "order.json",
            "name": "plan" if "/schemas/" in case.path else "demo",
        }
        case.path_parameters = {name: known[name] for name in case.path_parameters or ()}
        if case.path.endswith("/logs"):
            case.query = {**(case.query or {}), "name": "torchrun.log"}
        if "/agent/runs/" in case.path and which == "running":
            case.headers = {**(case.headers or {}), "X-Gonogo-Claim": self.worker.secrets[run]}
            if isinstance(case.body, dict):
                case.body["token"] = self.running.token

    def _claim(self) -> Order:
        order = self.worker.claim()
        assert order is not None
        return order

    def _start(self) -> None:
        self.plane.submit()
        self.running = order = self._claim()
        self.worker.start(order)
        lines = {rank: beats(order, rank, upto=3, done=False) for rank in range(order.world_size)}
        self.worker.ship(order, lines)
        log = {"name": "torchrun.log", "start": 0, "end": 5, "text": "well\n"}
        assert self.worker.telemetry(order, logs=[log]).status_code == 200

    def _queue(self) -> None:
        experiment = self.plane.submit()
        self.waiting = experiment, self.plane.experiment(experiment)["phases"][0]["runs"][0]

    def _subscribe(self) -> None:
        made = self.plane.call("POST", "/webhooks", json={"url": "http://127.0.0.1:9/"})
        self.webhook = made.json()["id"]


@pytest.fixture
def site(still: Plane) -> Site:
    return Site(still)


def callers(operation: APIOperation[Any, Any, Any, Any]) -> st.SearchStrategy[Role | None]:
    """Return the caller's role: mostly an allowed one."""
    call = f"{operation.method.upper()} {operation.path.removeprefix('/api/v1')}"
    may = next((role for role, calls in CALLS.items() if call in calls), None)
    return st.sampled_from([Role.ADMIN, may, may, may, *Role, None])


@pytest.fixture
def api(site: Site) -> schemathesis.BaseSchema:
    site.plane.http.get("/openapi.json", timeout=120.0)  # the first answer is written meanwhile
    return schemathesis.openapi.from_url(
        f"{site.plane.http.base_url}/openapi.json", config=SchemathesisConfig.from_dict({})
    )


def test_every_answer_is_one_that_the_document_names(
    site: Site, api: schemathesis.BaseSchema
) -> None:
    """Asked as the document says, and asked otherwise."""
    answers: Counter[int] = Counter()
    found = api.exclude(operation_id="stream_events").get_all_operations()
    for operation, mode in product([one.ok() for one in found], GenerationMode):

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize="FUZZ_EXAMPLES" not in os.environ,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            case=operation.as_strategy(generation_mode=mode),
            caller=callers(operation),
            which=st.sampled_from(["running", "ended", "waiting", None]),
        )
        def keeps_its_word(case: schemathesis.Case, caller: Role | None, which: str | None) -> None:
            site.renew()
            if which is not None:
                site.about(case, which)
            drawn = {k: v for k, v in (case.headers or {}).items() if k.lower() not in FRAMING}
            case.headers = {**drawn, **site.keys[caller]}
            answers[case.call_and_validate(checks=CHECKS).status_code] += 1

        with suppress(Unsatisfiable):  # nothing can be asked otherwise of what asks for nothing
            keeps_its_word()
    assert answers[200] > max(50, answers[404])
