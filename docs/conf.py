"""The site of these pages: `make docs` builds it with Sphinx, MyST and Furo, without a network.

A warning is an error, so every link to a page, a heading or a file of the tree is checked.
"""

from typing import Any

from pygments.lexers.special import TextLexer

project = "gonogo"
copyright = "gonogo authors"
extensions = ["myst_parser"]
exclude_patterns = ["examples"]
root_doc = "index"
html_theme = "furo"
html_title = "gonogo"
html_copy_source = False
myst_heading_anchors = 4

_NAVIGATION = """
```{{toctree}}
:hidden:
:glob:
:caption: {caption}

{pages}
```
"""
_PARTS = {
    "Start": ["start/install", "start/first-run", "start/first-plan", "start/first-cluster"],
    "How to": ["how-to/*"],
    "Reference": ["reference/*", "detectors", "doubts"],
    "Explanation": ["explanation/*", "explanation/decisions/index"],
}


def _add_navigation(app: Any, docname: str, source: list[str]) -> None:
    """Append the navigation to the start page, where a code host would show it as code."""
    if docname == root_doc:
        parts = (_NAVIGATION.format(caption=name, pages="\n".join(p)) for name, p in _PARTS.items())
        source[0] += "".join(parts)
    if docname == "explanation/decisions/index":
        source[0] += "\n```{toctree}\n:glob:\n\n0*\n```\n"


def setup(app: Any) -> None:
    """Connect the navigation; diagrams are shown as text."""
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", _add_navigation)
