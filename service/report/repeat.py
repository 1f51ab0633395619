"""The commands that submit the same experiment again and check its decisions."""

import re
import shlex
from collections.abc import Iterator

import yaml

from gonogo.planning.resolve import is_bundled
from service.report.view import ReportView
from service.text import block, code

PLAN_FILE = "plan.yaml"
_COMMIT = re.compile(r"([0-9a-f]{7,64})(\+[0-9a-f]+)?")


def repeat_parts(view: ReportView) -> list[str]:
    """Return the commands; the plan is the resolved one, with its overrides."""
    bundled = is_bundled(view.experiment.plan, view.plan)
    plan = view.experiment.plan if bundled else PLAN_FILE
    parts = [
        "**The same experiment again**"
        + ("." if bundled else f"; save the plan below as {code(PLAN_FILE)} first."),
        block("\n".join(submit_lines(view, plan)), "sh"),
    ]
    checks = "\n".join(check_lines(view))
    if checks:
        parts += ["**Check it yourself.** This needs no service.", block(checks, "sh")]
    if not bundled:
        parts += [f"The plan ({code(view.plan_digest[:12])}):", block(plan_text(view), "yaml")]
    return parts


def plan_text(view: ReportView) -> str:
    """Return the resolved plan as YAML."""
    return yaml.safe_dump(dict(view.plan), sort_keys=False, allow_unicode=True, width=100)


def submit_lines(view: ReportView, plan: str) -> Iterator[str]:
    """Yield the code to check out and the command that submits the same again."""
    sha = next((ran.git_sha for run in view.runs for ran in run.ran.values()), None)
    found = _COMMIT.fullmatch(sha or "")
    if found is not None:
        yield f"git checkout {found[1]}"
        if found[2]:
            yield f"# with changes that were not committed, of the digest {found[2][1:]}"
    words = ["gonogo", "submit", plan, "--name", view.experiment.name]
    words += ["--set", f"fault={view.fault}"] if view.fault else []
    for name, value in sorted(view.experiment.labels.items()):
        words += ["--label", f"{name}={value}"]
    origin = view.experiment.origin
    if origin is not None:
        words += ["--from", f"{origin.experiment}:{origin.phase}@{origin.step}"]
    yield shlex.join(words)


def check_lines(view: ReportView) -> Iterator[str]:
    """Yield the commands that judge every run and replay every decision again."""
    for run in view.runs:
        if run.artifacts.dir is not None:
            host = " ".join((run.artifacts.host or "its host").split())
            where = "" if run.artifacts.reachable else f"  # on {host}"
            yield f"gonogo judge {shlex.quote(run.artifacts.dir)}{where}"
    yield from (f"gonogo replay {decision.id}" for decision in view.decisions)
    if view.decisions:
        yield f"gonogo verify --anchor {view.decisions[-1].hash[:16]}"
