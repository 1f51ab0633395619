"""The help of `gonogo`: commands by topic, exit codes, and suggestions for a misspelt name."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperGroup

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

TOPICS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Begin", ("demo", "up", "run", "submit", "campaign")),
    (
        "Look",
        (
            "status", "list", "show", "watch", "watchdog", "logs", "decisions", "artifacts",
            "report", "forecast", "compare", "workers", "alerts", "open",
        ),
    ),
    ("Steer", ("halt", "resume", "rerun", "promote", "override", "takeover", "cancel")),
    ("Judge, without a service", ("judge", "replay", "verify", "simulate")),
    (
        "Prepare and look after",
        (
            "plans", "flags", "doctor", "serve", "worker", "keys", "db", "backup", "restore",
            "prune",
        ),
    ),
)  # fmt: skip
"""Commands in the order of the help; one that is in no topic comes last, under `More`."""

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "abort": ("cancel",),
    "approve": ("promote",),
    "delete": ("cancel",),
    "kill": ("halt", "cancel"),
    "log": ("logs",),
    "ls": ("list",),
    "pause": ("halt",),
    "ps": ("status", "list"),
    "retry": ("rerun", "resume"),
    "start": ("submit", "up"),
    "stop": ("halt", "cancel"),
    "tail": ("logs",),
    "web": ("open",),
}
"""Names that other tools use."""


def near_misses(name: str, known: Iterable[str]) -> list[str]:
    """Return the commands that were likely meant by `name`, the likeliest first."""
    names = list(known)
    meant = [other for other in OTHER_NAMES.get(name, ()) if other in names]
    return meant or difflib.get_close_matches(name, names, n=3)


class Commands(TyperGroup):
    """The commands of `gonogo`."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C aborts it with a word, which typer alone would leave out."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a command by its name, or suggest names."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            meant = near_misses(args[0], self.list_commands(ctx))
            hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
            ctx.fail(f"no such command: {args[0]}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by topic; no text is cut."""
        rest = list(self.list_commands(ctx))
        for topic, names in [*TOPICS, ("More", tuple(rest))]:
            rows = [(name, self._short(ctx, name)) for name in names if name in rest]
            rest = [name for name in rest if name not in names]
            if rows:
                with formatter.section(topic):
                    formatter.write_dl(rows)

    def _short(self, ctx: Any, name: str) -> str:
        command = self.get_command(ctx, name)
        text = (command.help or "") if command is not None else ""
        return " ".join(text.split("\n\n")[0].split())

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the exit codes, and the first command to try."""
        del ctx
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), words) for code, words in EXIT_WORDS.items()])
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("Start with: gonogo demo")


def usage_text(error: Exception) -> str:
    """Return a usage error as one line: what is wrong, what may be meant, where to read on."""
    text = str(getattr(error, "format_message", error.__str__)()).strip().rstrip(".")
    option, near = getattr(error, "option_name", None), getattr(error, "possibilities", None)
    if option is not None and near is not None:
        text = f"no such option: {option}"
        text += f"; did you mean {' or '.join(near)}?" if near else ""
    text = _choice_hint(text.replace("Value error, ", ""))
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "gonogo"
    line = f"{path}: {text[:1].lower()}{text[1:]} (see {path} --help)"
    return " ".join(line.split())


def _choice_hint(text: str) -> str:
    """Return a text about a wrong choice with the nearest choice."""
    match = re.search(r"'([^']+)' is not one of (.+)", text)
    if match is None:
        return text
    choices = {choice.lower(): choice for choice in re.findall(r"'([^']+)'", match[2])}
    close = difflib.get_close_matches(match[1].lower(), choices, n=1)
    return f"{text}; did you mean {choices[close[0]]}?" if close else text


UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What typer raises for a command line that it cannot read; typer exports only one subclass."""
