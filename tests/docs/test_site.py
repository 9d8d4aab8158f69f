# SPDX-License-Identifier: Apache-2.0
"""The site: built once, without a warning, with every document.

All links lead somewhere, and a page fetches nothing from elsewhere.
"""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.building import load_script, made_once
from tests.docs.tables import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
SITE = load_script("make_site")
DOCUMENTS = {path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]}
# What a browser loads by itself, as opposed to what a person clicks on
LOADED = {
    "link": "href",
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, made by the first worker that asks. The time buys every page as a reader gets it."""
    return made_once(tmp_path_factory, "site", SITE.make_site) / "site"


class Page(HTMLParser):
    """What a page is linked by, links to and loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if tag in LOADED and LOADED[tag] in values and values.get("rel") != "canonical":
            self.loaded.add(values[LOADED[tag]])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def wrong_links(site: Path, pages: dict[Path, Page]) -> list[tuple[str, str]]:
    """Return each link within the site that leads nowhere, with its page."""
    found = []
    for path, page in pages.items():
        for link in page.links | page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            # The page for what is not found is served anywhere, so its links begin at the top
            base = site if parts.path.startswith("/") else path.parent
            target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (target in pages and parts.fragment and not has(pages[target], parts.fragment)):
                found.append((path.relative_to(site).as_posix(), link))
    return found


def has(page: Page, fragment: str) -> bool:
    return unquote(fragment) in page.anchors


def test_every_document_is_a_page_of_the_site() -> None:
    listed = [page for _title, some in SITE.sections() for page in some]
    assert len(listed) == len(set(listed))
    assert set(listed) == DOCUMENTS


def test_every_link_of_the_site_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > len(DOCUMENTS)
    assert wrong_links(site, pages) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there">x</a><a href="b.html#gone">x</a><a href="c.html">x</a>')
    (tmp_path / "b.html").write_text('<h1 id="there">x</h1><img src="gone.svg">')
    found = wrong_links(tmp_path, {path: Page(path) for path in tmp_path.glob("*.html")})
    assert sorted(found) == [("a.html", "b.html#gone"), ("a.html", "c.html"), ("b.html", "gone.svg")]


def test_a_page_loads_nothing_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert {link for page in pages.values() for link in page.loaded if urlsplit(link).netloc} == set()
    # Diagrams and formulas would have a script fetch a library; no page has one
    assert [path for path in pages if re.search(r'class="(mermaid|arithmatex)', path.read_text("utf-8"))] == []
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert styles
    assert [found for style in styles for found in re.findall(r"url\([\"']?(?:https?:)?//[^)]*\)", style)] == []


def test_every_page_can_be_searched_and_is_listed_for_models(site: Path) -> None:
    searched = {item["location"].partition("#")[0] for item in json.loads((site / "search.json").read_text())["items"]}
    listed = set(re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text()))
    pages = {name.removesuffix(".md") + ".html" for name in DOCUMENTS - {"README.md"}}
    assert listed == pages
    assert pages <= searched
    assert all((site / name).is_file() for name in listed)


def test_a_warning_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# A\n\n[b](#gone)\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "a"\ndocs_dir = "pages"\nsite_dir = "site"\n')
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "anchor does not exist" in done.stdout + done.stderr
