"""The judge's process: `python -m service.judging.assessing`, with the code of `gonogo judge DIR`.

One line of JSON in on stdin, `{"folder": PATH, "rules": …}`, one line out on stdout, `{"facts": …}`
or `{"error": TEXT}`, until stdin ends.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import GonogoError
from gonogo.contract.rules import Rules
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.record import load_run


def answer(line: str) -> dict[str, Any]:
    """Return the answer to one line."""
    asked = json.loads(line)
    try:
        rules = Rules.model_validate(asked["rules"])
        return {"facts": build_facts(load_run(Path(asked["folder"])), rules).wire()}
    except GonogoError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(requests: TextIO) -> int:
    """Answer until nobody asks any more; what others print goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    with open(answers, "wb", buffering=0) as stream:
        for line in requests:
            stream.write(wire_line(answer(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin))
