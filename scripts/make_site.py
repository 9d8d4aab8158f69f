#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the site in a directory: `python scripts/make_site.py DIR`. Needs the extra `docs`.

zensical.toml lists the pages. They are copied with the files that they link to, so links hold on the site as they do in
the repository; a warning of Zensical's is an error. `llms.txt` is made from the same list.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "zensical.toml"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)|<img[^>]* src=\"([^\"]+)\"")


def sections() -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of the site with their pages, in order."""
    for entry in tomllib.loads(SETTINGS.read_text())["project"]["nav"]:
        ((title, pages),) = entry.items()
        some = [pages] if isinstance(pages, str) else pages
        yield title, [page if isinstance(page, str) else "".join(page.values()) for page in some]


def copy_pages(place: Path) -> None:
    """Copy the pages, and what they link to that is no page."""
    pages = {page for _title, some in sections() for page in some}
    for page in pages:
        text = (ROOT / page).read_text("utf-8")
        put(place / page, text)
        for target in (found for match in LINK.finditer(text) for found in match.groups() if found):
            source = (ROOT / page).parent / target
            name = os.path.relpath(source, ROOT)
            if "://" not in target and name not in pages and source.is_file():
                put(place / name, source.read_text("utf-8"))


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def llms_txt() -> str:
    """Return the list of pages for models: the title of each with its first sentence, by sections."""
    (_home, (home,)), *others = sections()
    title, about = summary(home)
    lines = [f"# {title}", "", f"> {about}", ""]
    for section, pages in others:
        lines += [f"## {section}", ""]
        for page in pages:
            title, about = summary(page)
            lines.append(f"- [{title}]({page.removesuffix('.md')}.html): {about}")
        lines.append("")
    return "\n".join(lines)


def summary(page: str) -> tuple[str, str]:
    """Return the title of a page and its first sentence, without marks."""
    paragraphs = (ROOT / page).read_text("utf-8").split("\n\n")
    title = next(part for part in paragraphs if part.startswith("# ")).removeprefix("# ").strip()
    text = next(part for part in paragraphs if re.match(r"[A-Za-z`*\[]", part))
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    return title, re.split(r"(?<=\.) ", plain.replace("**", ""))[0].removesuffix(":")


def make_site(place: Path) -> str:
    """Build the site in `place`/site and return what Zensical said.

    Raises:
        subprocess.CalledProcessError: Something is wrong, a warning included.
    """
    place.mkdir(parents=True, exist_ok=True)
    copy_pages(place / "pages")
    shutil.copy(SETTINGS, place)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
    (place / "site" / "llms.txt").write_text(llms_txt(), "utf-8")
    return done.stdout


def main(words: list[str]) -> Any:
    if len(words) != 1:
        return "usage: make_site.py DIR"
    try:
        sys.stdout.write(make_site(Path(words[0])))
    except subprocess.CalledProcessError as error:
        return error.stdout
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
