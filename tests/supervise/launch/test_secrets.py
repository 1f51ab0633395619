"""Names that a plan may give, and secrets that stay on their host."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.plan import Plan
from gonogo.environment_names import is_listed
from gonogo.planning.resolve import problems_in
from gonogo.planning.source import bundled_plan, parse_plan
from gonogo.supervise.launch.command import Allowed, LaunchRefused, build_environment

ORDER = {"run": "run_1", "world_size": 1, "train": {}}
RUN_DIR = Path("/runs/run_1")


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_DEBUG_FILE",
        "NCCL_CONF_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "GLOO_ANYTHING",
        "HTTP_PROXY", "NCCL_", "xNCCL_DEBUG", "HF_HOME",
    ],
)  # fmt: skip
def test_no_listed_name_writes_a_file_or_loads_code(name: str) -> None:
    assert not is_listed(name)
    with pytest.raises(LaunchRefused):
        build_environment({**ORDER, "env": {name: "1"}}, RUN_DIR, {}, [])


def test_a_secret_is_read_on_the_host_that_runs_it(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "hub").write_text("hf_very_secret\n")
    order = {**ORDER, "env": {"HF_TOKEN": "secret:hub"}}
    found = build_environment(order, RUN_DIR, {"GONOGO_HOME": str(tmp_path)}, [])
    assert found["HF_TOKEN"] == "hf_very_secret"


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NSA_TB_DISABLE", "NSA_TOKEN", "CONFIG"])
def test_no_secret_goes_under_a_name_that_is_printed(name: str, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "hub").write_text("hf_very_secret\n")
    order, environ = {**ORDER, "env": {name: "secret:hub"}}, {"GONOGO_HOME": str(tmp_path)}
    allowed = Allowed(names=frozenset({"any", "MY_NAME"}))
    for host in (None, allowed):
        with pytest.raises(LaunchRefused, match="no secret goes under") as refused:
            build_environment(order, RUN_DIR, environ, [], host)
        assert "very" not in str(refused.value)
    order = {**ORDER, "env": {"MY_NAME": "secret:hub"}}
    assert build_environment(order, RUN_DIR, environ, [], allowed)["MY_NAME"] == "hf_very_secret"


@pytest.mark.parametrize("value", ["secret:none", "secret:../key", "secret:", "secret:a/b"])
def test_a_secret_that_is_not_there_or_no_secret_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "key").write_text("the admin's")
    order = {**ORDER, "env": {"HF_TOKEN": value}}
    with pytest.raises(LaunchRefused, match="secret") as refused:
        build_environment(order, RUN_DIR, {"GONOGO_HOME": str(tmp_path)}, [])
    assert "admin" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("HF_TOKEN", "hf_abc", True), ("WANDB_API_KEY", "abc", True), ("DB_PASSWORD", "abc", True),
        ("HF_TOKEN", "secret:hub", False), ("HF_TOKEN", "secret:../x", True),
        ("NCCL_DEBUG", "secret:hub", True), ("MY_NAME", "secret:hub", False),
        ("TOKENIZERS_PARALLELISM", "false", False), ("HF_TOKEN", "", False),
    ],
)  # fmt: skip
def test_a_plan_holds_no_secret_in_clear(name: str, value: str, refused: bool) -> None:
    document = parse_plan(bundled_plan("demo")).model_dump(mode="json", exclude_unset=True)
    document["workload"] = {"command": ["train"], "env": {name: value}}
    document["train"] = {}
    plan = Plan.model_validate(document)
    paths = [row.path for row in problems_in(plan, {}, None)]
    assert (f"workload.env.{name}" in paths) is refused
    assert value not in str([row.message for row in problems_in(plan, {}, None)]) or len(value) < 5
