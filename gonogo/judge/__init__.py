"""The judgement, pure: what was found, what is decided, and why.

Floors, each of which knows those below it: `watch` folds heartbeats and observations into
findings; `evidence` is all that a run left behind, and the facts that a gate may look at; `gate` is
the rules, and the verdict of facts under rules; `course` says what happens next; `ledger` seals
what was decided and comes to the same digests again. No network, no database, no clock: `now` is an
argument. `compare`, beside the gate, says which of several variants is better, and `comparing`
reads its runs. `directory` judges a run directory for a command, and alone reads the wall clock;
`catalogue` writes docs/detectors.md.

What others may rely on stands here::

    from gonogo.judge import build_facts, build_rules, judge, load_run

    record = load_run(path)
    judgement = judge(build_facts(record, rules := build_rules(record.order)), rules)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gonogo.judge.course.decide import decide
    from gonogo.judge.facts.facts import build_facts
    from gonogo.judge.facts.record import RunRecord, load_run
    from gonogo.judge.gate.rules import build_rules
    from gonogo.judge.gate.verdict import Judgement, judge
    from gonogo.ledger.chain import check_chain
    from gonogo.ledger.recorded import RecordedDecision, load_decision
    from gonogo.ledger.replay import replay_decision
    from gonogo.watch import fold, refold, start
    from gonogo.watch.detector import Detector

_HOMES = {
    "Detector": "gonogo.watch.detector",
    "Judgement": "gonogo.judge.gate.verdict",
    "RecordedDecision": "gonogo.ledger.recorded",
    "RunRecord": "gonogo.judge.facts.record",
    "build_facts": "gonogo.judge.facts.facts",
    "build_rules": "gonogo.judge.gate.rules",
    "check_chain": "gonogo.ledger.chain",
    "decide": "gonogo.judge.course.decide",
    "fold": "gonogo.watch",
    "judge": "gonogo.judge.gate.verdict",
    "load_decision": "gonogo.ledger.recorded",
    "load_run": "gonogo.judge.facts.record",
    "refold": "gonogo.watch",
    "replay_decision": "gonogo.ledger.replay",
    "start": "gonogo.watch",
}
"""Name → its module, imported when it is asked for: a watcher needs one floor only."""

__all__ = [
    "Detector",
    "Judgement",
    "RecordedDecision",
    "RunRecord",
    "build_facts",
    "build_rules",
    "check_chain",
    "decide",
    "fold",
    "judge",
    "load_decision",
    "load_run",
    "refold",
    "replay_decision",
    "start",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
