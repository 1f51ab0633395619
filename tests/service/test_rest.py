"""The resources answer in the form that the interface names."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.api import SUBSCRIPTIONS
from gonogo.contract.errors import GonogoError
from service.db.schema import ExperimentRow
from service.http.answers import STATUS, Outdated
from service.http.auth import Role, create_key
from service.http.dependencies import check_if_match, etag_of
from tests.service.conftest import Plane
from tests.service.fake_worker import beats

ROOT = Path(__file__).parents[2]
PARTS = ("gonogo.contract.errors", "service.http", "service.evidence")
"""Where the errors are defined that leave the service."""
NAMED = r"[a-z]+(?:_[a-z]+)+"
"""An operation is a verb and what it is done to."""


def test_a_dry_run_answers_every_order_and_stores_nothing(plane: Plane) -> None:
    answer = plane.call("POST", "/experiments", json={"plan": "demo", "dry_run": True})
    assert answer.status_code == 200
    orders = answer.json()["orders"]
    assert [order["phase"] for order in orders][:2] == ["sanity", "synthetic"]
    assert plane.get("/experiments")["items"] == []


def test_the_same_idempotency_key_creates_once(plane: Plane) -> None:
    headers = {"Idempotency-Key": "k1"}

    def submit(_: int) -> Any:
        return plane.call("POST", "/experiments", json={"plan": "demo"}, headers=headers)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(submit, range(6)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    ids = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert len(ids) == 1
    assert len(plane.get("/experiments")["items"]) == 1
    other = plane.call("POST", "/experiments", json={"plan": "demo", "name": "x"}, headers=headers)
    assert other.status_code == 422


def test_an_idempotency_key_is_its_callers_own_and_free_after_a_refusal(plane: Plane) -> None:
    other = plane.context.store.write(
        lambda session: create_key(session, "other", Role.OPERATOR, 1.0)
    )
    bad = {"plan": "demo", "set": {"phases.smoke.steps": "many"}}
    made = [
        plane.call("POST", "/experiments", key=key, json=body, headers={"Idempotency-Key": "k3"})
        for key, body in ((None, bad), (None, {"plan": "demo"}), (other, {"plan": "demo"}))
    ]
    assert [answer.status_code for answer in made] == [422, 201, 201]
    assert made[1].json()["id"] != made[2].json()["id"]


BAD: tuple[tuple[dict[str, Any], int, str | None], ...] = (
    ({"plan": "nope"}, 404, None),
    ({"plan": "demo", "set": {"phases.smoke.stps": 3}}, 422, "phases.smoke.stps"),
    ({"plan": "m7c-125m", "set": {"fault": "hang"}}, 422, None),
    ({"plan": "demo", "set": {"fault": "hang:rank=9"}}, 422, None),
    ({"plan": "demo", "typo": 1}, 422, "typo"),
    ({"plan": "demo", "name": "nul\x00"}, 422, "name"),
    ({"plan": "demo", "name": "two\nlines"}, 422, "name"),
    ({"plan": "demo", "labels": {"team": "a\tb"}}, 422, "labels.team"),
    ({"plan": {"v": 1}}, 422, "name"),
)
FORM = "application/x-www-form-urlencoded"


def test_a_bad_submission_is_refused_with_its_path(still: Plane) -> None:
    for body, status, path in BAD:
        answer = still.call("POST", "/experiments", json=body)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
        if path is not None:
            assert path in [row["path"] for row in answer.json()["errors"]]
    for content, kind, status, text in (
        (b'{"plan": "demo"}', FORM, 422, "Content-Type: application/json"),
        (b'{"plan":', "application/json", 400, "JSON decode error"),
    ):
        said = {"Content-Type": kind}
        answer = still.call("POST", "/experiments", content=content, headers=said)
        assert (answer.status_code, text in answer.json()["detail"]) == (status, True)


def test_lists_come_in_pages_that_miss_nothing(plane: Plane) -> None:
    made = [plane.submit() for _ in range(5)]
    found: list[str] = []
    cursor = None
    while True:
        page = plane.get("/experiments", limit=2, **({"cursor": cursor} if cursor else {}))
        found += [row["id"] for row in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == sorted(made, reverse=True)


def test_what_is_not_there_is_a_problem_document(still: Plane) -> None:
    for path in ("/experiments/exp_1", "/runs/../x", "/decisions/dec_", "/schemas/x"):
        answer = still.call("GET", path)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "not_found"


def test_a_series_keeps_its_peaks(plane: Plane) -> None:
    plane.submit(set={"phases.sanity.steps": 400})
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    lines = beats(order, 0)
    for step, loss in ((200, 99.0), (201, "NaN")):
        said = f'"step": {step}, "msg": "progress"'
        at = next(n for n, line in enumerate(lines) if said in line)
        lines[at] = json.dumps({**json.loads(lines[at]), "loss": loss})
    worker.ship(order, {0: lines})
    found = plane.get(f"/runs/{order.run}/series", metric="loss", points=20)["series"][0]
    assert len(found["points"]) <= 20
    assert [200, 99.0] in found["points"]
    assert (found["samples"], found["non_finite"]) == (399, [201])
    assert plane.call("GET", f"/runs/{order.run}/series?metric=nope").status_code == 422


def test_a_program_s_own_metrics_are_series(plane: Plane) -> None:
    plane.submit(set={"phases.sanity.steps": 3})
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    lines = [json.loads(line) for line in beats(order, 0)]
    told = [row for row in lines if row["msg"] == "progress"]
    for row in told:
        row["user"] = {"acc": row["step"] / 100, "train/x": "NaN"}
    worker.ship(order, {0: [json.dumps(row) for row in lines]})
    run = f"/runs/{order.run}"
    found = plane.get(f"{run}/series", metric="user/acc")
    assert (found["metric"], found["unit"]) == ("user/acc", None)
    assert found["series"][0]["points"][:2] == [[1, 0.01], [2, 0.02]]
    other = plane.get(f"{run}/series", metric="user/train/x")["series"][0]
    assert (other["samples"], len(other["non_finite"])) == (0, len(told))
    assert plane.call("GET", f"{run}/series?metric=user/").status_code == 422


def test_artifacts_are_served_from_here_and_never_from_outside(
    plane: Plane, tmp_path: Path
) -> None:
    plane.submit()
    worker = plane.worker(home=tmp_path / "runs", host=socket.gethostname())
    order = plane.next_order(worker)
    folder = tmp_path / "runs" / order.run
    folder.mkdir(parents=True)
    (folder / "order.json").write_text(json.dumps(order.document()))
    (folder / "rank0.log").write_text("hello\n")
    (tmp_path / "secret").write_text("no")
    (folder / "link").symlink_to(tmp_path / "secret")
    worker.start(order)
    base = f"/runs/{order.run}/artifacts"
    listed = plane.get(base)
    assert [row["path"] for row in listed["items"]] == ["order.json", "rank0.log"]
    assert plane.call("GET", f"{base}/rank0.log").text == "hello\n"
    for path in ("%2e%2e/%2e%2e/secret", "link", "%2e%2e%2fsecret", "none"):
        assert plane.call("GET", f"{base}/{path}").status_code in (404, 422), path


def test_an_artifact_on_another_host_says_where_it_lies(plane: Plane, tmp_path: Path) -> None:
    plane.submit()
    worker = plane.worker(home=tmp_path / "away", host="far-away")
    order = plane.next_order(worker)
    worker.start(order)
    answer = plane.call("GET", f"/runs/{order.run}/artifacts/rank0.log")
    assert answer.status_code == 409
    body = answer.json()
    assert body["code"] == "artifact_not_here"
    assert {"path": "host", "message": "far-away"} in body["errors"]
    report = {"token": order.token, "path": "evidence/s.txt", "content_b64": "aGVsbG8="}
    assert worker.post(f"/runs/{order.run}/evidence", report).status_code == 200
    found = plane.call("GET", f"/runs/{order.run}/artifacts/evidence/s.txt")
    assert (found.status_code, found.text) == (200, "hello")
    for path in ("../x", "/etc/passwd", ""):
        assert (
            worker.post(f"/runs/{order.run}/evidence", {**report, "path": path}).status_code == 422
        )


def test_a_worker_cannot_make_the_service_serve_another_folder(
    plane: Plane, tmp_path: Path
) -> None:
    plane.submit()
    worker = plane.worker()
    order = plane.next_order(worker)
    (tmp_path / "passwd").write_text("secret")
    worker.state(order, "check", dir=str(tmp_path))
    assert plane.call("GET", f"/runs/{order.run}/artifacts/passwd").status_code == 409


def test_webhooks_show_their_secret_once(plane: Plane) -> None:
    body = {"url": "http://127.0.0.1:1/hook", "types": ["finding.halt"]}
    made = plane.call("POST", "/webhooks", json=body)
    assert made.status_code == 201
    assert made.json()["secret"].startswith("whsec_")
    listed = plane.get("/webhooks")["items"]
    assert (listed[0]["id"], listed[0]["secret"]) == (made.json()["id"], None)
    assert plane.call("DELETE", f"/webhooks/{made.json()['id']}").status_code == 204
    assert plane.get("/webhooks")["items"] == []
    assert plane.call("POST", "/webhooks", json={"url": "file:///etc/passwd"}).status_code == 422


def test_a_webhook_of_a_type_that_is_never_sent_is_refused(plane: Plane) -> None:
    body = {"url": "http://127.0.0.1:1/hook"}
    for typo, meant in (
        ("decision.mad", "decision.made"),
        ("decision.made:nogo", "decision.made:no_go"),
    ):
        refused = plane.call("POST", "/webhooks", json={**body, "types": [typo]})
        assert refused.status_code == 422
        assert meant in refused.json()["detail"]
    assert plane.get("/webhooks")["items"] == []
    every = {**body, "types": list(SUBSCRIPTIONS)}
    assert plane.call("POST", "/webhooks", json=every).status_code == 201


def test_openapi_documents_problems_and_unique_operations(plane: Plane) -> None:
    document = plane.http.get("/openapi.json").json()
    operations = []
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operations.append(operation["operationId"])
            if path.startswith("/api/"):
                assert {"400", "401", "403", "404", "409", "422", "503"} <= set(
                    operation["responses"]
                ), path
                assert "Retry-After" in operation["responses"]["503"]["headers"]
            assert re.fullmatch(NAMED, operation["operationId"]), operation["operationId"]
    assert len(set(operations)) == len(operations)
    assert "ProblemBody" in document["components"]["schemas"]


def subclasses(kind: type[GonogoError]) -> Iterator[type[GonogoError]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def test_every_problem_has_a_uri_that_the_documentation_explains(plane: Plane) -> None:
    """`docs/reference/rest.md` names the code of every error, with the status that it has here."""
    page = (ROOT / "docs/reference/rest.md").read_text()
    rows = {
        code: int(row.group(2))
        for row in re.finditer(r"^\|(`[^|]+`)\|(\d{3})[^|]*\|", page, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", row.group(1))
    }
    ours = [kind for kind in subclasses(GonogoError) if kind.__module__.startswith(PARTS)]
    assert len(ours) >= 12
    for kind in ours:
        status = next(status for known, status in STATUS if issubclass(kind, known))
        assert rows[kind.code] == status, kind
    for path, status in (("/experiments/exp_1", 404), ("/experiments?cursor=%00", 400)):
        problem = plane.call("GET", path)
        assert problem.status_code == status
        assert problem.json()["type"] == f"urn:gonogo:problem:{problem.json()['code']}"


def test_a_cursor_that_is_none_is_refused(plane: Plane) -> None:
    for path in (
        "/events?cursor=exp_1", "/experiments?cursor=zzz", "/alerts?cursor=exp_1",
        "/webhooks?cursor=1", "/campaigns?cursor=%00", "/workers?cursor=%20",
    ):  # fmt: skip
        answer = plane.call("GET", path)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), path


def test_an_action_that_was_meant_for_an_older_version_is_refused() -> None:
    row = ExperimentRow(event_seq=8)
    for named in (etag_of(row), '"7", "8"', "*", None):
        check_if_match(row, named)
    for named in ('"7"', '"88"', ""):
        with pytest.raises(Outdated):
            check_if_match(row, named)


def test_a_generated_client_gets_moments_and_enums(plane: Plane) -> None:
    schemas = plane.http.get("/openapi.json").json()["components"]["schemas"]
    for model, name in (("RunView", "created_at"), ("EventView", "at"), ("AlertView", "at")):
        assert schemas[model]["properties"][name]["format"] == "date-time"
    loose = [
        f"{model}.{name}"
        for model, schema in schemas.items()
        for name, field in schema.get("properties", {}).items()
        if name.endswith("_at") and "string" in str(field) and "date-time" not in str(field)
    ]
    assert loose == []
    assert schemas["WorkerState"]["enum"] == ["up", "silent", "draining"]
