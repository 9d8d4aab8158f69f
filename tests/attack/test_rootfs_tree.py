# SPDX-License-Identifier: Apache-2.0
"""A rootfs that somebody else made: its links, sockets and FIFOs lead nowhere, and what is mounted in it shows no more
than it should.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.arena import Arena, naive_bwrap, with_mounts
from tests.attack.test_grants_and_programs import Longest
from tests.attack.test_sockets import as_plain_binds
from tests.kernel.small_tree import USUAL, make_tree
from tests.support import HOST_ROOT, Ground, NamedByHost, printed
from unspill import UnspillError
from unspill.model.plan import ReadOnly, Tmpfs

if TYPE_CHECKING:
    from pathlib import Path

    from unspill import Sandbox
    from unspill.model.plan import Facts, MountOp

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

# Where a sandbox mounts something, or would if it trusted the tree
POINTS = (
    *("dev", "proc", "sys", "run", "tmp", "workspace", "playground", "var", "etc", "home", "opt"),
    *("var/tmp", "etc/passwd", "etc/resolv.conf", "opt/x", "home/ann"),
)


def rooted(ground: Ground, tree: Path | str, name: str = "default", **settings: Any) -> Sandbox:
    return ground.sandbox(name, **{"view": "rootfs", "rootfs": os.fspath(tree), **settings})


def put_link(tree: Path, point: str, target: str) -> None:
    """Replace what a tree has at a point by a link."""
    place = tree / point
    if place.is_dir() and not place.is_symlink():
        place.rename(tree.parent / f"was-{point.replace('/', '-')}")
    else:
        place.unlink(missing_ok=True)
    place.symlink_to(target)


SHAPES = ("/oldroot{host}", "/oldroot{host}/made", "../../../../oldroot{host}")


@pytest.mark.parametrize("number", range(len(POINTS)), ids=POINTS)
def test_cve_2026_87766_setting_up_follows_no_link_of_the_tree(arena: Arena, number: int, full: bool) -> None:
    """A tree with a link to the host where something is mounted, with every policy that mounts more.
    Control: that below, with such a mount point in the plan."""
    ground, host = arena.ground, arena.ground.top / "host"
    for name in ("host", "skills", "home/shown"):
        (ground.top / name).mkdir()
    tree = make_tree(ground.top / "tree")
    skills, shown = (os.fsencode(ground.top / name) for name in ("skills", "home/shown"))
    asked: list[dict[str, Any]] = [
        {},
        {"mounts": ((b"/opt/x/y", skills), (b"/etc/a/b", skills), (b"/skills", skills))},
        {"readable": (shown,)},
        {"tmp": "persistent"},
    ]
    # Each point has one of the shapes, and all of them in the long run
    shapes = SHAPES if full else (SHAPES[number % len(SHAPES)],)
    for shape, settings in itertools.product(shapes, asked):
        put_link(tree, POINTS[number], shape.format(host=host))
        try:
            rooted(ground, tree, **settings).run("echo x > made; echo x > /tmp/made; echo x > /etc/passwd")
        except UnspillError:
            continue
        finally:
            assert list(host.iterdir()) == [], settings


def test_cve_2026_87766_a_plan_that_trusted_the_tree_would_write_to_the_host(
    arena: Arena, known_facts: tuple[str, Facts]
) -> None:
    """The control of the above: a mount point beneath such a link, in a plan of ours and by hand."""
    ground, host = arena.ground, arena.ground.top / "host"
    host.mkdir()
    tree = make_tree(ground.top / "tree")
    put_link(tree, "etc/trap", f"/oldroot{host}")
    bwrap = known_facts[1].bwrap
    assert bwrap is not None
    trap = Tmpfs(dest=b"/etc/trap/of-a-plan", size_bytes=1 << 20, why="naive")
    with arena.plan_changed(lambda mounts: with_mounts(mounts, trap)):
        rooted(ground, tree).run(["true"])
    assert (host / "of-a-plan").exists() is bwrap.symlink_flaw
    naive_bwrap(ground.bwrap, "--bind", os.fspath(tree), "/", "--tmpfs", "/etc/trap/by-hand", "true")
    assert (host / "by-hand").exists() is bwrap.symlink_flaw


@pytest.mark.parametrize("point", ["tmp", "var/tmp", "etc/resolv.conf", "etc/passwd", "workspace", "run", "dev"])
def test_a_tree_with_a_link_at_a_mount_point_can_be_used(ground: Ground, point: str, engine: str) -> None:
    tree = make_tree(ground.top / "tree")
    put_link(tree, point, "/nowhere")
    sandbox = rooted(ground, tree)
    assert printed(sandbox.run("echo x > /workspace/file; echo y > /tmp/file; cat file /tmp/file")) == "x\ny\n"
    assert printed(sandbox.run("echo z > /var/tmp/file; cat /var/tmp/file")) == "z\n"


@pytest.mark.parametrize("point", ["var", "etc"])
def test_a_tree_whose_link_stands_above_a_mount_point_is_refused_in_words(ground: Ground, point: str) -> None:
    tree = make_tree(ground.top / "tree")
    put_link(tree, point, f"usr/{point}")
    (ground.top / f"was-{point}").rename(tree / "usr" / point)
    (ground.home / "skills").mkdir()
    mounts = ((f"/{point}/x".encode(), os.fsencode(ground.home / "skills")),)
    with pytest.raises(UnspillError, match=f"/{point} is a symlink in the rootfs"):
        rooted(ground, tree, mounts=mounts).run("true")


KNOCK = "echo talk | timeout 1 socat -u - UNIX-CONNECT:/opt/socket; echo talk > /opt/pipe"


def test_a14_no_socket_and_no_fifo_of_a_persons_own_tree_can_be_reached(arena: Arena, engine: str) -> None:
    """A service of the host listens inside the tree; connect to it and write to its FIFO.
    Control: with plain read-only binds both arrive."""
    ground = arena.ground
    tree = make_tree(ground.top / "tree", (*USUAL, "socat"))
    os.mkfifo(tree / "opt/pipe")
    reader = os.open(tree / "opt/pipe", os.O_RDWR | os.O_NONBLOCK)
    back = os.getcwd()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(tree / "opt")
        try:
            server.bind("socket")
        finally:
            os.chdir(back)
        server.listen()
        server.setblocking(False)
        sandbox = rooted(ground, tree)
        command = ["timeout", "1", "bash", "-c", KNOCK]
        sandbox.run(command)
        with pytest.raises(BlockingIOError):
            server.accept()
        with pytest.raises(BlockingIOError):
            os.read(reader, 10)
        with arena.plan_changed(as_plain_binds):
            sandbox.run(command)
        server.accept()[0].close()
        assert os.read(reader, 10) == b"talk\n"
    os.close(reader)


@pytest.fixture
def secrets(ground: Ground) -> Path:
    """A directory around the project, which has a secret and more."""
    work = ground.home / "work"
    for name in ("project", "private", "other"):
        (work / name).mkdir(parents=True)
        (work / name / ".env").write_text("CANARY\n")
    (ground.home / "link").symlink_to(work)
    return work


@pytest.mark.parametrize("way", ["readable", "mounts", "readable link", "mounts link"])
def test_a9_what_is_shown_around_the_project_does_not_show_its_masked_secrets(
    arena: Arena, secrets: Path, engine: str, way: str
) -> None:
    """Show a directory that holds the project, at its own path or elsewhere, by its name or by a link.
    Control: without the masks the project's secret is read there."""
    ground = arena.ground
    shown = os.fsencode(ground.home / "link" if way.endswith("link") else secrets)
    named: dict[str, Any] = {"readable": (shown,)} if way.startswith("readable") else {"mounts": ((b"/skills", shown),)}
    settings = {"view": "rootfs", "rootfs": HOST_ROOT, "hidden": (os.fsencode(secrets / "private"),), **named}

    def found(name: str) -> set[str]:
        sandbox = ground.sandbox(name, project=secrets / "project", **settings)
        result = sandbox.run("find / -name .env -size +0 -not -path '/proc/*' 2>/dev/null; true")
        return {os.path.basename(os.path.dirname(path)) for path in result.stdout.kept().decode().split()}

    # An engine may refuse a link, which shows as little
    assert found("masked") <= {"other"}
    if not way.endswith("link"):
        assert found("masked") == {"other"}
        with arena.plan_changed(lambda mounts: [op for op in mounts if not is_mask(op)]):
            # With `mount` the layer over the project is seen there as well
            assert found("masked") == {"other", "private"} | ({"project"} if engine == "native" else set())


