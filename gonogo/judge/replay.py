"""Does a recorded decision come out the same again? Two halves, and the watch between them.

(a) recorded facts and recorded rules → the same decision; (b) the run directory → the same facts,
and its watch folded again → the findings that were recorded. The first difference is named. Of a
human or condition decision only digests can be checked.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gonogo.contract.canonical import digest, wire_value
from gonogo.contract.decision import Decision, DecisionKind
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.finding import Finding
from gonogo.contract.outcome import OutcomeClass, OutcomeCode
from gonogo.contract.rundir import RunDir
from gonogo.judge.difference import Difference, first_difference
from gonogo.judge.facts import block_size, build_facts
from gonogo.judge.history import with_history
from gonogo.judge.record import RunRecord, load_findings, load_run
from gonogo.judge.verdict import judge
from gonogo.judge.watch import replay_watch
from gonogo.judge.watch.registry import REGISTRY

_BLOCK = re.compile(r"ranks\.(?P<rank>\d+)\.blocks\.(?P<block>\d+)")

_REPORTED = frozenset({OutcomeClass.INFRA, OutcomeClass.OPERATOR})
"""Ends that the control plane may have had to write down for a host that could not."""


_NEVER_IN_A_DIRECTORY = frozenset({OutcomeCode.WORKER_LOST, OutcomeCode.SUPERSEDED})
"""Ends of an attempt that was given up; its host may have written another one later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What replaying a decision came to."""

    equal: bool
    checked: tuple[str, ...]
    """What was compared: `hash`, `rules`, `facts`, `decision`, `run_directory`, `watch`."""
    path: str | None = None
    """Where the first difference is, such as `facts.ranks.0.digest`."""
    recorded: Any = None
    found: Any = None
    text: str = ""
    """One sentence."""


def replay_decision(
    decision: Decision, run_dir: Path | None, *, facts_only: bool = False
) -> ReplayResult:
    """Return whether a decision replays.

    Args:
        decision: as recorded.
        run_dir: the directory of its run; needed for an automatic decision about a run.
        facts_only: start from the recorded facts and leave the run directory alone.

    Raises:
        NotFound: the run directory is not there, though the facts rest on its lines.
        Corrupt: a record in the run directory cannot be read.
        Rejected: the rules are of a later version than this code.
    """
    checked: list[str] = []
    for name, recorded, found in _seals(decision):
        checked.append(name.removesuffix("_digest"))
        if recorded != found:
            return _differs(checked, Difference(path=name, recorded=recorded, found=found))
    if decision.kind is not DecisionKind.AUTO:
        return _same(checked, f"a {decision.kind} decision: digests are whole")
    checked.append("decision")
    difference = _judged_again(decision)
    if difference is None and not facts_only:
        difference = _read_again(decision, run_dir, checked)
    if difference is not None:
        return _differs(checked, difference)
    return _same(checked, f"{decision.verdict}: the same")


def check_chain(decisions: Sequence[Decision]) -> ReplayResult:
    """Return whether the decisions of one experiment, in order, form one unbroken chain."""
    previous: str | None = None
    for number, decision in enumerate(decisions, start=1):
        for name, recorded, found in (
            ("hash", decision.hash, decision.content_hash()),
            ("prev_hash", decision.prev_hash, previous),
            ("seq", decision.seq, number),
        ):
            if recorded != found:
                where = f"decisions.{number}.{name}"
                difference = Difference(path=where, recorded=recorded, found=found)
                return _differs(["chain"], difference)
        previous = decision.hash
    return _same(["chain"], f"{len(decisions)} decisions in one chain")


def _seals(decision: Decision) -> list[tuple[str, str, str]]:
    return [
        ("rule_digest", decision.rule_digest, digest(decision.rules)),
        ("facts_digest", decision.facts_digest, digest(decision.facts)),
        ("hash", decision.hash, decision.content_hash()),
    ]


def _judged_again(decision: Decision) -> Difference | None:
    """Half (a)."""
    again = judge(decision.facts, decision.rules)
    recorded = decision.model_dump(
        mode="json", include={"verdict", "criteria", "conditions", "diagnosis"}
    )
    found = wire_value(
        {
            "verdict": again.verdict,
            "criteria": [row.model_dump(mode="json") for row in again.criteria],
            "conditions": [row.model_dump(mode="json") for row in again.conditions],
            "diagnosis": again.diagnosis,
        }
    )
    return first_difference(wire_value(recorded), found)


def _read_again(decision: Decision, run_dir: Path | None, checked: list[str]) -> Difference | None:
    """Half (b): the directory's facts, then its watch."""
    if run_dir is None or not run_dir.is_dir():
        if not decision.facts.get("ranks"):
            return None  # the run never got so far as to leave a directory
        where = decision.run if run_dir is None else run_dir
        raise NotFound(f"{where}: no run directory; --facts-only replays without it")
    checked.append("run_directory")
    record = load_run(run_dir)
    found = with_history(build_facts(record, decision.rules), decision.facts.get("history", {}))
    difference = first_difference(*_as_reported(decision.facts, found, record))
    if difference is not None:
        return replace(
            difference, path=f"facts.{difference.path}", where=_place(difference.path, record)
        )
    if record.predecessor or not RunDir(run_dir).watch.exists():
        return None
    checked.append("watch")
    return _watched_again(run_dir, torn=_was_torn(decision.facts))


