"""Are a layer's passes as CUDA graphs the same numbers, and is what cannot be captured refused?"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nsa.attention import counters
from nsa.cuda_graphs import check_capturable, own_gradients
from nsa.errors import BadConfig

ENGINE = {"fused_adamw": True, "compile": False, "keep_checkpoints": 0, "profile_steps": 0}
GRAPHS = {**ENGINE, "cuda_graphs": True}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_a_cpu_has_none_and_the_run_says_so(make_order: Callable[..., Path], helpers: Any) -> None:
    trainer = helpers.build_trainer(make_order(train={"engine": GRAPHS}))
    with pytest.raises(BadConfig, match=r"engine\.cuda_graphs needs a GPU"):
        trainer.run()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"backend": "torch"}, "not torch"),
        ({"backend": "reference"}, "not reference"),
        ({"parallel": "fsdp"}, "fsdp"),
        ({"parallel": "ddp"}, "ddp"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing"),
        ({"documents_apart": True}, "documents_apart"),
        ({}, None),
        ({"backend": "dense"}, None),
    ],
)
def test_what_cannot_be_captured_is_refused(change: dict[str, Any], word: str | None) -> None:
    asked = {"backend": "triton", "parallel": "single", "gradient_checkpointing": False,
             "documents_apart": False, **change}  # fmt: skip
    model: Any = SimpleNamespace(**asked)

    def check() -> None:
        check_capturable(model, torch.device("cuda"), asked["backend"], asked["parallel"])

    if word is None:
        check()
    else:
        with pytest.raises(BadConfig, match=rf"^engine\.cuda_graphs .*{word}"):
            check()


def test_gradients_that_stay_change_no_number(
    make_order: Callable[..., Path], helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a step of several parts each is added to zeros instead of making the first gradient."""
    from nsa.rig import Rig

    train = {"batch": {"global_seqs": 4, "accumulate": 2}}

    def losses(name: str, *, stay: bool) -> list[float]:
        trainer = helpers.build_trainer(make_order(name, train=train))
        monkeypatch.setattr(Rig, "gradients_stay", property(lambda _rig: stay))
        trainer.run()
        lines = helpers.read_lines(trainer.launch.run_dir)
        kept = [weight.grad is not None for weight in trainer.rig.model.parameters()]
        assert all(kept) if stay else not any(kept)
        return [line["loss"] for line in lines if line["msg"] == "progress"]

    assert losses("stay", stay=True) == losses("go", stay=False)


def test_every_weight_gets_a_gradient_of_its_own() -> None:
    net = torch.nn.Linear(3, 2)
    own_gradients(net)
    gradients = [x.grad for x in net.parameters() if x.grad is not None]
    assert [x.shape for x in gradients] == [(2, 3), (2,)]
    assert not any(x.any() for x in gradients)
    assert len({x.data_ptr() for x in gradients}) == 2


def test_only_a_part_s_own_shape_in_training_is_replayed(
    make_order: Callable[..., Path], helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture itself needs a GPU: here a replay is the layer, and counted."""
    replays: list[torch.Size] = []

    def counted(layer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        attention = layer.block.attention
        stats = attention.gate_stats

        def replay(x_BSE: torch.Tensor) -> torch.Tensor:
            replays.append(x_BSE.shape)
            told = counters._counts.copy()
            out = layer(x_BSE)
            stats.copy_(attention.gate_stats)  # as a graph writes to what it was captured with
            attention.gate_stats = None
            counters.clear()  # and runs no Python, which would count
            counters._counts.update(told)
            return out

        return replay

    def capture(layers: Any, samples: Any) -> Any:
        assert not torch.is_autocast_cache_enabled()
        with torch.autocast("cpu", dtype=torch.bfloat16):  # warm-up: what serves is known after it
            for layer, (sample,) in zip(layers, samples, strict=True):
                assert sample.requires_grad
                layer(sample)
        return tuple(map(counted, layers))

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    monkeypatch.setattr("nsa.rig.check_capturable", lambda *_asked: None)
    train = {"batch": {"global_seqs": 4, "accumulate": 2}, "dtype": "bf16", "steps": 6,
             "eval": {"every_steps": 3, "batches": 1}}  # fmt: skip
    told = []
    for name, engine in (("plain", ENGINE), ("graphs", GRAPHS)):
        lines, trainer = _run(helpers, make_order(name, train={**train, "engine": engine}))
        numbers = ("loss", "val_loss", "grad_norm", "gate_entropy", "gate_max")
        told.append([[line.get(number) for number in numbers] for line in lines
                     if line["msg"] in ("progress", "eval")])  # fmt: skip
        told[-1].append(counters.snapshot())
        assert bool(replays) == (name == "graphs")
    assert told[0] == told[1]
    model = trainer.rig.model
    assert set(replays) == {torch.Size((2, 64, 32))}
    assert len(replays) == len(model.layers()) * 2 * 5  # in the first step selection is looked at
    before = len(replays)
    model.train()
    model.keep_selection(False)
    model.layers()[0](torch.zeros(1, 64, 32), table=model.rotation)
    assert len(replays) == before


def _run(helpers: Any, order: Path) -> tuple[list[dict[str, Any]], Any]:
    trainer = helpers.build_trainer(order)
    trainer.run()
    return helpers.read_lines(order.parent), trainer


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", ["nsa", "dense"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_graphs_compute_what_kernels_compute(
    make_order: Callable[..., Path], helpers: Any, tiny: Any, kind: str, accumulate: int
) -> None:  # fmt: skip
    train = {
        "attention": {**tiny["attention"], "kind": kind, "backend": "triton"},
        "model": {**tiny["model"], "head_dim": 16},
        "batch": {"global_seqs": 4, "accumulate": accumulate},
        "eval": {"every_steps": 3, "batches": 1},
        "dtype": "bf16", "steps": 8,
    }  # fmt: skip
    told = []
    for name, engine in (("kernels", ENGINE), ("graphs", GRAPHS)):
        order = make_order(name, train={**train, "engine": engine}, profile="auto")
        lines, trainer = _run(helpers, order)
        numbers = ("loss", "grad_norm", "gate_entropy", "gate_max", "val_loss")
        told.append(
            [
                {number: line.get(number) for number in numbers}
                for line in lines
                if line["msg"] in ("progress", "eval")
            ]
        )
        forward = trainer.rig.model.layers()[0].forward
        assert ("_replaying" in forward.__qualname__) == (name == "graphs")
    assert told[0] == told[1]
    assert len({row["loss"] for row in told[0]}) > 4
