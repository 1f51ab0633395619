"""`gonogo compare` over real run directories, decisions and the service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gonogo.contract.canonical import wire_line
from gonogo.contract.order import Order
from tests.cli.conftest import Gonogo
from tests.cli.test_json_output import fits
from tests.data.make_runs import exit_of, healthy_ranks, order_of, save_run
from tests.service.conftest import Plane
from tests.service.fake_worker import beats

RUNS = Path(__file__).parents[1] / "data" / "runs"


def run_id(number: int) -> str:
    return f"run_01K{number:023d}"


def order_for(number: int, **env: str) -> Order:
    """The order of the tiny demo under a run id of its own, with more in its environment."""
    order = order_of()
    whole = {**order.env, **env}
    identity = order.identity.model_copy(update={"nsa_env": whole})
    return order.model_copy(update={"run": run_id(number), "env": whole, "identity": identity})


def save_slowed(folder: Path, order: Order, factor: float) -> str:
    """Write a healthy run whose steps take `factor` times as long."""
    ranks = healthy_ranks(order)
    for rank in ranks:
        first = rank.lines[0]
        for line in rank.lines:
            for name in ("ts", "mono"):
                line[name] = round(first[name] + factor * (line[name] - first[name]), 6)
    save_run(folder, order, ranks, exit_of(ranks))
    return str(folder)


@pytest.fixture
def slow(tmp_path: Path) -> list[str]:
    """Three runs of a baseline."""
    return [
        save_slowed(tmp_path / f"slow{n}", order_for(n), factor)
        for n, factor in enumerate((1.0, 1.01, 0.99), start=1)
    ]


@pytest.fixture
def fast(tmp_path: Path) -> list[str]:
    """Three runs of a variant that takes 0.9 of the time."""
    return [
        save_slowed(tmp_path / f"fast{n}", order_for(n, NSA_USE_FLASH="1"), 0.9 * factor)
        for n, factor in enumerate((1.0, 1.012, 0.99), start=11)
    ]


def test_repeats_make_a_winner(slow: list[str], fast: list[str], gonogo: Gonogo) -> None:
    said = gonogo("compare", ",".join(slow), f"flash={','.join(fast)}")
    assert said.code == 0
    assert "flash wins: toks_per_s is 11 % higher (ratio 1.10" in said.out
    assert "differs      env.NSA_USE_FLASH: not set → 1 (" in said.out
    assert said.err == ""


@pytest.mark.parametrize("edit", ["watch removed", "clock halved"])
def test_runs_that_nothing_proves_win_nothing(
    edit: str, slow: list[str], fast: list[str], gonogo: Gonogo
) -> None:
    for folder in map(Path, fast):
        if edit == "watch removed":
            (folder / "watch.jsonl").unlink()
            continue
        for file in folder.glob("heartbeat_rank*.jsonl"):
            rows = [json.loads(line) for line in file.read_bytes().splitlines()]
            told = [{**row, "mono": (row["mono"] + rows[0]["mono"]) / 2} for row in rows]
            file.write_bytes(b"".join(map(wire_line, told)))
    said = gonogo("compare", ",".join(slow), f"flash={','.join(fast)}")
    assert "flash has no run that counts" in said.out
    assert said.out.count("no_halt_finding: ") == len(fast)


def save_logged(folder: Path, order: Order, factor: float) -> str:
    """Write a healthy run of which rank 1 logs an accuracy that falls at its last step."""
    ranks = healthy_ranks(order)
    for line in ranks[1].lines:
        if line["msg"] == "progress":
            line["user"] = {"acc": factor * (line["step"] % 12 + 1)}
    save_run(folder, order, ranks, exit_of(ranks))
    return str(folder)


def test_own_metrics_are_compared_by_their_last_or_best_value(
    tmp_path: Path, gonogo: Gonogo
) -> None:
    one = save_logged(tmp_path / "one", order_for(1), 1.0)
    other = save_logged(tmp_path / "other", order_for(2, NSA_USE_FLASH="1"), 1.5)
    args = ("compare", one, other, "--metric", "user/acc", "--higher")
    said = gonogo(*args).out
    assert "last user/acc" in said
    assert "50 % higher (better); nothing shows how sure that is" in said
    found = gonogo(*args, "--aggregate", "best", "--json").json()
    fits("compare", found)
    assert found["aggregate"] == "best"
    assert [row["value"] for row in found["variants"]] == [12.0, 18.0]


def test_json_is_one_object_of_the_published_schema(
    slow: list[str], fast: list[str], gonogo: Gonogo
) -> None:
    said = gonogo("compare", f"base={','.join(slow)}", f"flash={','.join(fast)}", "--json")
    found = said.json()
    fits("compare", found)
    assert (found["result"], found["winner"], found["kept"]) == ("winner", "flash", "flash")
    base, flash = found["variants"]
    assert (base["answer"], flash["answer"], flash["basis"]) == (None, "better", "paired_runs")
    assert [row["repeat"] for row in flash["runs"]] == [1, 2, 3]
    assert flash["runs"][0] == {
        "name": fast[0],
        "run": run_id(11),
        "repeat": 1,
        "value": flash["runs"][0]["value"],
        "window": "6..12",
        "samples": 7,
        "blocks": 7,
    }


def test_runs_that_do_not_count_are_named_with_why(
    tmp_path: Path, slow: list[str], gonogo: Gonogo
) -> None:
    save_slowed(tmp_path / "short", order_for(9), 1.0)
    said = gonogo("compare", slow[0], str(RUNS / "stalled"))
    assert said.code == 0
    assert "(stalled): completed: ended as stalled" in said.out
    late = gonogo("compare", slow[0], str(tmp_path / "short"), "--warmup", "12")
    assert "it has no step after the 12 of the warm-up" in late.out
    old = gonogo("compare", slow[0], str(RUNS / "predecessor_healthy"))
    assert "no order is recorded" in old.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{a}"], 2, "expected a baseline and at least one more variant"),
        (["{a}", "{a}"], 2, "is given twice"),
        (["{a}", "{b},"], 2, "a run is missing"),
        (["x={a}", "x={b}"], 2, "the name 'x' is given twice"),
        (["{a}", "{b}", "--metric", "speed"], 2, "there is no metric 'speed'"),
        (["{a}", "{b}", "--metric", "grad_norm"], 2, "Say lower or higher"),
        (["{a}", "{b}", "--margin", "2"], 2, "margin: found 2"),
        (["{a}", "{b}", "--confidence", "95"], 2, "confidence: found 95"),
        (["{a}", "{a}/preflight"], 3, "neither heartbeat_rank{N}.jsonl nor order.json is there"),
        (["{a}", "no/such/run"], 3, "no such run directory"),
        (["{a}", "nightly"], 5, "nightly: no such directory here; no answer from"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_what_cannot_be_compared_is_one_line(
    arguments: list[str], code: int, words: str, slow: list[str], gonogo: Gonogo
) -> None:
    typed = [text.replace("{a}", slow[0]).replace("{b}", slow[1]) for text in arguments]
    said = gonogo("compare", *typed, GONOGO_URL="http://127.0.0.1:9")
    assert said.code == code, said.err
    assert words in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


def test_the_service_knows_runs_and_experiments(plane: Plane, gonogo: Gonogo) -> None:
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    runs = []
    for name in ("one", "two"):
        gonogo("submit", "demo", "--name", name)
        order = plane.next_order(worker)
        worker.start(order)
        lines = {rank: beats(order, rank) for rank in range(order.world_size)}
        worker.ship(order, lines)
        worker.end(order, lines)
        where = f"/experiments/{order.experiment}/decisions"
        plane.wait(lambda where=where: plane.get(where)["items"], "a decision")
        gonogo("halt", name)
        plane.wait_state(order.experiment, "awaiting_decision", "stopping")
        gonogo("cancel", name)
        plane.wait_state(order.experiment, "finished")
        runs.append(order.run)
    said = gonogo("compare", *runs, "--metric", "loss", "--warmup", "0")
    assert said.code == 0, said.err
    assert "the variants ran the same thing" in said.out
    newest = gonogo("compare", "one", "two", "--metric", "loss")
    assert "one (one): completed: ended as halted" in newest.out
    missing = gonogo("compare", "one", "three", "--metric", "loss")
    assert missing.code == 3
    assert "there is no run or experiment 'three'" in missing.err


@pytest.mark.parametrize("text", ["loss", "=0.1", "loss=1", "loss=nan"])
def test_a_share_that_is_none_is_one_line(text: str, gonogo: Gonogo) -> None:
    said = gonogo("compare", "a", "b", "--alike-in", text)
    assert said.code == 2
    assert "--alike-in" in said.err
    assert "expected" in said.err
