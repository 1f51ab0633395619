"""How is a doubt put into words? One row a kind: its sentence, its meaning and what to do.

Nothing decides by these texts. docs/doubts.md is made from them.
"""

from typing import NamedTuple

from gonogo.contract.finding import Doubt, DoubtKind

Kind = DoubtKind
MOST_LISTED = 4
"""Values of a list that a sentence names."""


class Words(NamedTuple):
    """The texts of one kind of doubt."""

    sentence: str
    """With the doubt's fields in braces."""
    meaning: str
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
    Kind.RECORD_MISSING: Words(
        "{name}: it is missing",
        "A record of the run does not exist.",
        _START,
    ),
    Kind.RANK_SILENT: Words("no line was recorded", "A rank wrote no heartbeat.", "Attach it."),
    Kind.NODE_UNOBSERVED: Words(
        "node {name}: seconds in which nobody observed its processes: {found}",
        "The watcher received nothing from a node for some time, or at all.",
        "Check the network between the nodes and the follower's log.",
    ),
    Kind.OBSERVER_FAILED: Words(
        "the observer failed in step {step}, and the program continued: {found}",
        "An error of the observer ended the observation of an unchanged program.",
        "Report the error. Run with `--no-observe`, or attach the program.",
    ),
    Kind.DETECTOR_BLIND: Words(
        "{name}: {found}",
        "A detector lacks data and cannot halt the run.",
        "Record the data that the sentence names, or switch the detector off in the plan.",
    ),
    Kind.METRIC_MISSING: Words(
        "{name}: {found}",
        "No line or sample records a metric, only some steps have one, or its package failed.",
        "Record the metric, or remove the criterion from the gate.",
    ),
    Kind.PREDECESSOR: Words(
        "{name}: {found}",
        "The lines are those of the predecessor, which record less.",
        "Run again with heartbeats of this version.",
    ),
    Kind.EARLIER_STEPS: Words(
        "steps 1 to {step}: another run made them, before the checkpoint; the gate saw the"
        " steps after them",
        "The run resumed from a checkpoint of another run.",
        "Read the decision about that run.",
    ),
    Kind.STEPS_REPEATED: Words(
        "repeated steps: a later process went back after step {found} of {expected}; the gate saw"
        " the steps that were made last",
        "A process restarted, and other steps took the place of the first ones.",
        "Check why it restarted. Resume from a checkpoint instead of starting again.",
    ),
    Kind.WEIGHTS_UNKNOWN: Words(
        "checkpoint: only the program knows which weights it loaded",
        "A checkpoint was passed to a program of the user, and no record shows that it was loaded.",
        "Check the log of the program for the checkpoint that it loaded.",
    ),
    Kind.IDENTITY_UNVERIFIED: Words(
        "{name} that the rank reports is compared with nothing",
        "The order does not name the configuration, or the code, that must run.",
        "Put the whole configuration into `train`, and the script's files into `workload.files`.",
    ),
    Kind.LEARNING_UNCLEAR: Words(
        "loss: it did not fall: {expected} in the first fifth of the steps, {found} in the last",
        "The loss of the last steps is not below that of the first ones.",
        "Check whether the loss of this workload is expected to fall.",
    ),
    Kind.SETTING_LOOSER: Words(
        "{name} is {found}, looser than the default {expected}",
        "A setting of the watch is looser than its default, and within its ceiling.",
        _OWN_LIMITS,
    ),
    Kind.DETECTOR_WEAKENED: Words(
        "{name} {found}",
        "A detector does not watch, or only warns where it usually halts.",
        _OWN_LIMITS,
    ),
    Kind.FAULT_INJECTED: Words(
        "fault {name} was injected on purpose",
        "The run was broken on purpose, as by `make demo --fault`.",
        "Run again without the fault.",
    ),
    Kind.FAULTS_ALLOWED: Words(
        "the order allows faults, and devices whose samples are a script",
        "Somebody may have broken the run on purpose, or made its samples of devices up.",
        "Leave `allow_faults` out of the plan.",
    ),
    Kind.NOT_JUDGED: Words(
        "a {name} decision: nothing but its record shows why",
        "A person decided, or conditions were settled: there is nothing to judge again.",
        "Ask whom the decision names.",
    ),
    Kind.UNSIGNED: Words(
        "who recorded it: it is not signed",
        "A decision without a signature; only a home with a key signs.",
        "Record decisions through a service, or in a home with a key.",
    ),
    Kind.CHAIN_UNCHECKED: Words(
        "its chain: nobody looked for the decisions before and after it",
        "The other decisions of the experiment were not at hand.",
        _ALL_DECISIONS,
    ),
    Kind.DECISION_MISSING: Words(
        "decision {found} of {name} is not there",
        "Decisions of the experiment are missing, so their links cannot be checked.",
        _ALL_DECISIONS,
    ),
    Kind.NO_DECISION: Words(
        "{name}: no decision is there: that nothing was decided only an anchor can show",
        "A home holds no decision. Perhaps all were removed.",
        "Verify with `--anchor HASH`, from an alert or a report.",
    ),
    Kind.RUN_UNDECIDED: Words(
        "ended runs of gonogo run without a decision here: {found}",
        "The decision about a run was removed, or `gonogo run` was killed before it decided.",
        "Judge the run again: `gonogo judge DIR`.",
    ),
    Kind.OTHER_KEY: Words(
        "{name}: its decisions are checked by its own key {found}, not by the home's key"
        " {expected}",
        "A demo below a home has its own key, which any process that writes there can make.",
        "Name the key that you trust: `--key signing.pub`.",
    ),
    Kind.END_UNSEEN: Words(
        "its end, and what rests on it: the control plane recorded it",
        "The host was lost, so its directory does not show how the run ended.",
        "Read the alert about the host.",
    ),
    Kind.SINGLE_RUN: Words(
        "a single run says nothing about the spread between runs: its interval is widened by"
        " 10 % either way; repeat each variant for a narrower one",
        "A variant was run once.",
        "Repeat each variant.",
    ),
    Kind.RUNS_ALIKE: Words(
        "the runs of {name} count as one run: their values are equal, or nothing that was ordered"
        " differs; order another seed for each",
        "Repeats of one seed show no spread.",
        "Order another seed for each repeat.",
    ),
    Kind.STEPS_DIFFER: Words(
        "the runs are not compared over the same steps: {found}",
        "Some runs of a comparison have other steps than others.",
        "Compare runs of one phase, or give all as many steps.",
    ),
    Kind.VARIANT_GIVEN_UP: Words(
        "{name} was given up: {found} runs of one repeat do not count",
        "A variant of a campaign failed again and again.",
        "Read the decisions about its runs.",
    ),
    Kind.MANY_LOOKS: Words(
        "each look uses confidence {found}, so that up to {name} looks hold together with"
        " {expected}",
        "A campaign decides after each repeat, and each look may be wrong by chance.",
        "Set `max_repeats` to `repeats` for a single look.",
    ),
    Kind.UNREADABLE: Words(
        "{name} cannot be read: {found}",
        "A file exists, and is damaged or no such record.",
        _COPY,
    ),
    Kind.SEAL_BROKEN: Words(
        "{name} is not the one that exit.json seals",
        "A file was changed after the run ended.",
        _EDITED,
    ),
    Kind.NOT_ORDERED: Words(
        "{name} {found} is recorded; ordered: {expected}",
        "A rank, a node or a step has a record, and the order does not have it.",
        "Start as many ranks, and make as many steps, as the order names.",
    ),
    Kind.TWO_WRITERS: Words(
        "two processes wrote its lines: {name} ({found})",
        "Two processes wrote one rank's file, or one process wrote for two ranks.",
        _ONE_WRITER,
    ),
    Kind.OTHER_RUN: Words(
        "a process of {found} reports steps; {expected} was ordered",
        "Lines come from a process that was started for another run, or that wrote no boot line.",
        "Do not copy heartbeats between runs. Start the process through gonogo.",
    ),
    Kind.IDENTITY_CHANGED: Words(
        "trained as {name} {expected}, then as {found}",
        "A rank reported two identities during one run.",
        "Do not change code, data or configuration during a run.",
    ),
    Kind.EXIT_DIFFERS: Words(
        "{name}: {found}, and not {expected}",
        "Two records of how the run ended contradict each other.",
        _EDITED,
    ),
    Kind.CLOCKS_DIFFER: Words(
        "ran for {found} s by its own clock, and was observed for {expected} s",
        "The stamps of a rank do not fit the watcher's clock.",
        "Check the clock of the host; do not edit stamps.",
    ),
    Kind.IMPOSSIBLE_NUMBER: Words(
        "{name} has an impossible value at {found} steps",
        "A number is negative that cannot be, or a share is above 1.",
        "Correct what the script records.",
    ),
    Kind.DEVICES_DIFFER: Words(
        "{name}: {found} samples or errors are in one record and not in the other",
        "Samples of devices contradict each other, or the preflight check.",
        _EDITED,
    ),
    Kind.NOTHING_LEARNED: Words(
        "the steps changed nothing: {name} is {found} at {expected} steps",
        "Most steps did not change the model: the loss or the validation loss is bit-equal, the"
        " learning rate or the gradient norm is not above 0, or updates were skipped.",
        _OPTIMIZER,
    ),
    Kind.RANKS_APART: Words(
        "{name} differs from that of rank {expected} at {found} steps, or no gradient was shared",
        "Ranks that average their gradients did not take the same steps.",
        "Train through the DDP or FSDP wrapper; record the norm of the averaged gradients.",
    ),
    Kind.WATCH_BROKEN: Words(
        "watch.jsonl: tick {found}: {name}",
        "The record of the watcher is damaged: a line is no tick, or does not follow the last one.",
        _COPY,
    ),
    Kind.WATCH_GAP: Words(
        "watch.jsonl: nobody watched for {found} s before tick {name}",
        "The watcher was absent for longer than allowed.",
        "Check why the watcher was stopped; run again.",
    ),
    Kind.LINES_CHANGED: Words(
        "{name} lines are not those watched",
        "Lines of a rank were changed or removed after the watcher had read them.",
        _EDITED,
    ),
    Kind.LINES_UNWATCHED: Words(
        "{found} lines were added that no watcher read",
        "Lines were written that the watcher did not read, or after the end of the run.",
        _EDITED,
    ),
    Kind.FILE_UNWATCHED: Words(
        "{name} is not the one that the watcher saw",
        "A file was added or changed after the watcher had sealed it.",
        _EDITED,
    ),
    Kind.FINDING_DIFFERS: Words(
        "findings.jsonl has {found} for {name}, the lines give {expected}",
        "findings.jsonl and the findings of the lines differ.",
        _EDITED,
    ),
    Kind.DETECTOR_FAILED: Words(
        "{name}: {found}",
        "A detector that the order names is not installed here, or raised an error.",
        _ADVICE_PLUGIN,
    ),
    Kind.SETTING_BEYOND: Words(
        "{name} is {found}, looser than its limit {expected}",
        "A setting is beyond its ceiling, so that hardly anything would halt the run in time.",
        _OWN_LIMITS,
    ),
    Kind.SETTING_FOREIGN: Words(
        "{name} is {found}, which no plan may have",
        "The order was written or changed by hand.",
        "Start the run from a plan or a command.",
    ),
    Kind.DETECTOR_DISARMED: Words(
        "{name} {found}",
        "A detector without which hardly anything halts does not watch, or only warns.",
        _OWN_LIMITS,
    ),
    Kind.CHECKS_LEFT_OUT: Words(
        "the preflight does not check {found}",
        "The order leaves out checks that every order has.",
        "Start the run from a plan or a command.",
    ),
    Kind.GATE_EMPTY: Words(
        "the gate is empty: nothing but a whole run is asked",
        "The phase of a plan has no criterion.",
        "Give the phase a gate.",
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
