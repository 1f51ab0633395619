"""What do the exit codes mean? The words of `gonogo --help`, README and docs/reference/cli.md."""

EXIT_WORDS: dict[int, str] = {
    0: "GO, or done",
    1: "unexpected, or different from what was recorded",
    2: "bad input",
    3: "not found",
    4: "not allowed",
    5: "the service does not answer",
    10: "NO_GO",
    11: "CONDITIONAL_GO",
    12: "INCONCLUSIVE",
    13: "cancelled",
    14: "decided by hand: an override stands, whatever it says",
    130: "interrupted by Ctrl-C",
}
