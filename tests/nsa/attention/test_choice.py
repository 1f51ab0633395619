"""Which backend serves a call, and the reason where it is not the fastest."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from nsa.attention import BackendUnavailableError, backends
from nsa.attention.backends import choose_backend
from nsa.attention.kernels import Kernels


@pytest.fixture
def gpu_on_paper(monkeypatch):
    """A GPU that the kernels are proven on."""
    monkeypatch.setattr(backends, "_unproven", lambda *_: "")
    monkeypatch.setattr(backends, "_shared_bytes", lambda _device: 227 * 1024)
    monkeypatch.setattr(backends, "_triton_reason", lambda _device: None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def _empty(width=64, dtype=torch.bfloat16):
    return torch.empty(1, 4, 12, width, dtype=dtype, device="cuda:0")


@pytest.mark.usefixtures("gpu_on_paper")
def test_auto_is_triton_on_a_gpu_or_says_why_it_does_not_serve_the_call():
    assert choose_backend("auto", _empty(), 2, 64, Kernels()) == ("triton", "")
    wide = choose_backend("auto", _empty(300), 2, 64, Kernels())
    double = choose_backend("auto", _empty(dtype=torch.float64), 2, 64, Kernels())
    assert wide == ("torch", "its tiles end at D = 256, not 300")
    assert double.path == "torch"
    assert "float64" in double.reason


@pytest.mark.usefixtures("gpu_on_paper")
@pytest.mark.parametrize(
    ("kernels", "who"),
    [
        (Kernels(asked_by="NSA_SDPA_NO_FLASH"), "NSA_SDPA_NO_FLASH"),
        (Kernels(flash_attn=True, asked_by="NSA_USE_FA2"), "NSA_USE_FA2"),
        (Kernels(flash_attn=True), "the caller"),
    ],
    ids=["no flash", "flash-attn", "an argument"],
)
def test_who_chooses_foreign_kernels_gets_the_backend_that_calls_them(kernels, who):
    q = _empty()
    choice = choose_backend("auto", q, 2, 64, kernels)
    assert choice == ("torch", f"{who} chooses its kernels")
    assert who in choose_backend("torch", q, 2, 64, kernels).reason
    for backend in ("triton", "reference"):
        with pytest.raises(BackendUnavailableError, match=f"no foreign kernels, but {who}"):
            choose_backend(backend, q, 2, 64, kernels)
        assert choose_backend(backend, q, 2, 64, Kernels()).path == backend
    assert choose_backend("auto", torch.empty(1, 4, 12, 64), 2, 64, kernels).path == "torch"


@pytest.mark.usefixtures("gpu_on_paper")
def test_a_slow_choice_on_a_gpu_is_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(backends, "_unproven", lambda *_: "its kernels were wrong here")
    backends._announce.cache_clear()
    for _ in range(2):
        assert choose_backend("auto", _empty(), 2, 64).path == "torch"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "torch (its kernels were wrong here)" in record.getMessage()


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(backends, "c_compiler", lambda: None)
    backends._triton_reason.cache_clear()
    try:
        reason = backends._triton_reason(torch.device("cuda:7"))
    finally:
        backends._triton_reason.cache_clear()
    assert "C compiler" in reason or "not installed" in reason
