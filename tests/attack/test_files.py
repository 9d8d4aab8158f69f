# SPDX-License-Identifier: Apache-2.0
"""Writes to the host by path: every place that exists is tried, and the host is compared afterwards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena, shown_as_it_is
from tests.support import Ground, chosen_views
from unspill.model.plan import Tmpfs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from unspill.model.plan import MountOp

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

TOKEN = "unspill-attack-token"

WRITE_EVERYWHERE = """
token, given = %r, %r
mounted = [line.split()[4].encode().decode("unicode_escape") for line in open("/proc/self/mountinfo")]
above = os.path.dirname(os.getcwd())
magic = ["/proc/1/root", "/proc/1/cwd/..", "/proc/self/root", "/proc/self/cwd/..", "/proc/self/task/../root/etc"]
places = [*mounted, *given, above, above + "/..", "..", "../..", *magic]
print("PLACES", len(set(places)))
for place in dict.fromkeys(places):
    path = os.path.join(place, token)
    def create():
        with open(path, "x") as file: file.write(token)
    for name, function, arguments in (
        ("create", create, ()), ("mkdir", os.mkdir, (path + ".d",)), ("symlink", os.symlink, (token, path + ".l")),
        ("fifo", os.mkfifo, (path + ".p",)), ("chmod", os.chmod, (place, 0o777)), ("touch", os.utime, (place, (1, 1))),
    ):
        try: function(*arguments)
        except OSError: continue
        print("DID", name, place)
    if os.path.isfile(place):
        for flags in (os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_WRONLY | os.O_TRUNC):
            try: os.write(os.open(place, flags), token.encode())
            except OSError: continue
            print("DID write", place)
        attempt("unlink " + place, os.unlink, place)
        attempt("rename " + place, os.rename, place, place + token)
"""

SYSTEM = """
/ /bin /boot /dev /dev/shm /etc /etc/cron.d /etc/ld.so.preload /etc/passwd /etc/profile.d /etc/sudoers.d /home /lib
/lost+found /media /mnt /newroot /oldroot /opt /proc/sys/kernel /root /run /run/user /run/user/UID /sbin /srv /sys
/sys/fs/cgroup /sys/kernel /tmp /tmp/.X11-unix /usr /usr/bin /usr/lib /usr/local /usr/local/bin /usr/share /var
/var/cache /var/lib /var/log /var/spool /var/spool/cron/crontabs /var/tmp /var/www
"""


def canaries(ground: Ground) -> list[Path]:
    """Make files of the person's, and name directories where more could be made."""
    files = [
        ".bashrc",
        ".profile",
        ".ssh/authorized_keys",
        ".config/autostart/x.desktop",
        ".gitconfig",
        "notes/plan.txt",
    ]
    files += ["other-project/Makefile", ".local/bin/tool", ".cache/pip/http/x", ".config/unspill/config.toml"]
    made = [ground.home / name for name in files] + [ground.state / "planted"]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# original\n")
    parts = [ground.state / part for part in ("", "layers", "work", "runs", "locks", "empty", "store.db")]
    return [*made, *dict.fromkeys(path.parent for path in made), *parts, ground.top]


def picture(paths: Sequence[Path]) -> dict[str, tuple[object, ...]]:
    """Return what an attacker could change of these: names, contents, modes, times."""
    found: dict[str, tuple[object, ...]] = {}
    for path in paths:
        status = path.lstat()
        inside = tuple(sorted(os.listdir(path))) if path.is_dir() else path.read_bytes()
        found[os.fspath(path)] = (status.st_mode, status.st_mtime_ns, status.st_ino, inside)
    return found


def places_to_try(made: Sequence[Path]) -> list[str]:
    return [*SYSTEM.replace("UID", str(os.getuid())).split(), *map(os.fspath, made)]


@pytest.mark.parametrize("view", chosen_views())
def test_a1_no_write_outside_the_roots_reaches_the_host(arena: Arena, engine: str, view: str) -> None:
    """Create, chmod, touch, overwrite, unlink in every mount and in seventy places of the host.
    Control: with the host's own home and /tmp in place of fresh ones the same script leaves its token there."""
    made = canaries(arena.ground)
    script = WRITE_EVERYWHERE % (TOKEN, places_to_try(made))
    sandbox = arena.ground.sandbox(view=view)
    sandbox.run(["true"])
    still = [path for path in made if not path.is_relative_to(arena.ground.state) or path.name == "planted"]
    before = picture(still)
    tried = arena.attack(script, sandbox=sandbox)
    [count] = [int(line.split()[1]) for line in tried.lines if line.startswith("PLACES")]
    assert count >= 40
    assert picture(still) == before
    assert tokens_on_the_host(made) == []
    # The project and the caches are writable: what was written there lies in layers, and nowhere else
    assert {path.relative_to(arena.ground.state).parts[0] for path in arena.ground.state.rglob(f"*{TOKEN}*")} <= {
        "layers"
    }


def test_a1_control_the_same_writes_reach_a_host_that_is_shown_as_it_is(arena: Arena) -> None:
    """The control arm of the test above: naive writable binds.
    Control: this is it."""
    made = canaries(arena.ground)
    script = WRITE_EVERYWHERE % (TOKEN, [os.fspath(arena.ground.home), "/tmp", "/var/tmp", "/dev/shm"])

    def naive(mounts: Sequence[MountOp]) -> list[MountOp]:
        return [
            shown_as_it_is(operation.dest, writable=True) if isinstance(operation, Tmpfs) else operation
            for operation in mounts
            if operation.dest != b"/run"
        ]

    try:
        with arena.plan_changed(naive):
            arena.attack(script)
        assert len(tokens_on_the_host(made)) >= 3
    finally:
        for path in tokens_on_the_host(made):
            os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def tokens_on_the_host(made: Sequence[Path]) -> list[str]:
    places = [place for place in places_to_try(made) if os.path.isdir(place) and os.access(place, os.R_OK | os.X_OK)]
    found = {os.path.join(place, name) for place in places for name in os.listdir(place) if TOKEN in name}
    return sorted(found)
