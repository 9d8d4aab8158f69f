# SPDX-License-Identifier: Apache-2.0
"""Where symlinks lead, told by their text."""

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.changes.scan import leads_out

ROOT = b"/home/me/project"


@pytest.mark.parametrize(
    ("path", "target", "wanted"),
    [
        (b"l", b"a", False),
        (b"l", b".", False),
        (b"l", b"..", True),
        (b"d/l", b"..", False),
        (b"d/l", b"../..", True),
        (b"d/l", b"../../project/a", True),
        (b"l", b"./././a/../b", False),
        (b"l", b"a/../../b", True),
        (b"l", b"/", True),
        (b"l", b"/etc", True),
        (b"l", ROOT, False),
        (b"l", ROOT + b"/a/b", False),
        (b"l", ROOT + b"/../other", True),
        (b"l", ROOT + b"-other", True),
        (b"l", b"//home//me/./project/a", False),
        (b"l", b"/home/me/x/../project/a", False),
        (b"l", b"/../../home/me/project", False),
        (b"l", b"/home/me", True),
    ],
)
def test_a_target_is_inside_or_leads_out(path: bytes, target: bytes, wanted: bool) -> None:
    assert leads_out(path, target, ROOT) == wanted


PARTS = st.lists(st.sampled_from([b"a", b"b", b"..", b".", b""]), min_size=1, max_size=6)


@given(path=st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=4), target=PARTS)
def test_relative_targets_agree_with_normalised_paths(path: list[bytes], target: list[bytes]) -> None:
    text = b"/".join(target).lstrip(b"/") or b"."
    # Deep enough that climbing out of the root never reaches the top, where ".." stays.
    deep = b"/r" * 10
    end = posixpath.normpath(posixpath.join(deep, *path[:-1], text))
    climbed = leads_out(b"/".join(path), text, deep)
    if not (end == deep or end.startswith(deep + b"/")):
        assert climbed
    elif b".." not in target:
        assert not climbed
