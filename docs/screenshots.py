"""Make the picture of the README: the page of a run that gonogo has halted.

    apt-get install chromium
    python docs/screenshots.py

Starts a service in a folder of its own, submits the demo with a hang, and photographs its page.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/images/halted-run.png"
WIDTH, HEIGHT = 1180, 1000
LIMIT_S = 600
"""For the whole experiment, on two slow cores."""


def main() -> None:
    """Run the demo with a fault and write the picture."""
    with tempfile.TemporaryDirectory() as home:
        environ = os.environ | {"GONOGO_HOME": home, "PYTHONPATH": str(ROOT)}
        up = subprocess.Popen(
            [sys.executable, "-m", "gonogo.cli.main", "up", "--port", "0"],
            cwd=ROOT,
            env=environ,
        )
        try:
            experiment = halted_experiment(environ)
            link = gonogo(environ, "open", experiment, "--json")["sign_in"]
            photograph(str(link), home)
        finally:
            up.terminate()
            up.wait(timeout=120)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size // 1000} kB")


def halted_experiment(environ: dict[str, str]) -> str:
    """Return the id of a demo that has hung and was judged."""
    end = time.monotonic() + LIMIT_S
    while not (Path(environ["GONOGO_HOME"]) / "service.json").exists():
        time.sleep(0.5)
        if time.monotonic() > end:
            raise SystemExit("the service does not start")
    submitted = gonogo(environ, "submit", "demo", "--set", "fault=hang", "--json")
    while time.monotonic() < end:
        shown = gonogo(environ, "show", submitted["id"], "--json")
        if shown["state"] == "finished":
            return str(submitted["id"])
        time.sleep(2)
    raise SystemExit("the experiment does not end")


def gonogo(environ: dict[str, str], *words: str) -> dict[str, object]:
    """Return what a command prints as JSON."""
    command = [sys.executable, "-m", "gonogo.cli.main", *words]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout))


def photograph(link: str, folder: str) -> None:
    """Write what a browser shows at the top of a page."""
    PICTURE.parent.mkdir(exist_ok=True)
    command = ["chromium", "--headless=new", "--no-sandbox", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder}/browser", f"--window-size={WIDTH},{HEIGHT}"]
    command += ["--timeout=8000", f"--screenshot={PICTURE}", link]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
