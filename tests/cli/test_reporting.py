"""`gonogo report -o`: one HTML file, or Markdown with its pictures beside it."""

from __future__ import annotations

import re
from pathlib import Path

from gonogo.cli.exits import Exit
from gonogo.planning.source import bundled_plan
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane


def test_a_report_is_written_whole(plane: Plane, gonogo: Gonogo, tmp_path: Path) -> None:
    plan = bundled_plan("demo")
    experiment = plane.submit({**plan, "phases": plan["phases"][2:3]}, name="mine")
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    plane.wait_state(experiment, "finished")
    page, text = tmp_path / "report.html", tmp_path / "report.md"
    assert gonogo("report", "mine", "-o", str(page)).code == Exit.OK
    assert "<h1>GO: " in page.read_text()
    assert "<svg" in page.read_text()
    assert gonogo("report", "mine", "-o", str(text)).code == Exit.OK
    pictures = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert {"overview.svg", "smoke-loss.svg", "smoke-steps.svg"} <= set(pictures)
    assert sorted(re.findall(r"\]\((\S+\.svg)\)", text.read_text())) == pictures
    refused = gonogo("report", "mine", "-o", str(tmp_path / "no" / "x.html"))
    assert refused.code == Exit.BAD_INPUT
    assert "No such file or directory" in refused.err
    refused = gonogo("report", "mine", "-o", str(tmp_path / "x.pdf"))
    assert (refused.code, "expected a name that ends in .html or .md" in refused.err) == (2, True)
    assert not (tmp_path / "x.pdf").exists()
