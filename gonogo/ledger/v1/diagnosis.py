"""Which known failure did release 0.1 see? The first row that recognises the facts."""

from collections.abc import Callable
from typing import Any

from gonogo.contract.canonical import added
from gonogo.ledger.v1.rules import Json


def _latched(facts: Json) -> Json | None:
    return next((row for row in facts["findings"] if row["severity"] == "halt"), None)


def _nsa_env(facts: Json) -> dict[str, Any]:
    for said in facts["identity"].values():
        return dict(said.get("nsa_env") or {})
    return {}


def _dtype(facts: Json) -> str | None:
    return next((said.get("dtype") for said in facts["identity"].values()), None)


def _code(facts: Json) -> str | None:
    return None if facts["outcome"] is None else facts["outcome"]["code"]


def _hang(facts: Json, *sections: str | None) -> bool:
    found = _latched(facts)
    hang = ("stall", "section_deadline")
    return found is not None and found["detector"] in hang and found["section"] in sections


def _in_compute(facts: Json) -> bool:
    return _hang(facts, "forward", "backward", "optimizer")


def _at_boundary(facts: Json) -> bool:
    return facts["source"] != "predecessor" and _hang(facts, None, "log")


def _at_first_boundary(facts: Json) -> bool:
    found = _latched(facts)
    step = None if found is None else found["step"]
    on = _nsa_env(facts).get("NSA_DISABLE_AUX_STATS") != "1"
    return _at_boundary(facts) and step == 1 and on


def _slow_in_attention(facts: Json) -> bool:
    if _code(facts) != "too_slow":
        return False
    for pace in facts["pace"].values():
        sections = pace["sections_s"]
        known = [value for value in sections.values() if value]
        compute = (sections.get("forward") or 0) + (sections.get("backward") or 0)
        if known and compute < 0.9 * added(known):
            return False
    return bool(facts["pace"])


_DIAGNOSES: dict[str, Callable[[Json], bool]] = {
    "wrong_config": lambda facts: _code(facts) == "config_mismatch",
    "ddp_marked_ready_twice": lambda facts: "marked_ready_twice" in facts["signs"],
    "out_of_memory": lambda facts: _code(facts) == "oom" or "out_of_memory" in facts["signs"],
    "fp16_overflow": lambda facts: _code(facts) == "non_finite" and _dtype(facts) == "fp16",
    "non_finite_loss": lambda facts: _code(facts) == "non_finite",
    "loader_stall": lambda facts: _hang(facts, "data") or "loader_error" in facts["signs"],
    "data_sharding": lambda facts: "index_error" in facts["signs"],
    "aux_stats_hang": _at_first_boundary,
    "step_boundary_hang": _at_boundary,
    "sequential_prefill": lambda facts: (
        _in_compute(facts) and _nsa_env(facts).get("NSA_PREFILL_BATCHED") == "0"
    ),
    "hang_in_compute": _in_compute,
    "attention_bound": _slow_in_attention,
}


def diagnose(facts: Json) -> str | None:
    """Return the name of the first known failure that the facts show, or None."""
    return next((name for name, shows in _DIAGNOSES.items() if shows(facts)), None)
