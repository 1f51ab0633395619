"""D26: the first loss is near ln(vocab)."""

import pytest

from gonogo.contract.finding import Severity
from gonogo.watch import armed
from tests.watch.streams import IDENTITY, World, order_of, watch


@pytest.mark.parametrize(
    ("loss", "vocab", "resume_step", "warns"),
    [
        (5.545, 256, None, False),
        (6.5, 256, None, False),
        (6.6, 256, None, True),
        (4.5, 256, None, True),
        (1.0, 1, None, False),
        (1.0 + 1e-9, 1, None, True),
        (9.0, None, None, False),
        (9.0, 256, 20, False),
        ("NaN", 256, None, False),
    ],
)
def test_the_first_loss_warns_where_it_is_not_that_of_an_untrained_model(
    loss: float | str, vocab: int | None, resume_step: int | None, warns: bool
) -> None:
    identity = IDENTITY.model_copy(update={"vocab": vocab})
    order = order_of(identity=identity, resume_step=resume_step)
    seen = watch(World(order, loss=lambda step: loss).boot().steps(3))
    found = [row for row in seen.findings if row.detector == "first_loss"]
    assert [(row.severity, row.step) for row in found] == ([(Severity.WARN, 1)] if warns else [])
    assert not armed(seen.state)["first_loss"]
