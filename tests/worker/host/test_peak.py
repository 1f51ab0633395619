"""Is a GPU held against its equals alone?"""

from __future__ import annotations

import pytest

from gonogo.contract.records import CheckOutcome
from tests.supervise.orders import make_order
from worker.host.preflight import Probe, _judge_peak


@pytest.mark.parametrize(("sms", "unfit"), [(114, []), (132, ["GPU-0"])])
def test_a_card_of_fewer_units_is_not_held_against_those_of_more(
    sms: int, unfit: list[str]
) -> None:
    """Makers sell both under one name."""
    rows = [{"uuid": f"GPU-{n}", "name": "H100", "sms": 132, "peak_flops": 8e14} for n in range(3)]
    rows[0] |= {"sms": sms, "peak_flops": 66e13}
    probe = Probe(torch="2", collect_env="x", devices=rows)
    (outcome, text), found = _judge_peak(make_order(profile="h100"), ("GPU-0",), probe)
    assert list(found) == unfit, text
    assert outcome is (CheckOutcome.FAIL if unfit else CheckOutcome.PASS)
