"""Every bundled campaign with the real trainer, in small: its runs count, and are compared."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.api import CampaignState, CampaignView
from gonogo.contract.campaign import Result
from gonogo.planning.source import bundled_campaign_names
from tests.e2e.lab import Lab

SMALL = {
    "profile": "cpu",
    "train.config": "demo",
    "train.dtype": "fp32",
    "train.model": {"layers": 1, "seq_len": 64},
    "train.params": 908_056,
    "phases.compared.steps": 12,
    "campaign.warmup_steps": 3,
    "campaign.max_repeats": 3,
}
"""The bundled campaigns on two processors: the demo's model with one layer, few steps."""
OWN: dict[str, dict[str, Any]] = {
    "campaign-demo": {"campaign.max_repeats": 3},
    "campaign-sequence": {
        "campaign.variants.s2048.train.model.seq_len": 128,
        "campaign.variants.s1024.train.model.seq_len": 64,
    },
}
PATHS = {
    "campaign-adamw": {"train.engine.fused_adamw"},
    "campaign-buckets": {"env.NSA_DDP_BUCKET_MB"},
    "campaign-compress": {"env.NSA_DDP_COMPRESS"},
    "campaign-demo": {"env.NSA_DDP_COMPRESS"},
    "campaign-isolation": {"env.NSA_DDP_COMPRESS", "env.NSA_DDP_STATIC_GRAPH", "train.parallel"},
    "campaign-prefill": {"env.NSA_PREFILL_BATCHED"},
    "campaign-ranges": {"env.NSA_SEL_RANGES_V2"},
    "campaign-scaling": {"train.batch.global_seqs", "world_size"},
    "campaign-sdpa": {"env.NSA_SDPA_NO_FLASH"},
    "campaign-sequence": {"train.batch.global_seqs", "train.model.seq_len"},
}
"""What really differs between the variants, by the processes' own word."""


@pytest.mark.long
@pytest.mark.parametrize("name", bundled_campaign_names())
def test_a_bundled_campaign_runs_in_small_and_compares_what_it_says(lab: Lab, name: str) -> None:
    sets = OWN[name] if name == "campaign-demo" else SMALL | OWN.get(name, {})
    campaign = lab.client.post("/campaigns", {"plan": name, "set": sets})["id"]

    def ended() -> CampaignView | None:
        found = CampaignView.model_validate(lab.client.get(f"/campaigns/{campaign}"))
        return None if found.state is CampaignState.RUNNING else found

    view = lab.wait(ended, limit_s=1200)
    assert view.comparison is not None
    baseline, *others = view.comparison.variants
    assert view.done == 3 * (1 + len(others)), view.model_dump_json(indent=1)
    assert {str(row.verdict) for row in view.members} == {"GO"}
    assert view.comparison.left_out == []
    assert {len(row.runs) for row in (baseline, *others)} == {3}
    assert {row.path for row in view.comparison.paths} >= PATHS[name]
    if name == "campaign-sdpa":  # no flash kernel serves a CPU, and the audit says so
        assert view.comparison.result is Result.INCONCLUSIVE
        assert all("flash_share is 0" in row.text for row in others)
        return
    # What was asked to be shown was, and they computed the same: it is compared.
    assert all(row.basis is not None for row in others), [row.text for row in others]
