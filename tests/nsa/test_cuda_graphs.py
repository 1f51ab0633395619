"""Are a layer's passes as CUDA graphs the same numbers, and is what cannot be captured refused?"""

from types import SimpleNamespace

import pytest
import torch

from nsa.attention import counters
from nsa.errors import BadConfig
from nsa.rank_setup import RankSetup, check_capturable, own_gradients
from tests.nsa.runs import ENGINE, build_trainer, losses, of, read_lines

PLAIN = ENGINE | {"fused_adamw": True}
GRAPHS = PLAIN | {"cuda_graphs": True}
NUMBERS = ("loss", "val_loss", "grad_norm", "gate_entropy", "gate_max")


def _told(trainer):
    lines = read_lines(trainer.launch.run_dir)
    rows = [line for line in lines if line["msg"] in ("progress", "eval")]
    return [[line.get(number) for number in NUMBERS] for line in rows]


def test_a_cpu_has_none_and_the_run_says_so(train_here):
    with pytest.raises(BadConfig, match=r"engine\.cuda_graphs needs a GPU"):
        train_here(train={"engine": GRAPHS})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"backend": "torch"}, "not torch"), ({"parallel": "ddp"}, "ddp"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing"),
        ({"documents_apart": True}, "documents_apart"), ({}, None), ({"backend": "dense"}, None),
    ],
)  # fmt: skip
def test_what_cannot_be_captured_is_refused(change, word):
    asked = {"backend": "triton", "parallel": "single", "gradient_checkpointing": False,
             "documents_apart": False, **change}  # fmt: skip
    given = (SimpleNamespace(**asked), torch.device("cuda"), asked["backend"], asked["parallel"])
    if word is None:
        check_capturable(*given)
        return
    with pytest.raises(BadConfig, match=rf"^engine\.cuda_graphs .*{word}"):
        check_capturable(*given)


def test_gradients_that_stay_change_no_number(make_order, monkeypatch):
    """In a step of several parts each is added to zeros instead of making the first gradient."""
    net = torch.nn.Linear(3, 2)
    own_gradients(net)
    assert len({weight.grad.data_ptr() for weight in net.parameters()}) == 2
    found = []
    for stay in (True, False):
        trainer = build_trainer(make_order(f"stay{stay}", train={"batch": {"accumulate": 2}}))
        monkeypatch.setattr(RankSetup, "gradients_stay", property(lambda _setup, stay=stay: stay))
        trainer.run()
        found.append(losses(read_lines(trainer.launch.run_dir)))
        kept = {weight.grad is not None for weight in trainer.setup.model.parameters()}
        assert kept == {stay}
    assert found[0] == found[1]


def test_only_a_part_s_own_shape_in_training_is_replayed(make_order, monkeypatch):
    """The capture itself needs a GPU: here a replay is the layer, and counted."""
    replays = []

    def counted(layer):
        attention = layer.block.attention
        stats = attention.gate_stats

        def replay(x_BSE):
            replays.append(x_BSE.shape)
            told = counters._counts.copy()
            out = layer(x_BSE)
            stats.copy_(attention.gate_stats)  # as a graph writes to what it was captured with
            attention.gate_stats = None
            counters.clear()  # and runs no Python, which would count
            counters._counts.update(told)
            return out

        return replay

    def capture(layers, samples):
        assert not torch.is_autocast_cache_enabled()
        with torch.autocast("cpu", dtype=torch.bfloat16):  # warm-up: what serves is known after it
            for layer, (sample,) in zip(layers, samples, strict=True):
                assert sample.requires_grad
                layer(sample)
        return tuple(map(counted, layers))

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    monkeypatch.setattr("nsa.rank_setup.check_capturable", lambda *_asked: None)
    train = {"batch": {"accumulate": 2}, "dtype": "bf16", "eval": {"every_steps": 2, "batches": 1}}
    told = []
    for name, engine in (("plain", PLAIN), ("graphs", GRAPHS)):
        trainer = build_trainer(make_order(name, train={**train, "engine": engine}))
        trainer.run()
        told.append((_told(trainer), counters.snapshot()))
        assert bool(replays) == (name == "graphs")
    assert told[0] == told[1]
    model = trainer.setup.model
    assert set(replays) == {torch.Size((2, 64, 32))}
    assert len(replays) == len(model.layers()) * 2 * 3  # in the first step selection is looked at
    model.train()
    model.layers()[0](torch.zeros(1, 64, 32), table=model.rotation)
    assert len(replays) == len(model.layers()) * 2 * 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["nsa", "dense"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_graphs_compute_what_kernels_compute(make_order, kind, accumulate):
    train = {
        "attention": {"kind": kind, "backend": "triton"}, "model": {"head_dim": 16},
        "batch": {"accumulate": accumulate}, "eval": {"every_steps": 3, "batches": 1},
        "dtype": "bf16", "steps": 8,
    }  # fmt: skip
    told = []
    for name, engine in (("kernels", PLAIN), ("graphs", GRAPHS)):
        order = make_order(name, train={**train, "engine": engine}, profile="auto")
        trainer = build_trainer(order)
        trainer.run()
        told.append(_told(trainer))
        forward = trainer.setup.model.layers()[0].forward
        assert ("_replaying" in forward.__qualname__) == (name == "graphs")
    assert told[0] == told[1]
    assert len(set(losses(of(read_lines(order.parent), "progress")))) > 4
