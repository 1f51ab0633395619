"""The shipped JSON Schemas are those of the models, and real documents fit them."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from gonogo.contract.observation import DeviceSample
from gonogo.contract.schemas import SCHEMAS, save_schemas, schema
from gonogo.planning.source import bundled_campaign_names, bundled_plan, bundled_plan_names
from tests.data.make_runs import GOLDEN, HERE, OURS


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_shipped_schema_is_the_model_s(name: str, tmp_path: Path) -> None:
    save_schemas(tmp_path)
    shipped = resources.files("gonogo.contract").joinpath("schemas", f"{name}.json").read_text()
    assert shipped == (tmp_path / f"{name}.json").read_text(), "run `make made`"
    jsonschema.Draft202012Validator.check_schema(json.loads(shipped))


def fits(name: str, document: object) -> None:
    jsonschema.Draft202012Validator(schema(name)).validate(document)


def test_bundled_plans_fit_the_schema() -> None:
    for name in (*bundled_plan_names(), *bundled_campaign_names()):
        fits("plan", bundled_plan(name))


@pytest.mark.parametrize("run", OURS)
def test_a_run_directory_fits_the_schemas(run: str) -> None:
    folder = HERE / "runs" / run
    fits("order", json.loads((folder / "order.json").read_text()))
    fits("exit", json.loads((folder / "exit.json").read_text()))
    for line in (folder / "findings.jsonl").read_text().splitlines():
        fits("finding", json.loads(line))
    for line in (folder / "watch.jsonl").read_text().splitlines():
        fits("tick", json.loads(line))


def test_a_line_of_devices_jsonl_fits_the_schema() -> None:
    sample = DeviceSample(ts=1e9, mono=5.0, uuid="GPU-1", rank=0, util=93.0, xids=[], throttle=[])
    fits("device", json.loads(sample.model_dump_json()))


@pytest.mark.parametrize("name", GOLDEN)
def test_decisions_fit_the_schema(name: str) -> None:
    fits("decision", json.loads((HERE / "decisions" / f"{name}.json").read_text()))


def test_a_plan_with_a_typo_does_not_fit() -> None:
    with pytest.raises(jsonschema.ValidationError):
        fits("plan", {**bundled_plan("demo"), "stages": []})
