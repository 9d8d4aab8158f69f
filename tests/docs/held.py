# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/held.md, made from the code's own rows: `python -m tests.docs.held` writes them."""

from pathlib import Path
from typing import Final

from unspill.policy.git import EXCLUDED_KEYS, FORMAT_KEYS, ORDINARY_KEYS
from unspill.policy.held import FLAGGED, HELD, RULES, PathNames

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "held.md"
ROWS_HEADER: Final = "| what | verdict | why | when it is deleted |"
ORIGINS_HEADER: Final = "| names | tool | known from | last tried |"
KEYS_HEADER: Final = "| keys | with what value |"
VALUES: Final = {
    "any": "any",
    "address": "an address that holds no option, program or transport, nor a path that leads out of the project; one "
    "that is new or changes is flagged",
    "update": "`checkout`, `rebase`, `merge`, `none`",
    "name": "anything but an option or a command",
    "refspec": "a refspec that fetches into the remote's own references",
    "boolean": "yes or no, in a form that git knows",
    "recursion": "yes, no or `on-demand`",
    "version": "`0` or `1`",
}
FORMAT_VALUES: Final = {
    "any": "any, if the repository is new",
    "name": "anything but an option or a command, if the repository is new",
    "work tree": "if the repository of a module is new: the relative path of a directory whose `.git` file leads "
    "back to it, not in a git directory and not behind a link",
}


def rows() -> list[str]:
    """Return the lines of the table of paths: the held ones, the flagged ones, the ordinary ones."""
    cells = [(names_of(row), row.verdict, row.reason, row.deleted) for row in (*HELD, *FLAGGED)]
    cells += [(row.what, row.verdict, row.reason, row.deleted) for row in RULES]
    order = ["held", "flagged", "ordinary"]
    return [f"| {' | '.join(row)} |" for row in sorted(cells, key=lambda row: order.index(row[1]))]


def origins() -> list[str]:
    """Return the lines of the table of tools: the names of each, how that is known, and when it was tried."""
    return [
        f"| {names_of(origin)} | {origin.tool} | {origin.source} | {origin.tried or 'documented'} |"
        for row in HELD
        for origin in row.origins
    ]


def names_of(row: PathNames) -> str:
    """Return names as patterns."""
    patterns = [name.decode() for name in row.files]
    patterns += [f"{name.decode()}/" for name in row.directories]
    patterns += [pattern.decode() for pattern in row.patterns]
    patterns += [f"*.{suffix.decode()}" for suffix in row.suffixes]
    patterns += [f"{stem.decode()}.*" for stem in row.stems]
    patterns += [f"*{ending.decode()}" for ending in row.endings]
    listed = " ".join(f"`{pattern}`" for pattern in patterns)
    excepted = " ".join(f"`{name.decode()}`" for name in row.but)
    return f"{listed}, but not {excepted}" if excepted else listed


def keys() -> list[str]:
    """Return the lines of the table of settings, one for each kind of value."""
    lines = []
    for check, words in VALUES.items():
        patterns = [key for key, wanted in ORDINARY_KEYS.items() if wanted == check]
        if patterns:
            lines.append(f"| {' '.join(f'`{key}`' for key in patterns)} | {words} |")
    for check, words in FORMAT_VALUES.items():
        patterns = [key for key, wanted in FORMAT_KEYS.items() if wanted == check]
        lines.append(f"| {' '.join(f'`{key}`' for key in patterns)} | {words} |")
    return [
        *lines,
        f"| {' '.join(f'`{key}`' for key in sorted(EXCLUDED_KEYS))} | none, although `branch.*.*` covers it |",
    ]


def with_tables(text: str) -> str:
    """Return the document with its tables made anew."""
    for header, lines in ((ROWS_HEADER, rows()), (ORIGINS_HEADER, origins()), (KEYS_HEADER, keys())):
        before, _, after = text.partition(header + "\n")
        rest = after.split("\n")
        end = next(index for index, line in enumerate(rest) if not line.startswith("|"))
        text = "\n".join([before + header, "|---" * (header.count("|") - 1) + "|", *lines, *rest[end:]])
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text("utf-8")), "utf-8")
