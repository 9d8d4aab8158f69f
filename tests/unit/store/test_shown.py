# SPDX-License-Identifier: Apache-2.0
"""What was shown on a terminal: named by the beginning of its digest, compared in full, forgotten after a while."""

import pytest

from unspill.model.change import Consent
from unspill.store import permissions as module
from unspill.store.db import Store

ONE = "7f3a9c" + "1" * 58
OTHER = "7f3a9c" + "2" * 58
ROOT = b"/home/ann/project"


def consent(digest: str, path: bytes = b".envrc", root: bytes = ROOT) -> Consent:
    return Consent(root=root, path=path, digest=digest)


def test_a_token_names_what_was_shown_at_its_path(store: Store) -> None:
    store.shown.put("s", [consent(ONE)])
    assert store.shown.has("s", consent(ONE), "7f3a9c")
    assert store.shown.has("s", consent(ONE), ONE)


NEVER = {
    "another content by the same beginning": ("s", consent(OTHER), "7f3a9c"),
    "another path": ("s", consent(ONE, b"sub/.envrc"), "7f3a9c"),
    "another root": ("s", consent(ONE, root=b"/home/ann/library"), "7f3a9c"),
    "another sandbox": ("t", consent(ONE), "7f3a9c"),
    "another token": ("s", consent(ONE), "7f3a9d"),
    "a pattern": ("s", consent(ONE), "7f%"),
}


@pytest.mark.parametrize("case", NEVER)
def test_it_names_nothing_else(store: Store, case: str) -> None:
    sandbox, asked, token = NEVER[case]
    store.shown.put("s", [consent(ONE)])
    assert not store.shown.has(sandbox, asked, token)


def test_a_token_that_could_name_two_names_none(store: Store) -> None:
    store.shown.put("s", [consent(ONE), consent(OTHER)])
    assert not store.shown.has("s", consent(ONE), "7f3a9c")
    assert store.shown.has("s", consent(ONE), "7f3a9c1")


def test_a_token_is_as_long_as_it_must_be(store: Store) -> None:
    assert store.shown.token_of("s", ROOT, b".envrc", ONE) == "7f3a9c"
    store.shown.put("s", [consent(ONE)])
    assert store.shown.token_of("s", ROOT, b".envrc", ONE) == "7f3a9c"
    assert store.shown.token_of("s", ROOT, b".envrc", OTHER) == "7f3a9c2"


def test_what_was_refused_was_never_shown(store: Store) -> None:
    store.shown.put("s", [consent(ONE), consent(ONE, b"other")])
    store.shown.drop("s", consent(ONE))
    assert not store.shown.has("s", consent(ONE), "7f3a9c")
    assert store.shown.has("s", consent(ONE, b"other"), "7f3a9c")


def test_what_was_shown_long_ago_is_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.shown.put("s", [consent(ONE)])
    monkeypatch.setattr(module, "KEPT_NS", -1)
    store.shown.put("s", [])
    assert not store.shown.has("s", consent(ONE), "7f3a9c")


def test_it_goes_with_its_sandbox(store: Store) -> None:
    row = store.sandboxes.get_or_create(b"/p", "default", device=1, inode=2)
    store.shown.put(row.id, [consent(ONE)])
    store.sandboxes.remove(row.id)
    assert not store.shown.has(row.id, consent(ONE), "7f3a9c")
