"""Load plans and training configurations; keep what an experiment freezes of them.

`parse_plan` makes a plan of data and names every problem with its path, what was found and what
was expected. What a plan must hold beyond its shape is checked in `checks`.
"""

import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, ValidationError

import gonogo
from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import NotFound, Problem, hint
from gonogo.contract.plan import Plan
from gonogo.contract.wire import Recorded
from gonogo.contract.yaml_text import parse_yaml
from gonogo.judge.facts.metrics import metric_names, metric_row
from gonogo.planning.overrides import overridden
from gonogo.planning.problems import problems_of, refuse, rejected


@cache
def _bundled() -> dict[str, str]:
    folder = resources.files("gonogo.contract").joinpath("plans")
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    found = {entry.name.removesuffix(".yaml"): entry.read_text() for entry in files}
    return {name: found[name] for name in sorted(found)}


@cache
def _parsed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = parse_yaml(_bundled()[name])
    return found


def bundled_plan_names() -> list[str]:
    """Return the names of the experiments' plans that ship with gonogo."""
    return [name for name in _bundled() if "campaign" not in _parsed(name)]


def bundled_campaign_names() -> list[str]:
    """Return the names of the campaigns that ship with gonogo."""
    return [name for name in _bundled() if "campaign" in _parsed(name)]


def bundled_plan(name: str) -> dict[str, Any]:
    """Return a bundled plan's YAML as data, yours to change; it is read once."""
    if name not in _bundled():
        known = [*bundled_plan_names(), *bundled_campaign_names()]
        raise NotFound(f"no plan {name!r}; there are {', '.join(known)}")
    found: dict[str, Any] = plain_copy(_parsed(name))
    return found


def with_overrides(data: Mapping[str, Any], sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan data with dotted overrides applied; refuse paths that lead nowhere."""
    result, wrong = overridden(data, sets)
    refuse(wrong, "set ")
    return result


def parse_plan(data: Mapping[str, Any]) -> Plan:
    """Return the plan that `data` describes."""
    plan = parse_frozen_plan(data)
    refuse(unknown_metrics(plan))
    return plan


def unknown_metrics(plan: Plan) -> Iterator[Problem]:
    """Yield a problem for each criterion whose metric nothing here knows."""
    for phase in plan.phases:
        for row in phase.gate:
            if metric_row(row.metric) is None:
                yield Problem(
                    path=f"phases.{phase.name}.gate.{row.id}.metric",
                    message=f"found {row.metric!r}; {hint(str(row.metric), metric_names())}",
                )


def parse_frozen_plan(data: Mapping[str, Any]) -> Plan:
    """Return a plan that was valid when it was submitted, whatever is installed here."""
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        raise rejected(problems_of(error, data)) from error


class ResolvedPlan(Recorded):
    """A plan with its overrides, the whole training configuration, and a fault to inject."""

    plan: dict[str, Any]
    train: dict[str, Any]
    fault: str | None = None
    _parsed: Plan | None = PrivateAttr(default=None)
    _digest: str | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, plan: Plan, train: dict[str, Any], fault: str | None) -> "ResolvedPlan":
        """Return the frozen form of a plan that is a model already."""
        found = cls(plan=plan.canonical(), train=train, fault=fault)
        found._parsed = plan
        return found

    def parsed(self) -> Plan:
        """Return the plan as a model; read once."""
        if self._parsed is None:
            self._parsed = parse_frozen_plan(self.plan)
        return self._parsed

    def plan_digest(self) -> str:
        """Return the digest of the plan; taken once."""
        if self._digest is None:
            self._digest = self.parsed().digest()
        return self._digest


def checkout_root() -> Path:
    """Return the checkout (or image) that holds the applications."""
    root = Path(gonogo.__file__).resolve().parent.parent
    if not (root / "nsa" / "configs").is_dir():
        raise NotFound("this needs a checkout or the image; an installed gonogo is the core alone")
    return root


def load_train_config(name: str) -> dict[str, Any]:
    """Return the training configuration called `name` (nsa/configs/NAME.yaml), yours to change.

    An installed gonogo has copies of all, so that it judges as a checkout does. A file is read
    again when it has changed.
    """
    folder = _folder()
    known = {entry.name.removesuffix(".yaml"): entry for entry in _entries(folder)}
    if name not in known:
        message = f"found {name!r}; {hint(name, known)}"
        problem = Problem(path="train.config", message=message)
        raise NotFound(f"train.config: {message}", problems=(problem,))
    entry = known[name]
    if not isinstance(entry, Path):
        found: dict[str, Any] = parse_yaml(entry.read_text())
        return found
    found = plain_copy(_read(entry, entry.stat().st_mtime_ns))
    return found


def configurations_stamp() -> tuple[tuple[str, int], ...]:
    """Return what changes whenever a training configuration does: each file and its time."""
    folder = _folder()
    if not isinstance(folder, Path):
        return ()
    with os.scandir(folder) as entries:
        return tuple(sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries))


def _folder() -> Traversable:
    try:
        return checkout_root() / "nsa" / "configs"
    except NotFound:
        return resources.files("gonogo.planning").joinpath("configs")


def _entries(folder: Traversable) -> list[Traversable]:
    return [entry for entry in folder.iterdir() if entry.name.endswith(".yaml")]


@cache
def _read(entry: Path, changed: int) -> dict[str, Any]:
    del changed  # the time is a part of the cache's key
    found: dict[str, Any] = parse_yaml(entry.read_text())
    return found
