"""Where did the time go, in one line? The share that counts, then what took most of the rest."""

from gonogo.cli.output import duration
from gonogo.contract.goodput import KEPT, WORDS, Goodput, least_words, seconds_of

SHOWN = 3


def goodput_line(goodput: Goodput) -> str:
    """Return `81 % effective; queue 41 s, start 12 s, checkpoint 3 s`."""
    spent = [(seconds, part) for part, seconds in seconds_of(goodput).items() if part not in KEPT]
    rest = [
        f"{WORDS[part]} {duration(seconds)}"
        for seconds, part in sorted(spent, reverse=True)[:SHOWN]
        if seconds > 0
    ]
    share = "nothing ran yet"
    if goodput.ratio is not None:
        share = f"{least_words(goodput)}{goodput.ratio:.1%} effective"
    return "; ".join([share, ", ".join(rest)] if rest else [share])
