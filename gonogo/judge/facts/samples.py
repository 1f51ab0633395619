"""Where do the samples of a metric come from? From a rank's steps, or what its devices said.

Each source returns step → value; a step without a sample is missing, and is not made up. What is
one number for the whole run stands at the last step that is owed.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

from gonogo.contract.criterion import Metric
from gonogo.contract.heartbeat import Msg
from gonogo.contract.rules import Rules
from gonogo.judge.facts.steps import RankSteps, Span
from gonogo.timeline.columns import NEVER

FEWEST_LINES = 4
"""Fewer numbers of tokens may rise by chance."""
Samples = Mapping[int, float]
Source = Callable[[RankSteps, Rules], Samples]


def of_lines(name: str) -> Source:
    """Return a source that reads one field of the progress lines."""

    def samples(steps: RankSteps, rules: Rules) -> Samples:
        return steps.samples(name)

    return samples


def spans_of(name: str) -> Callable[[RankSteps, Rules], Mapping[int, Span]]:
    """Return a source of lowest and highest of a field of several progress lines of one step."""

    def spans(steps: RankSteps, rules: Rules) -> Mapping[int, Span]:
        return steps.spans(name)

    return spans


def step_times(steps: RankSteps, rules: Rules) -> Samples:
    """Seconds of each step, by its rank's own clock; even for those that were told of together."""
    return steps.even_step_times()


def single_step_times(steps: RankSteps, rules: Rules) -> Samples:
    """Seconds of each step, as they were told: how much they differ, the others do not show."""
    return steps.whole_step_times()


def toks_per_s(steps: RankSteps, rules: Rules) -> Samples:
    """Global tokens of a step over its seconds; the ordered tokens where the order says them.

    Nothing where they are not ordered, and those of the lines may be of the whole run so far.
    """
    table = steps.steps
    found: dict[int, float] = {}
    if may_be_sums(steps, rules):
        return found
    for step, dt_s in whole_step_times(steps, rules).items():
        row = table.rows.get(step)
        tokens = rules.tokens_per_step or (NEVER if row is None else table.tokens[row])
        if tokens != NEVER:
            found[step] = tokens / dt_s
    return found


def may_be_sums(steps: RankSteps, rules: Rules) -> bool:
    """Say whether the reported tokens may be those of the whole run so far: they always rise.

    Then nobody knows the tokens of a step, unless the order names them.
    """
    if rules.tokens_per_step:
        return False
    told = (list(boot.steps.tokens_told().values()) for boot in steps.boots)
    return any(
        len(row) >= FEWEST_LINES and all(one < other for one, other in pairwise(row))
        for row in told
    )


def whole_step_times(steps: RankSteps, rules: Rules) -> Samples:
    """Seconds that a step costs the run: its own, and what lies between two steps by its way.

    Of several steps at once where not every end is told.
    """
    between_s = steps.between_steps_s()
    times = steps.mean_step_times()
    return {step: dt_s + between_s for step, dt_s in times.items()}


def fetch_share(steps: RankSteps, rules: Rules) -> Samples:
    """Share of each step that its rank waited for data."""
    times = single_step_times(steps, rules)
    fetch_s = of_lines("dt_fetch_s")(steps, rules)
    return {step: fetch_s[step] / dt_s for step, dt_s in times.items() if step in fetch_s}


def fetch_share_spans(steps: RankSteps, rules: Rules) -> Mapping[int, Span]:
    """Least and most of the same, of steps of which several lines tell it."""
    times = single_step_times(steps, rules)
    fetch_s = spans_of("dt_fetch_s")(steps, rules)
    return {
        step: (least_s / times[step], most_s / times[step])
        for step, (least_s, most_s) in fetch_s.items()
        if step in times
    }


def grad_norms(steps: RankSteps, rules: Rules) -> Samples:
    """Gradient norm of each step whose update was applied."""
    left_out = skipped(steps, rules)
    return {step: norm for step, norm in steps.samples("grad_norm").items() if step not in left_out}


