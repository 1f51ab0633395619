"""Do the links of the documentation lead to headings that are there, and to hosts that we mean?

No test reaches the network: a link out of the house is held to its form and to the list of hosts,
so a new host is a line here that somebody has looked at.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.laws.test_docs import PAGES, ROOT

HOSTS = {
    "argo-rollouts.readthedocs.io",
    "jobset.sigs.k8s.io",
    "arxiv.org",
    "clear.ml",
    "docs.determined.ai",
    "docs.skypilot.co",
    "docs.wandb.ai",
    "download.pytorch.org",
    "dstack.ai",
    "github.com",
    "keepachangelog.com",
    "semver.org",
    "www.rfc-editor.org",
}
OURS = "127.0.0.1"
"""What a page shows of the reader's own machine, without TLS."""
ALL = [*PAGES, ROOT / "CHANGELOG.md"]
IDS = [str(page.relative_to(ROOT)) for page in ALL]


def anchor(head: str) -> str:
    """The name by which a heading is linked to, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def outward(page: Path) -> list[str]:
    """Every address that a page shows, whether as a link or as a word."""
    return re.findall(r"https?://[^\s<>\"'`|)\]]*", prose(page))


def wrong_with(link: str) -> str | None:
    """What is wrong with an address, if anything."""
    parts = urlsplit(link)
    if parts.hostname == OURS:
        return None
    if parts.scheme != "https":
        return "not https"
    if parts.hostname not in HOSTS or parts.username or parts.port:
        return "a host that is not on the list"
    return "ends in punctuation" if link[-1] in ".,;:" else None


@pytest.mark.parametrize("page", ALL, ids=IDS)
def test_every_link_out_of_the_house_has_a_form_and_a_host_that_we_know(page: Path) -> None:
    said = {link: wrong_with(link) for link in outward(page)}
    assert {link: wrong for link, wrong in said.items() if wrong} == {}


def headings(page: Path) -> set[str]:
    """The names by which the headings of a page are linked to."""
    return {anchor(head) for head in re.findall(r"^#+ (.+)$", prose(page), re.M)}


@pytest.mark.parametrize("page", ALL, ids=IDS)
def test_every_link_to_a_heading_finds_it(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", prose(page))
    local = [(name, head) for name, head in links if "://" not in name]
    lost = [
        f"{name}#{head}"
        for name, head in local
        if head not in headings(page if not name else page.parent / name)
    ]
    assert lost == []
