"""How good is the model on text it never trains on?"""

import torch

from nsa.data import Batches
from nsa.model.transformer import next_byte_loss
from nsa.rig import Rig


def held_out_loss(rig: Rig, batches: Batches, count: int) -> float:
    """Mean loss in nats per byte over `count` global validation batches, equal on every rank."""
    total, parts = 0.0, 0
    rig.model.eval()
    with torch.no_grad(), rig.compute_dtype():
        for number in range(count):
            for inputs, targets in batches.held_out(number):
                total += next_byte_loss(rig.model(inputs), targets).item()
                parts += 1
    rig.model.train()
    total, all_parts = rig.ranks.add_up([total, float(parts)])
    return total / all_parts
