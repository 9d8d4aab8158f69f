# SPDX-License-Identifier: Apache-2.0
"""What can be a writable root, and how overlapping ones become a set (D27, D28)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import RootRefused
from unspill.policy.defaults import check_root, merge_roots
from unspill.policy.paths import contains, lies_beneath, normalise

HOME = b"/home/ann"
OWN = (HOME + b"/.local/state/unspill", HOME + b"/.config/unspill", HOME + b"/.local/share/unspill")

REFUSED = [
    b"/",
    b"",
    b"relative",
    b"/home/ann/../ann/x",
    b"/home/ann/x/",
    b"/home/ann/a\0b",
    HOME,
    b"/home",
    *(b"/usr /etc /bin /sbin /lib /lib64 /boot /dev /proc /sys /run /var /tmp /opt /srv /mnt /media".split()),
    *(b"/usr/local/src/x /etc/x /bin/x /dev/shm/x /proc/self/cwd /sys/x /run/user/1000/x /var/lib/x".split()),
    *(b"/var/tmp /var/www /run/media /root /root/x /nix/store /snap/x".split()),
    OWN[0],
    OWN[0] + b"/layers/x",
    HOME + b"/.local/state",
    HOME + b"/.local",
    HOME + b"/.config",
    OWN[1],
    HOME + b"/.ssh",
    HOME + b"/.ssh/x",
    HOME + b"/.config/gcloud/x",
    HOME + b"/.mozilla",
]

ACCEPTED = [
    HOME + b"/shop",
    HOME + b"/.dotfiles",
    HOME + b"/.config/nvim",
    HOME + b"/a b,c:d\\e\n",
    b"/home/bob/shared",
    b"/home/annabel",
    *(b"/tmp/x /var/tmp/x /srv/x /opt/x /mnt/x /media/x /var/www/x /run/media/ann/disk/x".split()),
    *(b"/workspace /app /usrlocal /etcetera".split()),
]


@pytest.mark.parametrize("path", REFUSED, ids=ascii)
def test_a_directory_that_holds_other_things_is_no_root(path: bytes) -> None:
    with pytest.raises(RootRefused) as refused:
        check_root(path, home=HOME, own=OWN)
    assert refused.value.remedy


@pytest.mark.parametrize("path", ACCEPTED, ids=ascii)
def test_a_directory_of_ones_own_is_a_root(path: bytes) -> None:
    check_root(path, home=HOME, own=OWN)


@pytest.mark.parametrize(
    ("home", "path", "accepted"),
    [
        (b"/root", b"/root/x", True),
        (b"/root", b"/root", False),
        (b"/var/lib/jenkins", b"/var/lib/jenkins/x", True),
        (b"/var/lib/jenkins", b"/var/lib/jenkins", False),
        (b"/var/lib/jenkins", b"/var/lib", False),
        (b"/", b"/usr/x", False),
        (b"/bin", b"/bin/x", False),
        (b"/dev", b"/dev/shm/x", False),
        (b"/nonexistent", b"/usr/x", False),
    ],
    ids=ascii,
)
def test_a_home_below_a_system_directory_can_be_worked_in(home: bytes, path: bytes, accepted: bool) -> None:
    if accepted:
        check_root(path, home=home, own=())
        return
    with pytest.raises(RootRefused):
        check_root(path, home=home, own=())


def test_the_message_shows_no_control_character() -> None:
    with pytest.raises(RootRefused) as refused:
        check_root(b"/etc/\x1b[2J", home=HOME, own=OWN)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("project", "extra", "expected"),
    [
        (b"/a/proj", (b"/a/proj-x", b"/a/proj/sub"), (b"/a/proj", b"/a/proj-x")),
        (b"/a/proj/sub", (b"/a/proj-x", b"/a/proj"), (b"/a/proj", b"/a/proj-x")),
        (b"/a/proj", (), (b"/a/proj",)),
        (b"/a/proj", (b"/a/proj", b"/a/proj"), (b"/a/proj",)),
        (b"/z", (b"/a", b"/b/c", b"/b"), (b"/z", b"/a", b"/b")),
        (b"/a/b/c", (b"/a/b", b"/a"), (b"/a",)),
    ],
)
def test_overlapping_roots_become_one(project: bytes, extra: tuple[bytes, ...], expected: tuple[bytes, ...]) -> None:
    assert merge_roots(project, extra) == expected


PATHS = st.lists(st.sampled_from([b"a", b"ab", b"a-b", b"b"]), min_size=1, max_size=4).map(
    lambda names: normalise(b"/" + b"/".join(names))
)


@given(PATHS, st.lists(PATHS, max_size=6))
def test_merged_roots_cover_all_and_never_each_other(project: bytes, extra: list[bytes]) -> None:
    roots = merge_roots(project, tuple(extra))
    assert contains(roots[0], project)
    assert len(set(roots)) == len(roots)
    assert set(roots) <= {project, *extra}
    for path in (project, *extra):
        assert sum(contains(root, path) for root in roots) == 1
    assert not any(lies_beneath(one, other) for one in roots for other in roots)
