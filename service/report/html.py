"""How does the report look as one file? HTML with its pictures and its style inside.

Nothing in it asks for anything elsewhere: a picture that is not the report's own is named and not
shown, raw HTML in a text stays text, and links are those that CommonMark's reader takes for safe.
"""

import base64
import html
from collections.abc import Mapping, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""What the page may load: what it holds."""

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.9rem; }
th, td { border: 1px solid #8886; padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
th { background: #8882; }
code, pre { font: 0.9em ui-monospace, monospace; }
pre { overflow-x: auto; padding: 0.8rem; background: #8881; }
img { max-width: 100%; height: auto; background: white; }
h1, h2, h3 { line-height: 1.2; margin-top: 2rem; }
"""


def render_report(text: str, pictures: Mapping[str, bytes], title: str) -> str:
    """Return the report as one HTML page.

    Args:
        text: the report in Markdown.
        pictures: file name → PNG, of the pictures that it shows.
        title: of the page.
    """
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")

    def image(
        self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        token = tokens[index]
        alt = html.escape(token.content)
        found = pictures.get(str(token.attrs.get("src", "")))
        if found is None:
            return f"<em>{alt}</em>"
        coded = base64.b64encode(found).decode()
        return f'<img alt="{alt}" src="data:image/png;base64,{coded}">'

    reader.add_render_rule("image", image)
    body = reader.render(text)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY.partition("; frame")[0]}">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}</body></html>\n"
    )
