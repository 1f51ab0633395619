"""The report as one HTML file: charts and style inside, details folded below the first page.

The page loads nothing: raw HTML in a text stays text, and only the report's own charts are shown.
"""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

from service.charts import style

POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""What the page may load: what it holds."""
OPEN = "Look here first"
"""Beginning of the heading whose section is unfolded."""
_STYLE = (Path(__file__).parent / "report.css").read_text()
_KINDS = {
    **dict.fromkeys(("GO", "met"), "good"),
    **dict.fromkeys(("CONDITIONAL_GO", "INCONCLUSIVE", "inconclusive", "open"), "open"),
    **dict.fromkeys(("NO_GO", "FAIL", "error", "halt", "missed", "DIFFERS"), "bad"),
}
"""Bold word → class that colours it."""


class _Renderer(RendererHTML):
    """Renders charts, coloured verdicts, scrolling tables and folded sections."""

    pictures: Mapping[str, Markup] = {}

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Return the chart of this name, or the description of any other picture."""
        found = self.pictures.get(str(tokens[idx].attrs.get("src", "")))
        if found is not None:
            return str(found)
        alt = self.renderInlineAsText(tokens[idx].children or (), options, env)
        return f"<em>{html.escape(alt)}</em>"

    def strong_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Colour a verdict."""
        kind = _KINDS.get(tokens[idx + 1].content)
        return "<strong>" if kind is None else f'<strong class="{kind}">'

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Begin a table that scrolls by itself."""
        return '<div class="scroll" tabindex="0"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """End a table."""
        return "</table></div>\n"

    def heading_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Begin a heading; of the second level, a folded section."""
        if tokens[idx].tag != "h2":
            return f"<{tokens[idx].tag}>"
        first = not any(row.tag == "h2" for row in tokens[:idx])
        opened = " open" if tokens[idx + 1].content.startswith(OPEN) else ""
        return f"{'' if first else '</details>'}<details{opened}><summary>"

    def heading_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """End a heading."""
        tag = tokens[idx].tag
        return "</summary>\n" if tag == "h2" else f"</{tag}>\n"


def render_report(text: str, pictures: Mapping[str, Markup], title: str) -> str:
    """Return a report in Markdown as one HTML page; `pictures` has a chart for each file name."""
    reader = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    assert isinstance(reader.renderer, _Renderer)
    reader.renderer.pictures = pictures
    body = reader.render(text)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY.partition("; frame")[0]}">'
        f"<title>{html.escape(title)}</title><style>{style()}{_STYLE}</style></head>\n"
        f"<body>\n{body}{'</details>' if '<details' in body else ''}\n</body></html>\n"
    )
