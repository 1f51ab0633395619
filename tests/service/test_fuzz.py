"""Does the API keep to what it says of itself? Generated requests to every operation of it.

Each answer has a status, a content type and a body that the OpenAPI document names, whatever was
asked; none is an unexpected error. The same requests every time here; `make fuzz` asks for an hour,
with new ones. Streams of events are left out: they end when the client does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from service.context import open_context
from service.db.migrate import migrate
from service.http.auth import load_local_keys
from service.settings import load_settings
from tests.service.conftest import serving

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4"))
"""Requests an operation and way of making them."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    home: Path = tmp_path_factory.mktemp("fuzzed")
    chosen = load_settings({"GONOGO_HOME": str(home)})
    migrate(chosen.database_url)
    context = open_context(chosen)
    load_local_keys(context)
    with serving(context) as http:
        config = SchemathesisConfig.from_dict(
            {"headers": {"Authorization": f"Bearer {(home / 'key').read_text().strip()}"}}
        )
        yield schemathesis.openapi.from_url(f"{http.base_url}/openapi.json", config=config)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
def test_every_answer_is_one_that_the_document_names(
    api: schemathesis.BaseSchema, mode: GenerationMode
) -> None:
    """Asked as the document says, and asked otherwise."""
    asked = 0
    for found in api.exclude(operation_id="stream_events").get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize="FUZZ_EXAMPLES" not in os.environ,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def keeps_its_word(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate(checks=CHECKS)

        with suppress(Unsatisfiable):  # nothing can be asked otherwise of what asks for nothing
            keeps_its_word()
    assert asked > 50
