"""How is an experiment done again, and how are its decisions checked? The commands, ready to type.

The plan that stands in the report is the resolved one: overrides are in it, and a submission of it
has the same digest.
"""

import re
import shlex

import yaml

from gonogo.contract.decision import ConditionState, DecisionKind
from gonogo.planning.resolve import is_bundled
from service.report.text import block, code
from service.report.view import ReportView

PLAN_FILE = "plan.yaml"
_COMMIT = re.compile(r"([0-9a-f]{7,64})(\+[0-9a-f]+)?")


def repeat_parts(view: ReportView) -> list[str]:
    """Return how to submit the same again, and how to judge and replay what was decided."""
    bundled = is_bundled(view.experiment.plan, view.plan)
    parts = [
        "**The same experiment again**, with the same plan"
        + ("." if bundled else f"; save the plan below as {code(PLAN_FILE)} first."),
        block(submit_lines(view, view.experiment.plan if bundled else PLAN_FILE), "sh"),
    ]
    checks = check_lines(view)
    if checks:
        parts += [
            "**Check it yourself.** This needs no service: run directories and the decisions' own"
            " files are read; a replay exits 1 at the first difference.",
            block("\n".join(checks), "sh"),
        ]
    if not bundled:
        parts += [f"The plan ({code(view.plan_digest[:12])}):", block(plan_text(view), "yaml")]
    return parts


def plan_text(view: ReportView) -> str:
    """Return the resolved plan as YAML."""
    return yaml.safe_dump(dict(view.plan), sort_keys=False, allow_unicode=True, width=100)


def submit_lines(view: ReportView, plan: str) -> str:
    """Return the code to check out and the command that submits the same again."""
    lines = []
    sha = next((said.git_sha for run in view.runs for said in run.ran.values()), None)
    found = _COMMIT.fullmatch(sha or "")
    if found is not None:
        lines.append(f"git checkout {found[1]}")
        if found[2]:
            lines.append(f"# with changes that were not committed, of the digest {found[2][1:]}")
    words = ["gonogo", "submit", plan, "--name", view.experiment.name]
    if view.fault:
        words += ["--set", f"fault={view.fault}"]
    for name, value in sorted(view.experiment.labels.items()):
        words += ["--label", f"{name}={value}"]
    origin = view.experiment.origin
    if origin is not None:
        words += ["--from", f"{origin.experiment}:{origin.phase}@{origin.step}"]
    lines.append(shlex.join(words))
    by_plan = {
        condition.id
        for decision in view.decisions
        if decision.kind is DecisionKind.AUTO
        for condition in decision.conditions
        if condition.state is ConditionState.WAIVED
    }
    for condition in view.experiment.conditions:
        if condition.state is ConditionState.WAIVED and condition.id not in by_plan:
            lines.append(f"# a person waived the condition {condition.id}")
    return "\n".join(lines)


def check_lines(view: ReportView) -> list[str]:
    """Return the commands that judge every run and replay every decision again."""
    lines = [
        f"gonogo judge {shlex.quote(run.artifacts.dir)}"
        + (f"  # on {_word(run.artifacts.host)}" if not run.artifacts.reachable else "")
        for run in view.runs
        if run.artifacts.dir is not None
    ]
    lines += [f"gonogo replay {decision.id}" for decision in view.decisions]
    if view.decisions:
        lines.append(f"gonogo verify --anchor {view.decisions[-1].hash[:16]}")
    return lines


def _word(text: str | None) -> str:
    """Return a text that cannot leave its comment."""
    return " ".join((text or "its host").split())
