# SPDX-License-Identifier: Apache-2.0
"""The table of docs/secrets.md, made from the code's own rows: `python -m tests.docs.secrets` writes it."""

from pathlib import Path
from typing import Final

from unspill.policy.secrets import PROJECT_SECRETS

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "secrets.md"
HEADER: Final = "| names | why |"


def with_table(text: str) -> str:
    """Return the document with its table, which is the last thing in it, made anew."""
    listed = {reason: " ".join(f"`{name.decode()}`" for name in names) for reason, names in PROJECT_SECRETS.items()}
    rows = [f"| {names} | {reason} |" for reason, names in listed.items()]
    return text[: text.index(HEADER)] + "\n".join([HEADER, "|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text("utf-8")), "utf-8")
