"""How does an account of time look on a page? One bar of parts as inline SVG, and its legend."""

from markupsafe import Markup

from gonogo.contract.goodput import WORDS, Goodput, Part, seconds_of
from service.report.text import duration, percent

WIDTH, HEIGHT = 1000, 28


def goodput_bar(goodput: Goodput) -> Markup:
    """Return the bar; a sentence where no time has passed."""
    if goodput.wall_s <= 0:
        return Markup('<p class="quiet">No time has passed.</p>')
    parts, x = [], 0.0
    for part, seconds in _spent(goodput):
        width = WIDTH * seconds / goodput.wall_s
        rect = Markup('<rect class="part-{}" x="{}" y="0" width="{}" height="{}"><title>{}</title>')
        told = f"{WORDS[part]}: {duration(seconds)}"
        parts += [rect.format(part.value, f"{x:.2f}", f"{width:.2f}", HEIGHT, told)]
        parts += [Markup("</rect>")]
        x += width
    words = ", ".join(f"{WORDS[part]} {duration(s)}" for part, s in _spent(goodput))
    return Markup(
        '<svg class="chart goodput" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"'
        ' aria-label="Where the time went: {}">{}</svg>'
    ).format(WIDTH, HEIGHT, words, Markup("").join(parts))


def goodput_rows(goodput: Goodput) -> list[tuple[str, str, str, str]]:
    """Return (part, its words, its time, its share) of all parts that took any."""
    return [
        (part.value, WORDS[part], duration(seconds), percent(seconds, goodput.wall_s))
        for part, seconds in _spent(goodput)
    ]


def _spent(goodput: Goodput) -> list[tuple[Part, float]]:
    return [(part, seconds) for part, seconds in seconds_of(goodput).items() if seconds > 0]
