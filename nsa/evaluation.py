"""How good is the model on text it never trains on?"""

import torch

from nsa.data import Batches
from nsa.model.transformer import next_byte_loss
from nsa.rig import Rig


def held_out_loss(rig: Rig, batches: Batches, count: int) -> float:
    """Mean loss in nats per byte over `count` global validation batches, equal on every rank.

    Raises:
        NothingHeldOut: there is nothing to validate on.
    """
    total, parts = 0.0, 0
    first = batches.held_out(0)  # `NothingHeldOut`, if there is nothing
    rig.model.eval()
    with torch.no_grad(), rig.compute_dtype():
        for number in range(count):
            for inputs, targets in batches.held_out(number) if number else first:
                total += next_byte_loss(rig.model(inputs), targets).item()
                parts += 1
    rig.model.train()
    total, all_parts = rig.ranks.add_up([total, float(parts)])
    return total / all_parts
