"""How is a doubt put into words? One row a kind: its sentence and what to do.

Nothing decides by these texts. docs/doubts.md is made from them.
"""

from typing import NamedTuple

from gonogo.contract.finding import Doubt, DoubtKind

Kind = DoubtKind
MOST_LISTED = 4


class Words(NamedTuple):
    """The texts of one kind of doubt."""

    sentence: str
    """With the doubt's fields in braces."""
    advice: str


_START = "Start the run with `gonogo run` or a plan, so that every record is written."
_COPY = "Judge the directory where the run wrote it, or copy it again with all of its files."
_ONE_WRITER = "Start one process for each rank, with its own `RANK`."
_EDITED = "Restore the original file; if nobody edited it, run again."
_ADVICE_PLUGIN = "Install the package that the order names, or correct its error."
_OWN_LIMITS = "Leave the setting, or the detector, as it is by default, if nothing asks for less."
_ALL_DECISIONS = "Verify the home, or copy all decisions of the experiment."
_OPTIMIZER = "Check the optimizer, the learning-rate schedule and the loss of the script."

WORDS: dict[DoubtKind, Words] = {
    Kind.RECORD_MISSING: Words("{name}: it is missing", _START),
    Kind.RANK_SILENT: Words("no line was recorded", "Attach it."),
    Kind.NODE_UNOBSERVED: Words(
        "node {name}: seconds in which nobody observed its processes: {found}",
        "Check the network between the nodes and the follower's log.",
    ),
    Kind.OBSERVER_FAILED: Words(
        "the observer failed in step {step}, and the program continued: {found}",
        "Report the error. Run with `--no-observe`, or attach the program.",
    ),
    Kind.DETECTOR_BLIND: Words(
        "{name}: {found}",
        "Record the data that the sentence names, or switch the detector off in the plan.",
    ),
    Kind.METRIC_MISSING: Words(
        "{name}: {found}", "Record the metric, or remove the criterion from the gate."
    ),
    Kind.PREDECESSOR: Words("{name}: {found}", "Run again with heartbeats of this version."),
    Kind.EARLIER_STEPS: Words(
        "steps 1 to {step}: another run made them, before the checkpoint; the gate saw the"
        " steps after them",
        "Read the decision about that run.",
    ),
    Kind.STEPS_REPEATED: Words(
        "repeated steps: a later process went back after step {found} of {expected}; the gate saw"
        " the steps that were made last",
        "Check why it restarted. Resume from a checkpoint instead of starting again.",
    ),
    Kind.WEIGHTS_UNKNOWN: Words(
        "checkpoint: only the program knows which weights it loaded",
        "Check the log of the program for the checkpoint that it loaded.",
    ),
    Kind.IDENTITY_UNVERIFIED: Words(
        "{name} that the rank reports is compared with nothing",
        "Put the whole configuration into `train`, and the script's files into `workload.files`.",
    ),
    Kind.LEARNING_UNCLEAR: Words(
        "loss: it did not fall: {expected} in the first fifth of the steps, {found} in the last",
        "Check whether the loss of this workload is expected to fall.",
    ),
    Kind.SETTING_LOOSER: Words(
        "{name} is {found}, looser than the default {expected}", _OWN_LIMITS
    ),
    Kind.DETECTOR_WEAKENED: Words("{name} {found}", _OWN_LIMITS),
    Kind.FAULT_INJECTED: Words(
        "fault {name} was injected on purpose", "Run again without the fault."
    ),
    Kind.FAULTS_ALLOWED: Words(
        "the order allows faults, and devices whose samples are a script",
        "Leave `allow_faults` out of the plan.",
    ),
    Kind.NOT_JUDGED: Words(
        "a {name} decision: nothing but its record shows why", "Ask whom the decision names."
    ),
    Kind.UNSIGNED: Words(
        "who recorded it: it is not signed",
        "Record decisions through a service, or in a home with a key.",
    ),
    Kind.CHAIN_UNCHECKED: Words(
        "its chain: nobody looked for the decisions before and after it", _ALL_DECISIONS
    ),
    Kind.DECISION_MISSING: Words("decision {found} of {name} is not there", _ALL_DECISIONS),
    Kind.NO_DECISION: Words(
        "{name}: no decision is there: that nothing was decided only an anchor can show",
        "Verify with `--anchor HASH`, from an alert or a report.",
    ),
    Kind.RUN_UNDECIDED: Words(
        "ended runs of gonogo run without a decision here: {found}",
        "Judge the run again: `gonogo judge DIR`.",
    ),
    Kind.OTHER_KEY: Words(
        "{name}: its decisions are checked by its own key {found}, not by the home's key"
        " {expected}",
        "Name the key that you trust: `--key signing.pub`.",
    ),
    Kind.END_UNSEEN: Words(
        "its end, and what rests on it: the control plane recorded it",
        "Read the alert about the host.",
    ),
    Kind.SINGLE_RUN: Words(
        "a single run says nothing about the spread between runs: its interval is widened by"
        " 10 % either way; repeat each variant for a narrower one",
        "Repeat each variant.",
    ),
    Kind.RUNS_ALIKE: Words(
        "the runs of {name} count as one run: their values are equal, or nothing that was ordered"
        " differs; order another seed for each",
        "Order another seed for each repeat.",
    ),
    Kind.STEPS_DIFFER: Words(
        "the runs are not compared over the same steps: {found}",
        "Compare runs of one phase, or give all as many steps.",
    ),
    Kind.VARIANT_GIVEN_UP: Words(
        "{name} was given up: {found} runs of one repeat do not count",
        "Read the decisions about its runs.",
    ),
    Kind.MANY_LOOKS: Words(
        "each look uses confidence {found}, so that up to {name} looks hold together with"
        " {expected}",
        "Set `max_repeats` to `repeats` for a single look.",
    ),
    Kind.UNREADABLE: Words("{name} cannot be read: {found}", _COPY),
    Kind.SEAL_BROKEN: Words("{name} is not the one that exit.json seals", _EDITED),
    Kind.NOT_ORDERED: Words(
        "{name} {found} is recorded; ordered: {expected}",
        "Start as many ranks, and make as many steps, as the order names.",
    ),
    Kind.TWO_WRITERS: Words("two processes wrote its lines: {name} ({found})", _ONE_WRITER),
    Kind.OTHER_RUN: Words(
        "a process of {found} reports steps; {expected} was ordered",
        "Do not copy heartbeats between runs. Start the process through gonogo.",
    ),
    Kind.IDENTITY_CHANGED: Words(
        "trained as {name} {expected}, then as {found}",
        "Do not change code, data or configuration during a run.",
    ),
    Kind.EXIT_DIFFERS: Words("{name}: {found}, and not {expected}", _EDITED),
    Kind.CLOCKS_DIFFER: Words(
        "ran for {found} s by its own clock, and was observed for {expected} s",
        "Check the clock of the host; do not edit stamps.",
    ),
    Kind.IMPOSSIBLE_NUMBER: Words(
        "{name} has an impossible value at {found} steps", "Correct what the script records."
    ),
    Kind.DEVICES_DIFFER: Words(
        "{name}: {found} samples or errors are in one record and not in the other", _EDITED
    ),
    Kind.NOTHING_LEARNED: Words(
        "the steps changed nothing: {name} is {found} at {expected} steps", _OPTIMIZER
    ),
    Kind.RANKS_APART: Words(
        "{name} differs from that of rank {expected} at {found} steps, or no gradient was shared",
        "Train through the DDP or FSDP wrapper; record the norm of the averaged gradients.",
    ),
    Kind.WATCH_BROKEN: Words("watch.jsonl: tick {found}: {name}", _COPY),
    Kind.WATCH_GAP: Words(
        "watch.jsonl: nobody watched for {found} s before tick {name}",
        "Check why the watcher was stopped; run again.",
    ),
    Kind.LINES_CHANGED: Words("{name} lines are not those watched", _EDITED),
    Kind.LINES_UNWATCHED: Words("{found} lines were added that no watcher read", _EDITED),
    Kind.FILE_UNWATCHED: Words("{name} is not the one that the watcher saw", _EDITED),
    Kind.FINDING_DIFFERS: Words(
        "findings.jsonl has {found} for {name}, the lines give {expected}", _EDITED
    ),
    Kind.DETECTOR_FAILED: Words("{name}: {found}", _ADVICE_PLUGIN),
    Kind.SETTING_BEYOND: Words("{name} is {found}, looser than its limit {expected}", _OWN_LIMITS),
    Kind.SETTING_FOREIGN: Words(
        "{name} is {found}, which no plan may have", "Start the run from a plan or a command."
    ),
    Kind.DETECTOR_DISARMED: Words("{name} {found}", _OWN_LIMITS),
    Kind.CHECKS_LEFT_OUT: Words(
        "the preflight does not check {found}", "Start the run from a plan or a command."
    ),
    Kind.GATE_EMPTY: Words(
        "the gate is empty: nothing but a whole run is asked", "Give the phase a gate."
    ),
}


def sentence(doubt: Doubt) -> str:
    """Return a doubt as one sentence for people."""
    values = {
        "rank": doubt.rank,
        "step": doubt.step,
        "name": doubt.name,
        "expected": _shown(doubt.expected),
        "found": _shown(doubt.found),
    }
    text = WORDS[doubt.kind].sentence.format_map(values)
    return text if doubt.rank is None else f"rank {doubt.rank}: {text}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        more = f" and {len(value) - MOST_LISTED} more" if len(value) > MOST_LISTED else ""
        return ", ".join(map(_shown, value[:MOST_LISTED])) + more
    if isinstance(value, float):
        return f"{value:.9g}"
    return "nothing" if value is None else str(value)
