"""Check that docs, docstrings, comments and messages are plain English.

`python docs/prose.py [PATH …]` fails on sentences of more than 35 words and on bent words.
`--figures` prints the mean length of the sentences of each path instead.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

LONGEST = 35
PATHS = ("gonogo", "service", "worker", "nsa", "lab", "bench", "docs", "tests", "README.md")
BENT = (
    (r"^(Where .*,|(Who|Whose|Whom|Of|Nor|Nobody who)\b(?!.*\?$))", "start with the subject"),
    (r"\b(?i:whoever|whomever|of whom|to whom)\b", "start with the subject"),
    (r"\b(?i:told|tells?|telling)\b", "report, send, log, print or show"),
    (r"\b(?i:said)\b", "reported, sent, logged or printed"),
    (r"\b(?i:goes|going|went|go|gone) on\b", "continue or resume"),
    (r"\b(?i:anew)\b", "again"),
    (r"\b(?i:owed|owes?)\b", "missing or required"),
    (r"\b(?i:brought)\b", "provided"),
    (r"\b(?i:stands?|keeps?|kept|sets?) apart\b", "separate"),
    (r"\b(?i:therein|thereof|whereof|hitherto|thence|whence|hence)\b", "use a plain word"),
    (r"\b(?i:who) (trains|asks|reads|waits|runs|watches|calls)\b", "name the process or person"),
)
CODE = r"\b(SELECT|UPDATE|INSERT|DELETE)\b|\\[wdsb]|[{}<>]{2}|\A[^a-z]+\Z|(?m:^import )|recent call"


def sentences(text: str) -> list[str]:
    """Sentences of running text; inline code counts as one word, a link as its label."""
    text = re.sub(r"``[^`]+``|`[^`]+`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"https?://\S+", "link", text)
    text = re.sub(r"\b(e\.g|i\.e|etc|vs|cf|Eq|Sec|Fig|No)\.", r"\1", text)
    return re.split(r"(?<=[.!?])[\"')*_]*\s+", " ".join(text.split()))


def blocks(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph, list item, heading and table cell; code is left out."""
    fence, kept, start = False, "", first
    for number, line in enumerate([*text.splitlines(), ""], start=first):
        bare = line.strip()
        fence ^= bare.startswith(("```", "~~~"))
        code = fence or bare.startswith(("```", "~~~")) or (line.startswith("    ") and not kept)
        if kept and (not bare or code or re.match(r"([-*+]|\d+[.)]) |#+ |\||>|:\w+", bare)):
            yield start, kept
            kept = ""
        if bare.startswith("|") and not code:
            yield from ((number, cell.strip()) for cell in bare.split("|") if cell.strip(" -:"))
        elif bare and not code:
            start = start if kept else number
            kept = f"{kept} {re.sub(r'^([-*+]|[0-9]+[.)]|#+|>) ', '', bare)}".strip()


def level(text: str) -> str:
    """The text without the indentation that its lines have in common, the first apart."""
    head, _, rest = text.partition("\n")
    depths = [len(line) - len(line.lstrip()) for line in rest.splitlines() if line.strip()]
    return "\n".join([head, *(line[min(depths, default=0) :] for line in rest.splitlines())])


def documented(tree: ast.Module) -> set[ast.expr]:
    """The string nodes that stand alone: docstrings of modules, classes, functions and fields."""
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {node for node in alone if isinstance(node, ast.Constant)}


def texts_of_code(source: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text and whether it is documentation: docstrings, messages and comments."""
    tree = ast.parse(source)
    docs = documented(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            message = node.value.count(" ") >= 5 and not re.search(CODE, node.value)
            if node in docs or message:
                found = blocks(level(node.value), node.lineno)
                yield from ((line, block, node in docs) for line, block in found)
    yield from ((line, text, True) for line, text in comments(source))


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of the comments; those on adjacent lines are joined."""
    kept, start, last = "", 0, -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|!)", token.string):
            alone, line = token.line.lstrip().startswith("#"), token.start[0]
            joined = kept and alone and line == last + 1
            if kept and not joined:
                yield start, kept
            start = start if joined else line
            kept = f"{kept if joined else ''} {token.string.lstrip('# ')}".strip()
            last = line if alone else -1
    if kept:
        yield start, kept


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, text and whether it is documentation, of a page or a module."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return texts_of_code(source)
    return ((line, block, True) for line, block in blocks(source))


def check(path: Path, lengths: list[int]) -> Iterator[str]:
    """Problems of a file, one line each; the lengths of its sentences are added to `lengths`."""
    for line, text, documentation in texts(path):
        for sentence in sentences(text):
            words = len(re.findall(r"\S*\w\S*", sentence))
            if documentation and words > 1:
                lengths.append(words)
            found = [f"{words} words, at most {LONGEST}"] if words > LONGEST else []
            hits = ((re.search(bent, sentence), advice) for bent, advice in BENT)
            found += [f"{hit[0][:20]!r}: {advice}" for hit, advice in hits if hit]
            if found:
                yield f"{path}:{line}: {'; '.join(found)}: {sentence[:90]}"


def main(arguments: list[str]) -> int:
    """Print the problems, or the figures; 1 if there is a problem."""
    total = 0
    for root in [Path(name) for name in arguments if not name.startswith("--")] or map(Path, PATHS):
        lengths: list[int] = []
        files = [root] if root.is_file() else sorted([*root.rglob("*.py"), *root.rglob("*.md")])
        problems = [problem for path in files for problem in check(path, lengths)]
        total += len(problems)
        if "--figures" in arguments:
            mean = sum(lengths) / max(len(lengths), 1)
            long = 100 * sum(words > 30 for words in lengths) / max(len(lengths), 1)
            problems = [f"{root}: mean sentence {mean:.1f} words, {long:.1f} % over 30"]
        print("\n".join(problems), end="\n" if problems else "")
    print(f"{total} problems", file=sys.stderr)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