def is_mask(operation: MountOp) -> bool:
    """Tell whether it is a mask or what closes one."""
    is_closed = isinstance(operation, ReadOnly) and operation.why == "an empty mask stays empty"
    return is_closed or (isinstance(operation, Tmpfs) and operation.mode == 0o555)


def test_e6_a_grant_does_not_cover_a_program_behind_a_link_of_the_tree(arena: Arena) -> None:
    """A program of the tree is a link into the project: exchange what it leads to after it was allowed.
    Control: where every place counts as one that no command can change, the grant covers the other program."""
    ground = arena.ground
    tree = make_tree(ground.top / "tree")
    (tree / "usr/bin/linked").symlink_to("/workspace/tool")
    (tree / "workspace").mkdir()
    (tree / "workspace/tool").symlink_to("/usr/bin/cat")
    ground.write("tool").chmod(0o755)
    person = Longest()
    other = ground.top / "other"
    other.mkdir()
    policy = ground.policy(view="rootfs", rootfs=os.fspath(tree))
    sandbox = NamedByHost(ground.project, policy=policy, approver=person)
    ground.opened.append(sandbox)

    def ask_twice() -> int:
        asked = len(person.asked)
        for what in ("benign", "hostile"):
            sandbox.run(f"printf '#!/bin/sh\\necho {what}\\n' > tool", after="hold")
            assert printed(sandbox.run(["linked"], roots=[str(other)], after="hold")) == f"{what}\n"
        return len(person.asked) - asked

    assert ask_twice() == 2
    with arena.patch.context() as patch:
        patch.setattr("unspill.sandbox.running._is_steady", lambda *_given: True)
        assert ask_twice() == 1
    assert sandbox.run(["cat", "tool"], roots=[str(other)], after="hold").ok
    asked = len(person.asked)
    assert sandbox.run(["cat", "tool"], roots=[str(other)], after="hold").ok
    assert len(person.asked) == asked, "a program of the tree itself stays what it is"
