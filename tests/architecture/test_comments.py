# SPDX-License-Identifier: Apache-2.0
"""Every file says its licence and what it is for; comments are sentences, not banners."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.architecture.sources import sources

SPDX = "# SPDX-License-Identifier: Apache-2.0"
BANNER = re.compile(r"([^\w\s.])\1{3,}|[\u2500-\u259f]{2,}")


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_every_file_starts_with_its_licence() -> None:
    assert [source.path for source in sources() if SPDX not in source.text.splitlines()[:2]] == []


def test_every_module_says_what_it_is_for() -> None:
    undocumented = [source.path for source in sources() if source.tree.body and not ast.get_docstring(source.tree)]
    assert undocumented == []


def test_no_comment_is_a_banner() -> None:
    banners = [
        f"{source.path}:{line} {comment}"
        for source in sources()
        for line, comment in comments(source.text)
        if BANNER.search(comment)
    ]
    assert banners == []


@pytest.mark.parametrize(
    ("comment", "is_banner"),
    [
        ("# ------------", True),
        ("# === Part ===", False),
        ("# ==== Part ====", True),
        ("############", True),
        ("# ── Part ──", True),
        ("# a reason -- and its consequence", False),
        ("# and so on ....", False),
    ],
)
def test_banners_are_told_from_sentences(comment: str, is_banner: bool) -> None:
    assert bool(BANNER.search(comment)) is is_banner
