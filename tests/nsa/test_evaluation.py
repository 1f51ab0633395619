"""A run reports the held-out loss of its weights on all of the held-out text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nsa.data import open_source


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_held_out_loss_is_the_mean_over_every_byte_of_all_its_batches(
    dtype: str, make_order: Callable[..., Path], helpers: Any
) -> None:
    train = {
        "steps": 2,
        "data": "local_text",
        "dtype": dtype,
        "batch": {"global_seqs": 4, "accumulate": 2},
        "eval": {"every_steps": 2, "batches": 3},
    }
    order = make_order(train=train)
    trainer = helpers.build_trainer(order)
    trainer.run()
    (told,) = (line for line in helpers.read_lines(order.parent) if line["msg"] == "eval")
    source = open_source("local_text", trainer.config.seed, 4)
    bytes_NS = np.stack([source.sequence("val", number, 64) for number in range(12)])
    tokens_NS = torch.from_numpy(bytes_NS.astype(np.int64))
    with torch.no_grad(), trainer.rig.compute_dtype():
        logits_NSV = trainer.rig.model(tokens_NS[:, :-1]).float()
    expected = F.cross_entropy(logits_NSV.transpose(1, 2), tokens_NS[:, 1:]).item()
    assert told["val_loss"] == pytest.approx(expected, rel=1e-6)
    assert trainer.rig.model.training
