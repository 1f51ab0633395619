"""How is an error told? On one line; several problems each on a line of its own, with its place.

gonogo: my.yaml:14: phases.smoke.stepz: unknown key 'stepz'; did you mean steps?
"""

from gonogo.contract.errors import MOST_PROBLEMS, GonogoError, Problem


def refusal_text(error: GonogoError) -> str:
    """Return the text of an error, without a program's name in front."""
    rows = [_told(row) for row in error.problems]
    if len(rows) > 1:
        first = "the first " if len(rows) == MOST_PROBLEMS else ""
        return "\n".join([f"{first}{len(rows)} problems", *(f"  {row}" for row in rows)])
    if len(rows) == 1 and error.problems[0].source is not None:
        return rows[0]
    return " ".join(error.detail.split())


def _told(row: Problem) -> str:
    place = row.source or ""
    if row.line is not None:
        place = f"{place}:{row.line}" if place else f"line {row.line}"
    words = [word for word in (place, row.path, row.message) if word]
    return " ".join(": ".join(words).split())
