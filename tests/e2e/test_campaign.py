"""A campaign with the real trainer: its variants differ, compute the same, and are compared."""

from __future__ import annotations

import pytest

from gonogo.contract.api import CampaignState, CampaignView
from tests.e2e.lab import Lab


@pytest.mark.long
def test_gradients_in_bf16_are_shown_by_the_hook_and_compute_the_same(lab: Lab) -> None:
    body = {"plan": "campaign-demo", "set": {"campaign.max_repeats": 3}}
    campaign = lab.client.post("/campaigns", body)["id"]

    def ended() -> CampaignView | None:
        found = CampaignView.model_validate(lab.client.get(f"/campaigns/{campaign}"))
        return None if found.state is CampaignState.RUNNING else found

    view = lab.wait(ended)
    assert view.comparison is not None
    assert view.done == 6, view.model_dump_json(indent=1)
    assert {str(row.verdict) for row in view.members} == {"GO"}
    whole, bf16 = view.comparison.variants
    assert (len(whole.runs), len(bf16.runs), view.comparison.left_out) == (3, 3, [])
    assert bf16.basis is not None, bf16.text  # what was shown and alike was compared
    assert [row.path for row in view.comparison.paths] == ["env.NSA_DDP_COMPRESS"]
