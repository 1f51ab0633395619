import os

import pytest

from nsa.errors import BadConfig
from nsa.settings import TOGGLES, load_settings, set_unless_set


def test_without_torchrun_this_is_rank_0_of_1():
    settings = load_settings({})
    assert (settings.rank, settings.world_size, settings.under_torchrun) == (0, 1, False)
    assert settings.nsa_env == {}


@pytest.mark.parametrize(
    "variable",
    [
        "NSA_TB_DISABEL=1", "NSA_TB_DISABLE=yes", "NSA_PREFILL_BATCHED=2", "NSA_ACCUM=2.5",
        "NSA_LR=-1", "NSA_LR=inf", "NSA_LR=0", "NSA_ACCUM=0", "NSA_DDP_BUCKET_MB=-1",
        "NSA_SCALER_INIT_SCALE=big", "NSA_SCALER_INIT_SCALE=0", "NSA_SCALER_GROWTH_INTERVAL=0",
        "NSA_SCALER_GROWTH_FACTOR=1", "NSA_SCALER_BACKOFF_FACTOR=0",
        "NSA_SCALER_BACKOFF_FACTOR=1.5", "NSA_SCALER_BACKOFF_FACTOR=nan", "RANK=first",
    ],
)  # fmt: skip
def test_a_variable_that_cannot_be_honoured_is_an_error(variable):
    with pytest.raises(BadConfig):
        load_settings(dict([variable.split("=")]))


@pytest.mark.parametrize(
    ("one", "other"),
    [("NSA_SDPA_NO_FLASH", "NSA_SDPA_FLASH_ONLY"), ("NSA_DDP_STATIC_GRAPH", "NSA_DDP_FIND_UNUSED")],
)
def test_toggles_that_take_each_other_back_are_an_error(one, other):
    assert load_settings({one: "1", other: "0"}).on(one)
    with pytest.raises(BadConfig, match=f"{one}=1 and {other}=1 exclude each other"):
        load_settings({one: "1", other: "1"})


def test_only_variables_that_are_set_are_reported():
    settings = load_settings({"NSA_TB_DISABLE": "1", "HOME": "/", "NCCL_ALGO": "Ring"})
    assert settings.nsa_env == {"NSA_TB_DISABLE": "1"}
    assert settings.recorded_env == {"NCCL_ALGO": "Ring"}
    assert settings.on("NSA_TB_DISABLE")
    assert not settings.on("NSA_DISABLE_CSV_LOGS")


def test_every_default_is_a_value_its_own_row_allows():
    for toggle in TOGGLES.values():
        if toggle.default and toggle.allowed:
            given = load_settings({toggle.name: toggle.default})
            assert given.value(toggle.name) == toggle.default


def test_what_is_set_already_is_not_changed(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    assert set_unless_set({"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}) == {"NCCL_PROTO": "Simple"}
    assert (os.environ["NCCL_ALGO"], os.environ.pop("NCCL_PROTO")) == ("Tree", "Simple")
