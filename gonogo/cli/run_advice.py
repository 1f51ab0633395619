"""What can be done next? What the verdict of `gonogo run` lacks, and the option that gives it.

Pure: an order, the decision's criteria and which ranks were heard. Nothing here is said of a plan's
own run but what the plan can change.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gonogo.cli.printed_advice import advise_end, advise_unread
from gonogo.contract.decision import CriterionOutcome
from gonogo.contract.facts import ExitFacts
from gonogo.contract.order import Order
from gonogo.contract.plan import DRIFTS
from gonogo.contract.tick import parse_rank

MOST_OF_ERROR = 200
"""Characters of an error that was passed over."""


def advise(
    order: Order,
    criteria: Sequence[Mapping[str, Any]],
    heard: Collection[int],
    *,
    read: bool,
    planned: bool,
    printed: Sequence[str] = (),
    unseen: Collection[str] = (),
    undone: bool = False,
    error: str | None = None,
    last: int | None = None,
    went_on: int | None = None,
    some_losses: bool = False,
    counted: bool = False,
) -> list[str]:
    """Return what would tell more, the most useful first.

    Args:
        order: what was run.
        criteria: rows of the decision: `id`, `outcome`, and of a plan's own `window`, `samples`.
        heard: ranks of which any line came.
        read: whether the program is known by its output alone.
        planned: whether a plan says how many steps and ranks there are.
        printed: what it printed, the newest line last.
        unseen: ranks of whose end nobody knows, though the command left with 0.
        undone: whether a rank that made every step never said that it was done (`undone_ranks`).
        error: with what such a rank left its block, which the script then passed over.
        last: the last step that was told; None where nobody looked.
        went_on: the step after which an attached script went on by itself (`went_on_after`).
        some_losses: whether a rank recorded the loss of some steps alone (`has_some_losses`).
        counted: whether the last step of a whole run was named already (`advise_steps`).
    """
    open_ = {row["id"] for row in criteria if row["outcome"] == CriterionOutcome.INCONCLUSIVE}
    if not open_:
        return []
    sparse = [row["id"] for row in criteria if row["id"] in open_ and _is_sparse(row)]
    said = list(_advice(order, open_, heard, read, planned, printed, counted=counted))
    if read and heard and "completed" in open_ and order.steps is not None and last is not None:
        said = [*advise_end(order, printed, last), *said]
    if unseen and "completed" in open_:
        ranks = ", ".join(sorted(unseen, key=int))
        said.append(
            f"how rank {ranks} ended only the shell knows that started it: write exec before the"
            " trainer's command there, or start it without a shell (docs/how-to/run.md)"
        )
    if read and planned and some_losses and "coverage" in open_:
        remedy = (
            "have every step's line tell it"
            if order.patterns_guessed
            else "take loss out of --pattern (its losses are not watched then)"
        )
        said.append(
            "of some steps the lines tell a loss and of others none, which no waiver passes:"
            f" {remedy}, or attach it (docs/how-to/attach.md)"
        )
    if undone and not read and "completed" in open_ and error is not None:
        said.append(
            f"its block was left by an error after the last step, and the script went on: {error}."
            " Mend what raised it, or catch it within the block where it does not matter"
        )
    elif undone and not read and "completed" in open_:
        said.append(
            "a script says that it is done by leaving its block: with gonogo.trainer.attach() as"
            " beat (docs/how-to/attach.md)"
        )
    said += _advice_on_checkpoint(order, open_, None if read else went_on, planned)
    untold = {row["id"] for row in criteria if row["id"] in open_ and row.get("samples") == 0}
    unmeasured = [row.id for row in order.gate if row.id in untold and row.metric == "val_loss"]
    if unmeasured and not read:
        said.append(
            f"{', '.join(unmeasured)} waits for an evaluation, and none was told: beat.eval(loss)"
            " after the step that it follows (docs/how-to/attach.md)"
        )
    return said + [
        f"{name} is owed a sample of every step, and the lines tell some: print each step, or go"
        f" without: --waive {name} (in a plan: waive: [{name}])"
        for name in sparse
        if read and heard and name not in order.waive
    ]


def unseen_ranks(told: Mapping[str, Any] | None) -> list[str]:
    """Return the ranks of a command that left with 0 of whose own end nobody knows.

    Args:
        told: `exit` of the decision's facts.
    """
    ended = None if told is None else ExitFacts.model_validate(told)
    if ended is None or ended.agent is None or not ended.agent.clean:
        return []
    unseen = {rank for rank, end in ended.ranks.items() if end.code is None and end.signal is None}
    return [rank for rank in ended.ranks if rank in unseen and parse_rank(rank) is not None]


def went_on_after(
    ranks: Mapping[str, Mapping[str, Any]], boots: Mapping[str, Sequence[Mapping[str, Any]]]
) -> int | None:
    """Return the step after which a script went on from a checkpoint that it had found by itself.

    None where it began with the first, where a line is missing, or where it was started anew.

    Args:
        ranks: `ranks` of the decision's facts.
        boots: `boots` of them.
    """
    found: set[int] = set()
    for rank, row in ranks.items():
        lives = boots.get(rank, [])
        if row["done_step"] is None or row["gaps"] or len(lives) != 1:
            return None
        found.add(row["done_step"] - lives[0]["ended_steps"])
    step = found.pop() if len(found) == 1 else 0
    return step if step > 0 else None


def advise_steps(
    order: Order,
    told: Mapping[str, Mapping[str, Any]],
    ended: Mapping[str, Any] | None,
    *,
    planned: bool,
) -> list[str]:
    """Return the number of steps to order, if the program exited with 0 after another number.

    Nothing where the ranks do not agree.

    Args:
        order: what was run.
        told: `ranks` of the decision's facts.
        ended: `exit` of them.
        planned: whether a plan says how many steps there are.
    """
    exited = None if ended is None else ExitFacts.model_validate(ended)
    if exited is None or exited.agent is None or not exited.agent.clean:
        return []
    counts = {max(row["done_step"] or 0, row["last_step"]) for row in told.values()}
    count = counts.pop() if len(counts) == 1 else 0
    if count <= 0 or count == order.steps:
        return []
    remedy = f"correct the steps of the plan to {count}" if planned else f"say --steps {count}"
    place = "" if planned else _place_of_steps(order)
    what = "1 step was" if count == 1 else f"{count} steps were"
    return [f"{what} counted: {remedy}{place} if that is a whole run"]


def undone_ranks(told: Mapping[str, Mapping[str, Any]], steps: int | None) -> list[str]:
    """Return the ranks that have made every step and never said that they were done.

    Args:
        told: `ranks` of the decision's facts.
        steps: the last ordered step; None where nobody says.
    """
    complete = [
        rank for rank, row in told.items() if steps is not None and row["last_step"] >= steps
    ]
    return [rank for rank in complete if told[rank]["done_step"] is None]


def has_some_losses(told: Mapping[str, Mapping[str, Any]]) -> bool:
    """Say whether a rank recorded the loss of some steps, and of others none.

    Args:
        told: `ranks` of the decision's facts.
    """
    return any(row.get("with_loss") and _missing(row.get("without_loss")) for row in told.values())


def _missing(row: Mapping[str, Any] | None) -> bool:
    return row is not None and row["count"] > 0


def error_told(line: Mapping[str, Any] | None) -> str | None:
    """Return the error that a rank's last line tells, in one line; None where it tells none.

    Args:
        line: as `last_error_line` found it.
    """
    if line is None:
        return None
    words = f"{line.get('type')}: {line.get('text')}".splitlines()[0]
    return words[:MOST_OF_ERROR]


def advise_ranks(order: Order, heard: Collection[int], *, planned: bool) -> list[str]:
    """Return how many ranks to order, where more were heard, whatever the verdict is.

    Args:
        order: what was run.
        heard: ranks of which any line came.
        planned: whether a plan says how many ranks there are.
    """
    many = max(heard, default=-1) + 1
    if many <= order.world_size:
        return []
    what = "correct workload.world_size in the plan" if planned else f"say --world-size {many}"
    return [f"{many} ranks were heard and {order.world_size} ordered: {what}"]


def advise_drift(criteria: Sequence[Mapping[str, Any]], *, planned: bool) -> list[str]:
    """Return how ranks may differ in what they were told apart by, where that may be allowed.

    Args:
        criteria: rows of the decision: `id`, `outcome`, `observed`.
        planned: whether a plan says what may differ.
    """
    rows = [row for row in criteria if row["id"] == "identity"]
    failed = [row for row in rows if row["outcome"] == CriterionOutcome.FAIL]
    fields = [name for row in failed for name in DRIFTS if name in (row.get("observed") or {})]
    if not fields:
        return []
    what = " ".join(f"--allow-drift {name}" for name in fields)
    if planned:
        what = f"in the plan, allow_drift: [{', '.join(fields)}]"
    return [f"where {' and '.join(fields)} may differ: {what} (CONDITIONAL_GO then)"]


def _place_of_steps(order: Order) -> str:
    own = "--steps" in (order.command or ())
    return " before the --; behind it that is the program's own" if own else ""


def _advice(
    order: Order,
    open_: Collection[str],
    heard: Collection[int],
    read: bool,
    planned: bool,
    printed: Sequence[str],
    *,
    counted: bool,
) -> Iterator[str]:
    if read and not heard:
        yield from advise_unread(order, printed)
    elif read and len(heard) < order.world_size and not planned:
        ranks = ", ".join(map(str, sorted(heard)))
        yield (
            f"only rank {ranks} of {order.world_size} was heard: where one prints for all, leave"
            " --world-size out"
        )
    if order.steps is None and not counted:
        place = _place_of_steps(order)
        yield f"nobody knows what a whole run is: say its last step with --steps N{place}"
    untold = [name for name in ("identity", "coverage") if name in open_ and heard]
    lacking = [name for name in untold if name not in order.waive]
    if read and lacking and (planned or "completed" not in open_):
        waivers = " ".join(f"--waive {name}" for name in lacking)
        accept = "take CONDITIONAL_GO for success: --accept conditional"
        yield (
            f"a program that is only read cannot report {' and '.join(lacking)}: attach it (three"
            f" lines, docs/how-to/attach.md), or {f'go without: {waivers}' if planned else accept}"
        )


def _advice_on_checkpoint(
    order: Order, open_: Collection[str], after: int | None, planned: bool
) -> Iterator[str]:
    """Yield what is done about a script that went on from a checkpoint of another run's."""
    if after is None or order.steps is None or "coverage" not in open_:
        return
    came = f"the script went on after step {after}, from a checkpoint of its own"
    if after >= order.steps:
        more = "steps of the plan" if planned else "--steps"
        yield (
            f"{came}, and nothing was left of the {order.steps} ordered steps: take that checkpoint"
            f" away, or let {more} be more"
        )
        return
    waiver = "waive: [coverage]" if planned else "--waive coverage"
    yield (
        f"{came}, and a run owes every step from the first on: take that checkpoint away, or go"
        f" without the steps before: {waiver} (CONDITIONAL_GO at best)"
    )


def _is_sparse(row: Mapping[str, Any]) -> bool:
    """Say whether a plan's criterion saw samples of some steps of its window alone."""
    first, _, last = (row.get("window") or "").partition("..")
    return bool(last) and 0 < (row.get("samples") or 0) <= int(last) - int(first)
