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

from service.report.text import NONE, anchor

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""What the page may load: what it holds."""

_STYLE = """
:root { color-scheme: light dark; --ink: #16202e; --paper: #fff; --quiet: #5b6878; --rule: #8884;
  --go: #15803d; --warn: #a16207; --bad: #b91c1c; --link: #1d4ed8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4eaf2; --paper: #10161f; --quiet: #93a1b3; --rule: #fff3;
    --go: #4ade80; --warn: #facc15; --bad: #fb8383; --link: #8ab4ff; }
  img { filter: invert(0.9) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto;
  padding: 1rem 1rem 4rem; color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
a { color: var(--link); }
h1, h2, h3, h4 { line-height: 1.25; margin: 1.6rem 0 0.5rem; overflow-wrap: anywhere; }
h1 { margin-top: 0.5rem; }
h2 { border-top: 2px solid var(--rule); padding-top: 1rem; margin-top: 2.5rem; }
.scroll { overflow: auto; max-height: 36rem; margin: 0.8rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; width: max-content; }
th, td { border: 1px solid var(--rule); padding: 0.3rem 0.6rem; text-align: left;
  vertical-align: top; overflow-wrap: break-word; max-width: min(30rem, 62vw); }
th { background: #8882; white-space: nowrap; }
thead:not(:has(th:not(:empty))) { display: none; }
td code { overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; margin: 1.2rem 0 0.5rem; }
code, pre { font: 0.9em/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { overflow: auto; max-height: 36rem; padding: 0.8rem; background: #8881; }
img { max-width: 100%; height: auto; vertical-align: top; }
p:has(> img) { display: grid; gap: 0.8rem;
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
p:has(> img:only-child) { max-width: 44rem; }
p > img { border: 1px solid var(--rule); width: 100%; }
.good { color: var(--go); } .open { color: var(--warn); } .bad { color: var(--bad); }
@media (max-width: 40rem) {
  body { padding: 0.6rem 0.6rem 3rem; font-size: 15px; }
  h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; }
  th, td { padding: 0.25rem 0.4rem; }
  .scroll:has(> .cards) { max-height: none; }
  .cards, .cards tbody { display: block; width: auto; }
  .cards thead { display: none; }
  .cards tr { display: block; border: 1px solid var(--rule); padding: 0.4rem 0.6rem;
    margin: 0.4rem 0; }
  .cards td { display: inline; border: 0; padding: 0 0.8rem 0 0; max-width: none; }
  .cards td.none { display: none; }
  .cards td[data-name]::before { content: attr(data-name) ": "; color: var(--quiet); }
  .cards td:first-child::before { content: ""; }
  .cards td:first-child { display: block; font-weight: 600; }
}
@media print { .scroll, pre { max-height: none; overflow: visible; } }
"""

LONG = 40
"""A cell with more characters makes its table one of sentences."""
FOLDED = ("Artifacts",)
"""Headings whose sections are closed until somebody opens them."""

_KINDS = {
    **dict.fromkeys(("GO", "met"), "good"),
    **dict.fromkeys(("CONDITIONAL_GO", "INCONCLUSIVE", "inconclusive", "open"), "open"),
    **dict.fromkeys(("NO_GO", "FAIL", "error", "halt", "missed", "DIFFERS"), "bad"),
}
"""What is said in bold → how it is coloured, besides being said."""


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
        alt = html.escape(self.renderInlineAsText(token.children or (), options, env))
        found = pictures.get(str(token.attrs.get("src", "")))
        if found is None:
            return f"<em>{alt}</em>"
        coded = base64.b64encode(found).decode()
        return f'<img alt="{alt}" src="data:image/png;base64,{coded}">'

    def strong(
        self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        kind = _KINDS.get(tokens[index + 1].content)
        return "<strong>" if kind is None else f'<strong class="{kind}">'

    def heading(
        self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        token = tokens[index]
        if token.tag != "h2":
            return f"<{token.tag}>"
        return f'<h2 id="{html.escape(anchor(tokens[index + 1].content))}">'

    def table(
        self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        if tokens[index].nesting != 1:
            return "</table></div>\n"
        kind = ' class="cards"' if tokens[index].attrGet("class") else ""
        return f'<div class="scroll" tabindex="0"><table{kind}>\n'

    reader.add_render_rule("image", image)
    reader.add_render_rule("table_open", table)
    reader.add_render_rule("table_close", table)
    reader.add_render_rule("strong_open", strong)
    reader.add_render_rule("heading_open", heading)
    tokens = _folded(reader.parse(text))
    _name_cells(tokens)
    body = reader.renderer.render(tokens, reader.options, {})
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY.partition("; frame")[0]}">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}</body></html>\n"
    )


def _folded(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens with what few read put away under its heading, to be opened."""
    found: list[Token] = []
    open_ = False
    skip = 0
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            if open_:
                found.append(_raw("</details>\n"))
            open_ = tokens[number + 1].content in FOLDED
            if open_:
                head = html.escape(tokens[number + 1].content)
                found.append(_raw(f"<details><summary>{head}</summary>\n"))
                skip = 3
        if skip:
            skip -= 1
        else:
            found.append(token)
    return [*found, _raw("</details>\n")] if open_ else found


def _name_cells(tokens: Sequence[Token]) -> None:
    """Tell each cell its column, and tables of sentences that they are cards where it is narrow."""
    heads: list[str] = []
    place, table = 0, tokens[0] if tokens else None
    for number, token in enumerate(tokens):
        if token.type == "table_open":
            heads, table = [], token
        elif token.type == "th_open":
            heads.append(tokens[number + 1].content)
        elif token.type == "tr_open":
            place = 0
        elif token.type == "td_open":
            said, head = tokens[number + 1].content, heads[place]
            place += 1
            if head:
                token.attrSet("data-name", head)
            if said in ("", NONE):
                token.attrSet("class", "none")
            if table is not None and len(said) > LONG and any(heads):
                table.attrSet("class", "cards")


def _raw(content: str) -> Token:
    return Token("html_block", "", 0, content=content)