def skipped(steps: RankSteps, rules: Rules) -> frozenset[int]:
    """Steps whose update was left out: fp16 may do that, and nothing else is excused by it."""
    return steps.skipped() if rules.identity.dtype == "fp16" else frozenset()


def first_loss(steps: RankSteps, rules: Rules) -> Samples:
    """The loss of step 1: a resumed attempt has none."""
    loss = steps.samples("loss").get(1)
    return {} if loss is None else {rules.last_step: loss}


def first_loss_spans(steps: RankSteps, rules: Rules) -> Mapping[int, Span]:
    """Lowest and highest of it, where several lines tell it."""
    span = spans_of("loss")(steps, rules).get(1)
    return {} if span is None else {rules.last_step: span}


def evals(steps: RankSteps, rules: Rules) -> Samples:
    """Validation loss by step."""
    return steps.evals


def eval_s(steps: RankSteps, rules: Rules) -> Samples:
    """Seconds of each evaluation."""
    return steps.eval_s


def eval_spans(steps: RankSteps, rules: Rules) -> Mapping[int, Span]:
    """Lowest and highest validation loss of each step whose evaluations differ."""
    return steps.eval_spans()


def eval_s_spans(steps: RankSteps, rules: Rules) -> Mapping[int, Span]:
    """Fewest and most seconds of an evaluation of each step whose evaluations differ."""
    return steps.eval_s_spans()


def steps_completed(steps: RankSteps, rules: Rules) -> Samples:
    """The last step that the rank has ended; one before the first where it ended none."""
    return {rules.last_step: float(max(steps.last_step, rules.first_step - 1))}


def gaps(steps: RankSteps, rules: Rules) -> Samples:
    """Lines that are missing between those that came; nothing where none came."""
    return {rules.last_step: float(steps.gaps)} if steps.boots else {}


def device_hours(steps: RankSteps, rules: Rules) -> Samples:
    """Hours between the first step's start and the last step's end, times the ranks.

    What a process had spent that another one began anew after counts, too. An attempt that resumes
    knows what its own steps cost, and not the phase's: it has none.
    """
    if rules.first_step > 1:
        return {}
    tables = [boot.steps for boot in steps.boots]
    starts = [row.start_mono[at] for row in tables for _, at in row.steps_of(Msg.STEP_START)]
    ends = [row.end_mono[at] for row in tables for _, at in row.steps_of(Msg.STEP_END)]
    if not starts or not ends:
        return {}
    seconds = max(ends) - min(starts)
    return {rules.last_step: seconds / 3600 * (rules.world_size or 0)}


def drifts(steps: RankSteps, rules: Rules) -> Samples:
    """How many fields of the frozen identity have drifted, of those that may; each must be said."""
    expected = rules.identity.said()
    names = [name for name in rules.allow_drift if name in expected]
    said = [
        {name: getattr(identity, name) for name in names}
        for boot in steps.boots
        if (boot.ended_steps or boot is steps.boots[-1])
        and (identity := boot.identity()) is not None
    ]
    if not names or not said or any(value is None for row in said for value in row.values()):
        return {}
    drifted = {name for row in said for name in names if row[name] != expected[name]}
    return {rules.last_step: float(len(drifted))}


def of_devices(metric: Metric) -> Source:
    """Return a source that reads what the ticks' device samples say of each step."""

    def samples(steps: RankSteps, rules: Rules) -> Samples:
        return steps.told_by_devices.get(metric.value, {})

    return samples


def device_memory(steps: RankSteps, rules: Rules) -> Samples:
    """What the lines call reserved; where they never say, what the rank's device says is in use.

    A rank that has never reserved anything computes on no device of torch's, and says nothing.
    """
    said = steps.samples("gpu_mem_reserved")
    if any(said.values()) or device_memory_spans(steps, rules):
        return said
    return steps.told_by_devices.get(Metric.GPU_MEM_RESERVED_MB.value, {})


def device_memory_spans(steps: RankSteps, rules: Rules) -> Mapping[int, Span]:
    """Least and most that the lines call reserved, of steps of which several tell it."""
    return spans_of("gpu_mem_reserved")(steps, rules)
