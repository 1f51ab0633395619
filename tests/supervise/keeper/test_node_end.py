"""A node that sees a task end reports only what is certain of its keeper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.keeper.node_end import main
from gonogo.supervise.node_record import exit_path, gone_path, meet_path, own_keeping, proof_of_loss


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param({}, True, id="killed"),
        pytest.param({"lives": True}, False, id="another start, and its keeper lives"),
        pytest.param({"token": 6}, False, id="an older attempt's"),
        pytest.param({"host": "another"}, False, id="kept on another host"),
        pytest.param({"ended": True}, False, id="ended with its word"),
        pytest.param({"never": True}, False, id="never come"),
    ],
)
def test_a_keeper_that_is_gone_is_told_of_where_that_is_certain(
    tmp_path: Path, changes: dict[str, Any], told: bool
) -> None:
    keeping = own_keeping(node=1, token=7, address="a:1").document(1.0)
    if "lives" not in changes:
        keeping["start_ticks"] -= 1  # whose number another process has by now
    if "never" not in changes:
        save_json(meet_path(tmp_path, 1), {**keeping, **changes})
    if "ended" in changes:
        save_json(exit_path(tmp_path, 1), {"v": 1, "token": 7})
    assert main([str(tmp_path), "--node", "1", "--token", "7"]) == 0
    word = load_json(gone_path(tmp_path, 1))
    assert (word is not None) is told
    if word is not None:
        assert proof_of_loss(tmp_path, 1) == f"{keeping['host']} says: {word['text']}"
        assert word["text"] == f"its keeper, process {keeping['pid']}, is gone"


def test_what_somebody_said_of_a_node_stays(tmp_path: Path) -> None:
    keeping = own_keeping(node=1, token=7, address="a:1").document(1.0)
    save_json(meet_path(tmp_path, 1), {**keeping, "start_ticks": 1})
    word = {"by": "Slurm", "text": "job 7 is CANCELLED"}
    save_json(gone_path(tmp_path, 1), word)
    main([str(tmp_path), "--node", "1", "--token", "7"])
    assert load_json(gone_path(tmp_path, 1)) == word
