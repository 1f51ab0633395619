"""Detectors of steps, each fed with numbers by chance that meet its limits exactly, now and then.

The numbers come from a few coarse values, and the settings are small. So limits are reached to the
last bit, windows fill, and a run of some hundred steps shows every condition. What a detector
raised and how near it was to its limit is recorded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from gonogo.contract.finding import Severity
from gonogo.watch.detector import Detector
from gonogo.watch.detectors import loss, memory, speed
from tests.scenarios.scenario import Outcome, Scenario, outcome_of_watch, rounded
from tests.watch.steps import Fed, Ran, feed
from tests.watch.streams import IDENTITY, T0, order_of

SEEDS = 12
STEPS = 160
LOOK_EVERY = 4
KINDS: tuple[type[Detector[Any]], ...] = (
    loss.NonFinite,
    loss.Divergence,
    loss.Frozen,
    loss.Gradients,
    loss.GateCollapse,
    loss.FirstLoss,
    memory.MemoryLeak,
    speed.Straggler,
    speed.Loader,
    speed.ImplausibleSpeed,
)
NAN, INF = float("nan"), float("inf")
MOODS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "loss": ((2.0,), (2.0, 2.25), (3.0, 3.25, 3.5), (2.5, 2.75, 4.0), (0.0,), (2.0, None, NAN)),
    "grad_norm": ((1.0,), (1.0, 1.25), (0.0,), (1.0, 4.0), (4.0, 2.0), (0.5, None, INF, -1.0)),
    "skipped": ((None,), (False,), (False,), (False, True), (True,)),
    "loss_scale": ((None,), (64.0,), (64.0, 32.0)),
    "gate_collapse_frac": ((None,), (0.5, 0.75), (1.0,), (0.25, 1.0), (0.0, 0.5, NAN)),
    "gate_entropy": ((None,), (0.25, 0.125), (0.5,), (NAN,)),
    "gate_max": ((None,), (0.75, 0.875), (0.5, 1.0)),
    "toks_per_s": ((None,), (2048.0,), (4096.0, 2048.0), (2048.0, None)),
    "dt_fetch_s": ((None,), (0.0,), (0.25, 0.5), (0.5, 1.0), (1.0, 0.25)),
    "gpu_mem_reserved": ((None,), (256.0,), (128.0, 256.0)),
}
"""Field of a progress line → moods of a run; a mood is what its steps report by turns."""
TIMES: tuple[tuple[float | None, ...], ...] = ((1.0,), (1.0, 2.0), (2.0,), (0.5, 1.0), (1.0, None))
SHARES: tuple[tuple[float, ...], ...] = ((0.5,), (0.5,), (0.5, 0.75), (0.75,), (1.0,))
"""Shares of a step that a rank computes; the rest it waits for its peers."""
COLUMNS = tuple(MOODS)


def scenarios() -> Iterator[Scenario]:
    """Yield each detector with several runs of steps."""
    for kind in KINDS:
        for seed in range(SEEDS):
            yield Scenario(f"measured/{kind.name}/{seed}", partial(_fed, kind, seed))


def _fed(kind: type[Detector[Any]], seed: int) -> Outcome:
    """Return what a detector makes of a run.

    `raised` has a letter a step: what that step raised, even if it was raised before.
    """
    raised, distances = list[str](), list[Any]()

    def look(fed: Fed) -> None:
        worst = {row.severity for row in fed.findings}
        raised.append("h" if Severity.HALT in worst else "w" if worst else ".")
        if len(raised) % LOOK_EVERY == 0:
            near = fed.detector.near(fed.own, fed.view, T0)
            distances.append([near.value, near.limit, fed.armed, fed.missing is not None])

    fed = feed(kind, _ran(random.Random(f"{kind.name}/{seed}")), after=look)
    outcome = outcome_of_watch(fed.findings, {})
    return {**outcome, "raised": "".join(raised), "distances": rounded(distances)}


def _watch(dice: random.Random) -> dict[str, Any]:
    """Return small settings."""
    one = dice.choice
    return {
        "slow": {"warmup_steps": one((2, 4))},
        "non_finite": {"fp16_running": 3, "fp16_window_steps": 12, "fp16_skipped": one((3, 5))},
        "divergence": {
            "alpha": one((0.25, 0.5)), "above": 0.25, "above_ratio": 0.125,
            "over_steps": one((3, 4)), "after_step": one((6, 12)), "spike_mad_x": 1.0,
            "spike_least": 0.5, "spike_of": 4, "spike_count": 2, "window_steps": 16,
        },
        "frozen": {"loss_steps": 3, "grad_norm_steps": one((3, 4)), "halt_x": one((1.0, 2.0))},
        "gradients": {
            "zero_steps": one((2, 3)), "spike_x": 2.0, "spike_of": 4, "spike_count": 2,
            "window_steps": 16, "clip_share": 0.5, "clip_steps": one((4, 8)),
        },
        "gate_collapse": {
            "entropy": 0.25, "max_gate": 0.75, "layer_share": 0.5, "distinct": one((2, 3)),
            "apart_steps": one((0, 2, 4)), "after_step": one((4, 8)),
        },
        "memory_leak": {
            "min_samples": 8, "window_samples": one((16, 32)), "rise_ratio": 0.0625,
            "halt_eta_s": one((30.0, 200.0)), "limit_mb": one((None, 400.0)),
        },
        "memory_limit": {"reserved_mb": one((None, 512.0))},
        "straggler": {"ratio": 1.5, "window_steps": 4, "windows": one((1, 2))},
        "loader": {
            "window_steps": one((8, 20)), "warn_share": 0.25, "halt_share": 0.5,
            "over_s": one((8.0, 16.0)),
        },
        "implausible_speed": {
            "differ_ratio": 0.25, "over_steps": 4, "mfu": one((0.5, 1.0)),
        },
    }  # fmt: skip


def _ran(dice: random.Random) -> Ran:
    """Return a run whose mood changes every few steps."""
    one = dice.choice
    dtype, layers, vocab = one(("fp32", "fp16", "bf16", None)), one((2, 4, None)), one((8, 256))
    identity = IDENTITY.model_copy(update={"dtype": dtype, "layers": layers, "vocab": vocab})
    order = order_of(
        _watch(dice),
        steps=one((120, 400)),
        world_size=one((1, 2, 2, 3, 4)),
        identity=identity,
        resume_step=one((None, None, None, 3)),
        train={"optim": {"clip": one((None, 0, 1.0, 2.0))}},
    )
    one((None, 2.0, 4.0))  # a draw that stays, so that those after it do
    ran, ranks = Ran(order, peak_flops=one((None, 1e9, 3e9)), peak_of="cpu"), order.world_size
    own_shares: list[tuple[float, ...]] = [SHARES[0]] * 4
    mood, times, uneven, slope_mb = dict[str, Any](), one(TIMES), False, 0.0
    for number in range(STEPS):
        if number % 8 == 0 and dice.random() < 0.7:
            mood = {name: one(MOODS[name]) for name in dice.sample(COLUMNS, 8)}
            times, uneven, slope_mb = one(TIMES), dice.random() < 0.5, one((0.0, 0.5, 2.0))
            own_shares = [one(SHARES) for _ in range(4)]
        if number > 20 and dice.random() < 0.01:
            ran.back_to(ran.number - one((1, 4, 8)), boot=f"boot{number}")
        told = {name: one(values) for name, values in mood.items()}
        rows = [dict[str, Any](host_rss_mb=100.0 + slope_mb * number) for _ in range(ranks)]
        for row in rows if uneven else ():
            name = one(COLUMNS)
            row[name] = one(one(MOODS[name]))
        took = [one(times) if uneven else times[number % len(times)]] * ranks
        waits = [(took[0] or 1.0) * (1.0 - one(shares)) for shares in own_shares[:ranks]]
        ran.step(
            dt_s=took,
            sections=[
                {"data": 0.25, "forward": 0.25, "backward": 0.25, "wait": wait_s}
                for wait_s in waits
            ],
            tokens=2048,
            between_s=one((0.0, 0.25)),
            silent=(0,) if dice.random() < 0.03 else (),
            each=rows,
            **told,
        )
    return ran
