"""The table of steps keeps what each line reports, in whatever order they come."""

from gonogo.contract.heartbeat import Msg
from gonogo.timeline.columns import BITS, SECTIONS, StepTable
from tests.timeline.test_rank_steps import beat, sections


def test_a_line_changes_the_row_of_its_step_alone() -> None:
    table = StepTable()
    for step in (1, 2, 3, 2, 1):
        table.take(beat(step, "progress", step=step, loss=float(step)), BITS[Msg.PROGRESS])
        told = {"step": step, "step_sections": sections(float(step))}
        table.take(beat(step, "step_end", **told), BITS[Msg.STEP_END])
    assert table.samples("loss") == {1: 1.0, 2: 2.0, 3: 3.0}
    assert list(table.sections()[SECTIONS.index("data")][:3]) == [1.0, 2.0, 3.0]
