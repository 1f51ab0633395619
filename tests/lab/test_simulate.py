"""Two hundred healthy hours halt nobody; each fault is answered by the right detector."""

from collections import Counter
from dataclasses import replace

import pytest

from lab.noise import FAULTS
from lab.run import (
    MANY_STEPS,
    Cell,
    Part,
    Tally,
    cells_of,
    fault_rows,
    plan_parts,
    pool_cells,
    report_of,
    simulate_part,
)

SEED = 20_261_120
CELLS = [
    Cell(step_s=60.0, ranks=1, hours=150.0),
    Cell(step_s=60.0, ranks=8, hours=12.0),
    Cell(step_s=25.0, ranks=2, hours=70.0),
    Cell(step_s=2.4, ranks=2, hours=6.0),
    Cell(step_s=1.0, ranks=8, hours=1.0),
    Cell(step_s=1.0, ranks=1, hours=1.0),
    Cell(step_s=0.05, ranks=1, hours=0.05),
    Cell(step_s=1.0, ranks=64, hours=0.05),
]


@pytest.mark.long
@pytest.mark.timeout(1200)  # a minute of processor time, on a machine that may be busy
def test_two_hundred_healthy_hours_halt_nobody() -> None:
    parts = plan_parts(CELLS, seed=SEED, healthy_only=True)
    report = report_of(Tally.of(simulate_part(part) for part in parts))
    assert report["run_hours"] >= 200.0
    assert report["halts"] == []


def sick_part(name: str) -> Part:
    (row,) = [row for row in FAULTS if row.name == name]
    hours = (row.onset_step * 3.0 + row.within_s) / 3600.0
    return Part(seed=f"{SEED}/{name}", step_s=1.0, ranks=2, hours=hours, sick=name)


SICK = [row.name for row in fault_rows()]
LONG = [pytest.param(name, marks=pytest.mark.long) for name in SICK[4:]]


@pytest.mark.parametrize("name", [*SICK[:4], *LONG])
def test_a_sick_run_is_answered_with_culprit_and_section(name: str) -> None:
    (answer,) = simulate_part(sick_part(name)).answers
    assert answer.wrong is None
    assert answer.latency_s is not None


def test_the_same_part_gives_the_same_tally() -> None:
    part = Part(seed="again", step_s=2.4, ranks=2, hours=0.2)
    assert simulate_part(part) == simulate_part(part)
    assert simulate_part(part) != simulate_part(replace(part, seed="other"))


def test_every_part_has_a_seed_of_its_own_and_hours_are_shared_out() -> None:
    cells = cells_of(1000.0, (1.0, 60.0), (1, 8))
    parts = plan_parts(cells, seed=3)
    assert max(Counter(part.seed for part in parts).values()) == 1
    healthy = sum(part.hours for part in parts if part.sick is None)
    assert healthy == pytest.approx(1000.0)
    assert {part.sick for part in parts} - {None} == {row.name for row in fault_rows()}


def test_the_pool_is_what_a_release_is_judged_by() -> None:
    cells = pool_cells()
    hours = sum(cell.hours for cell in cells if cell.ranks <= 8 and cell.step_s >= 1.0)
    assert hours >= 20_000.0
    pairs = {(cell.step_s, cell.ranks) for cell in cells}
    assert {(s, r) for s in (1.0, 2.4, 25.0, 60.0) for r in (1, 8)} < pairs
    quick = [c for c in cells if c.step_s == 0.05]
    assert sum(3600.0 * c.hours / c.step_s for c in quick) >= MANY_STEPS
    wide = [c for c in cells if c.ranks == 64]
    assert sum(3600.0 * c.hours / (1.6 * c.step_s) * 64 for c in wide) >= MANY_STEPS