def _as_reported(
    recorded: Mapping[str, Any], found: Mapping[str, Any], record: RunRecord
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Leave the end out where only the control plane could write it down (a lost host)."""
    outcome = recorded.get("outcome")
    if outcome is None or outcome["class"] not in _REPORTED:
        return recorded, found
    if record.exit is not None and outcome["code"] not in _NEVER_IN_A_DIRECTORY:
        return recorded, found
    names = ("outcome", "exit", "rank_exits")
    return tuple({k: v for k, v in row.items() if k not in names} for row in (recorded, found))  # type: ignore[return-value]  # two in, two out


def _place(path: str, record: RunRecord) -> str:
    """Return which lines a differing block digest covers, in words."""
    found = _BLOCK.fullmatch(path)
    if found is None or int(found["rank"]) not in record.streams:
        return ""
    beats = record.streams[int(found["rank"])].beats
    size = block_size(len(beats))
    block = beats[int(found["block"]) * size :][:size]
    if not block:
        return ""
    steps = sorted({beat.step for beat in block})
    return (
        f" (heartbeat_rank{found['rank']}.jsonl, seq {block[0].seq} to {block[-1].seq},"
        f" steps {steps[0]} to {steps[-1]})"
    )


def _was_torn(facts: Mapping[str, Any]) -> bool:
    """Say whether the watcher may have died between a tick and writing down what it found."""
    outcome = facts.get("outcome")
    return outcome is not None and outcome["class"] == OutcomeClass.INFRA


def _watched_again(run_dir: Path, *, torn: bool) -> Difference | None:
    """Fold watch.jsonl again and compare with findings.jsonl, key by key.

    Where the watcher died with its run (`torn`), the fold may find more than was written down.
    """
    folded = {row.detector for row in REGISTRY}
    recorded = [row for row in load_findings(RunDir(run_dir)) or [] if row.detector in folded]
    left = _by_key(recorded)
    right = _by_key(replay_watch(run_dir))
    if torn:
        right = {key: row for key, row in right.items() if key in left}
    difference = first_difference(left, right)
    if difference is None:
        return None
    return replace(difference, path=f"findings.{difference.path}")


def _by_key(findings: Iterable[Finding]) -> dict[str, Any]:
    names = {"detector", "severity", "rank", "section", "step"}
    return {row.key: row.model_dump(mode="json", include=names) for row in findings}


def _differs(checked: Sequence[str], difference: Difference) -> ReplayResult:
    return ReplayResult(
        equal=False,
        checked=tuple(checked),
        path=difference.path,
        recorded=difference.recorded,
        found=difference.found,
        text=f"{difference.path}{difference.where}: recorded {difference.recorded!r},"
        f" found {difference.found!r}",
    )


def _same(checked: Sequence[str], text: str) -> ReplayResult:
    return ReplayResult(equal=True, checked=tuple(checked), text=text)


def load_decision(path: Path) -> Decision:
    """Return the decision in a self-contained file.

    Raises:
        NotFound: no such file.
        Corrupt: it is not a decision.
    """
    try:
        return Decision.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such decision") from error
    except ValueError as error:
        raise Corrupt(f"{path}: not a decision") from error


def run_dir_of(decision: Decision, path: Path) -> Path | None:
    """Return where the run directory of a decision file lies: `../runs/{run}` of its folder."""
    if decision.run is None:
        return None
    return path.resolve().parent.parent / "runs" / decision.run
