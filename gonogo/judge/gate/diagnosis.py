"""Which known failure is this? What halts, exit codes and the error of a run show, in one table.

`EVIDENCE` names failures by signs. A row holds alternatives. An alternative is a line of signs that
must all be present; `!` before a sign means that it must be absent. The first row with an
alternative that fits the signs of a run names the failure. The error of a run counts at `ERROR`:
the rows above it explain more than the error, the rows below it less. Cause and remedy of every
name are in `gonogo/judge/failures.yaml`.

| sign | present when |
|---|---|
| `code:C` | the run ended as C |
| `halt:D`, `section:S`, `step:N` | detector D halted the run, in section S (`none`), at step N |
| `hang:S` | `stall` or `section_deadline` halted the run in section S; `compute` is any of three |
| `stood:compute` | the rank that the halt names was computing |
| `mute`, `held:P` | the rank that the halt names wrote no line; its process stood in state P |
| `found:D` | detector D found something |
| `error:F` | the error of the run is the known failure F |
| `dtype:D`, `env:NAME=VALUE`, `nsa` | the ranks reported a format, a setting, groups of attention |
| `killed` | SIGKILL ended the first rank that failed |
| `one_rank`, `storm`, `compute_bound` | of the order, of the history, of the time of the steps |
"""

from collections.abc import Iterator

from gonogo.contract.canonical import added
from gonogo.contract.facts import Facts, FindingFacts
from gonogo.contract.heartbeat import COMPUTE_SECTIONS
from gonogo.contract.order import Rules
from gonogo.contract.outcome import Detector, OutcomeCode

HANGS = (Detector.STALL, Detector.SECTION_DEADLINE)
COMPUTE_SHARE = 0.9
"""Share of forward and backward in a step that waits for nothing else (R26)."""
ERROR = "(the error of the run)"
BY_ITSELF = frozenset({OutcomeCode.NONZERO_EXIT, OutcomeCode.OOM, OutcomeCode.DISK_FULL})
"""Ends that nobody asked for: the error explains them."""
_WAITED = frozenset({"disk_full", "lost_peer", "collective_timeout", "heartbeat_monitor"})
"""Errors that do not explain why a watched run was halted: they are survived, or of a victim."""

EVIDENCE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (Detector.RESTART_STORM, ("storm",)),
    ("wrong_config", ("code:config_mismatch",)),
    ("host_out_of_memory", ("code:oom killed",)),
    ("disk_full", ("halt:disk",)),
    ("fp16_overflow", ("code:non_finite dtype:fp16",)),
    ("non_finite_loss", ("code:non_finite",)),
    ("data_sharding", ("error:index_out_of_range !one_rank",)),
    ("process_stopped", ("held:stopped",)),
    (ERROR, ()),
    ("out_of_memory", ("code:oom",)),
    ("collective_desync", ("halt:stall section:none stood:compute",)),
    ("loader_stall", ("hang:data",)),
    ("killed", ("code:nonzero_exit killed",)),
    ("never_spoke", ("halt:no_first_heartbeat mute",)),
    (
        "aux_stats_hang",
        (
            "nsa step:1 hang:log !env:NSA_DISABLE_AUX_STATS=1",
            "nsa step:1 halt:section_deadline section:none !env:NSA_DISABLE_AUX_STATS=1",
        ),
    ),
    ("step_boundary_hang", ("nsa hang:log", "nsa halt:section_deadline section:none")),
    (
        "sequential_prefill",
        ("hang:compute env:NSA_PREFILL_BATCHED=0", "hang:eval env:NSA_PREFILL_BATCHED=0"),
    ),
    ("hang_in_compute", ("hang:compute",)),
    ("slow_loader", ("halt:loader",)),
    ("imbalance", ("code:completed found:imbalance", "code:too_slow found:imbalance")),
    ("attention_bound", ("code:too_slow compute_bound",)),
)


def diagnose(facts: Facts, rules: Rules) -> str | None:
    """Return the name of the first known failure that fits the facts, or None."""
    signs = frozenset(_signs(facts, rules))
    by_itself = facts.outcome is None or facts.outcome.code in BY_ITSELF
    for name, alternatives in EVIDENCE:
        if name == ERROR and facts.failure and (by_itself or facts.failure not in _WAITED):
            return facts.failure
        for line in alternatives:
            if all((word[0] != "!") == (word.lstrip("!") in signs) for word in line.split()):
                return name
    return None


def _signs(facts: Facts, rules: Rules) -> Iterator[str]:
    """Yield the signs of a run; see the table at the top of the module."""
    if facts.outcome is not None:
        yield f"code:{facts.outcome.code}"
    if facts.failure is not None:
        yield f"error:{facts.failure}"
    yield from (f"found:{row.detector}" for row in facts.findings)
    ended = facts.exit
    if ended is not None and (ended.signal == 9 or ended.code == 137):  # a shell reports 128 + 9
        yield "killed"
    for row in list(facts.identity.values())[:1]:
        yield f"dtype:{row.dtype}"
        yield from (f"env:{name}={value}" for name, value in (row.nsa_env or {}).items())
    if any(row.groups is not None for row in facts.identity.values()):
        yield "nsa"
    if rules.world_size == 1:
        yield "one_rank"
    if facts.history is not None and facts.history.restart_storm:
        yield "storm"
    if _is_compute_bound(facts):
        yield "compute_bound"
    halt = facts.latched()
    if halt is not None:
        yield from _signs_of_halt(halt, facts)


def _signs_of_halt(halt: FindingFacts, facts: Facts) -> Iterator[str]:
    yield from (f"halt:{halt.detector}", f"step:{halt.step}", f"held:{halt.held}")
    section = halt.section or "none"
    yield f"section:{section}"
    if halt.detector in HANGS:
        yield f"hang:{'compute' if section in COMPUTE_SECTIONS else section}"
    rank = facts.ranks.get(str(halt.rank))
    if rank is not None and rank.last_section in COMPUTE_SECTIONS:
        yield "stood:compute"
    if halt.rank is not None and (rank is None or rank.count == 0):
        yield "mute"


def _is_compute_bound(facts: Facts) -> bool:
    """Say whether forward and backward take nearly the whole step on each rank that says so."""
    shares = []
    for pace in facts.pace.values():
        total = added([value for value in pace.sections_s.values() if value])
        compute = sum(pace.sections_s.get(name) or 0.0 for name in ("forward", "backward"))
        shares.append(compute >= COMPUTE_SHARE * total)
    return bool(shares) and all(shares)
