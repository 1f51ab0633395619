"""Does a verdict of `gonogo run` name what would tell more?"""

from typing import Any

import pytest

from gonogo.cli.run_advice import advise
from gonogo.contract.watch import Watch
from gonogo.planning.resolve import build_command_order


def advice(
    *open_: str,
    steps: int | None = 30,
    ranks: int = 1,
    heard: tuple[int, ...] = (0,),
    waive: tuple[str, ...] = (),
    fits: tuple[str, ...] = (),
    **flags: bool,
) -> list[str]:
    order = build_command_order(
        ["x"], experiment="e", run="r", cwd="/", world_size=ranks, steps=steps,
        watch=Watch(), waive=waive, preflight=[],
    )  # fmt: skip
    rows: list[dict[str, Any]] = [{"id": name, "outcome": "inconclusive"} for name in open_]
    rows.append({"id": "preflight", "outcome": "pass"})
    return advise(order, rows, heard, **{"read": True, "planned": False, "fits": fits, **flags})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (advice("completed", heard=()), ["--pattern 'iter"]),
        (advice("completed", heard=(), fits=("tqdm", "epoch")), ["--pattern tqdm does"]),
        (advice("completed", "identity", ranks=2), ["--world-size", "--waive identity"]),
        (advice("completed", steps=None), ["--steps N"]),
        (advice("identity", "coverage"), ["--waive identity --waive coverage"]),
        (advice("coverage"), ["go without: --waive coverage"]),
        (advice("identity", "coverage", waive=("coverage",)), ["go without: --waive identity"]),
        (advice("identity", waive=("identity",)), []),
        (advice("completed", ranks=2, planned=True), []),
        (advice("identity", read=False), []),
        (advice(), []),
    ],
)
def test_what_lacks_is_named_with_the_option_that_gives_it(
    found: list[str], said: list[str]
) -> None:
    assert len(found) == len(said)
    for text, part in zip(found, said, strict=True):
        assert part in text
