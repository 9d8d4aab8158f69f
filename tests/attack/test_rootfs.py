# SPDX-License-Identifier: Apache-2.0
"""A rootfs that somebody else made or commands wrote to: it is trusted no more than what they write to the project."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.arena import Arena, naive_bwrap, with_mounts
from tests.attack.test_grants import Longest
from tests.attack.test_sockets import as_plain_binds
from tests.kernel.small_tree import USUAL, make_tree
from tests.rootfs_tree import BUSYBOX, make_small_tree
from tests.support import HOST_ROOT, Ground, NamedByHost, printed, run_cli
from unspill import RootfsRegistry, RootfsSpec, UnspillError
from unspill.errors import RootfsError, RootfsUnsafe, UsageError
from unspill.layers import lifecycle
from unspill.model.permission import Allowed, Question
from unspill.model.plan import ReadOnly, Tmpfs
from unspill.model.policy import Limits
from unspill.plan import view
from unspill.rootfs import build
from unspill.sandbox import rootfs, rootfs_use
from unspill.sandbox.rootfs import keep_rootfs
from unspill.sandbox.rootfs_use import discard_layers, layers_of
from unspill.store.db import Store

if TYPE_CHECKING:
    from unspill import Sandbox
    from unspill.model.permission import Answer
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


@pytest.mark.any_bwrap
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


class LongestAllowed:
    """A person who allows everything to a command for as long as they are offered."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        scopes = [scope for scope in question.scopes if scope != "project"]
        return Allowed(digest=question.digest, by="test", scope=scopes[-1])


@pytest.fixture
def tree(ground: Ground) -> Path:
    made = make_small_tree(ground.top / "trees" / "small")
    shutil.copy(BUSYBOX, made / "usr/bin/echo")
    return made


def writable(ground: Ground, tree: Path, approver: Any = None, **settings: Any) -> NamedByHost:
    policy = ground.policy(view="rootfs", rootfs=os.fspath(tree), rootfs_writable=True, **settings)
    sandbox = NamedByHost(ground.project, policy=policy, approver=approver)
    ground.opened.append(sandbox)
    return sandbox


def runs_another_unasked(ground: Ground, tree: Path) -> bool:
    """Have a program of the rootfs allowed for as long as it goes, overwrite it, and tell whether that ran unasked.

    What is readable lies in /usr, which makes /usr an overlay that nobody can write to, with the layers in it.
    """
    person = LongestAllowed()
    sandbox = writable(ground, tree, person)
    wanted: dict[str, Any] = {"hosts": ["example.org"], "readable": ["/usr/share/doc"]}
    assert sandbox.run(["echo", "benign"], **wanted).stdout.kept() == b"benign\n"
    asked = len(person.asked)
    assert sandbox.run("printf '#!/bin/sh\\necho hostile\\n' > /usr/bin/echo").ok
    assert sandbox.run(["echo", "benign"], **wanted).stdout.kept() == b"hostile\n"
    return len(person.asked) == asked


@pytest.mark.any_bwrap
def test_a_grant_does_not_cover_what_a_command_put_over_a_program_of_the_rootfs(
    ground: Ground, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: where an overlay with a command's layers in it counts as the rootfs, the grant covers it."""
    assert not runs_another_unasked(ground, tree)
    monkeypatch.setattr(rootfs_use, "is_written", view.is_writable_mount)
    discard_layers(ground.opened[-1]._project)
    assert runs_another_unasked(ground, tree)


def make_again(tree: Path) -> Path:
    other = make_small_tree(tree.parent / "other")
    shutil.copy(BUSYBOX, other / "usr/bin/echo")
    return other


@pytest.mark.any_bwrap
def test_a_python_that_reads_the_projects_packages_is_allowed_once_only(ground: Ground, tree: Path) -> None:
    (tree / "usr/bin/python3").write_text("#!/bin/sh\necho $PYTHONPATH\n")
    (tree / "usr/bin/python3").chmod(0o755)
    person = LongestAllowed()
    policy = ground.policy(view="rootfs", rootfs=os.fspath(tree))
    sandbox = NamedByHost(ground.project, policy=policy, approver=person)
    ground.opened.append(sandbox)
    for _ in range(2):
        assert sandbox.run(["python3"], hosts=["example.org"]).stdout.kept() == b"/workspace/.packages\n"
        assert sandbox.run(["echo", "benign"], hosts=["example.org"]).stdout.kept() == b"benign\n"
    assert len(person.asked) == 3
    # The same path is another program in another rootfs
    policy = ground.policy(view="rootfs", rootfs=os.fspath(make_again(tree)))
    other = NamedByHost(ground.project, policy=policy, approver=person)
    ground.opened.append(other)
    assert other.run(["echo", "benign"], hosts=["example.org"]).ok
    assert len(person.asked) == 4


@pytest.mark.any_bwrap
def test_what_can_not_be_merged_is_not_lost(ground: Ground, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a directory that nobody may enter, and run on. Control: as a mere cache, all of it goes at the eighth."""
    sandbox = writable(ground, tree)
    for number in range(lifecycle.FAN + 1):
        assert sandbox.run(f"echo x > /opt/f{number}; [ {number} != 3 ] || {{ mkdir /opt/z; chmod 000 /opt/z; }}").ok
    assert len(printed(sandbox.run("ls /opt")).split()) == lifecycle.FAN + 2
    monkeypatch.setattr(lifecycle, "ROOTFS_OWNER", b"nobody")
    sandbox.run("echo x > /opt/last")
    assert not sandbox.run("ls /opt/f0").ok


@pytest.mark.any_bwrap
def test_too_many_layers_are_refused_with_a_remedy(ground: Ground, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = writable(ground, tree)
    monkeypatch.setattr(rootfs_use, "_MOST_LAYERS", 1)
    for _ in range(2):
        sandbox.run("date > /opt/f")
    with pytest.raises(UsageError, match="more layers"):
        sandbox.run("true")


def test_a_tree_with_layers_is_checked_like_any_other(ground: Ground, tree: Path) -> None:
    sandbox = writable(ground, tree)
    sandbox.run("touch /usr/x")
    assert layers_of(sandbox._project)
    newer = make_again(tree)
    tree.chmod(0o777)
    with pytest.raises(RootfsUnsafe, match="can be changed by others"):
        writable(ground, newer).run("true")


LOCKER = "import fcntl, os, sys, time; fd = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(fd, fcntl.LOCK_EX); "
LOCKER += "print('locked', flush=True); time.sleep(60)"


@pytest.mark.any_bwrap
def test_somebody_who_locks_a_rootfs_is_not_waited_for_without_end(
    ground: Ground, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ground.top / "1.tar"
    with tarfile.open(archive, "w") as made:
        made.add(tree, arcname=".")
    found = RootfsRegistry().pull(RootfsSpec(source="archive", location=os.fspath(archive), label="mine"))
    monkeypatch.setattr(rootfs_use, "_PATIENCE_S", 0.2)
    sandbox = ground.sandbox(view="rootfs", rootfs=found.name)
    words = [sys.executable, "-c", LOCKER, os.fsdecode(os.path.dirname(found.tree))]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == b"locked\n"
        with pytest.raises(RootfsError, match="keeps the rootfs"):
            sandbox.run("true")
        locker.kill()
    assert sandbox.run("true").ok
    # A run's own lock keeps nobody else from running
    fd = os.open(os.path.dirname(found.tree), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert sandbox.run("true").ok
    os.close(fd)


def test_a_kept_tmp_has_nothing_mounted_in_it(ground: Ground) -> None:
    policy = ground.policy(view="sealed", tmp="persistent", readable=(b"/tmp/somewhere",))
    sandbox = NamedByHost(ground.project, policy=policy)
    ground.opened.append(sandbox)
    with pytest.raises(UsageError, match="/tmp can't be kept"):
        sandbox.run("true")


TAKEN = (b"/workspace", b"/workspace/x", b"/playground", b"/run/x", b"/usr")


@pytest.mark.parametrize("path", TAKEN)
def test_nothing_is_shown_on_its_own_path_where_the_sandbox_has_something_else(
    ground: Ground, tree: Path, path: bytes
) -> None:
    policy = ground.policy(view="rootfs", rootfs=os.fspath(tree), readable=(path,))
    sandbox = NamedByHost(ground.project, policy=policy)
    ground.opened.append(sandbox)
    with pytest.raises(UsageError, match="at its own path"):
        sandbox.run("true")


def test_a_mount_is_what_its_link_led_to_and_never_a_link_of_the_project(ground: Ground, tree: Path) -> None:
    skills = ground.top / "skills"
    skills.mkdir()
    (skills / "one").touch()
    link = ground.project / "link"
    link.symlink_to(skills)
    outside = ground.home / "skills"
    outside.symlink_to(skills)
    for source, is_allowed in ((link, False), (outside, True)):
        policy = ground.policy(view="rootfs", rootfs=os.fspath(tree), mounts=((b"/skills", os.fsencode(source)),))
        sandbox = NamedByHost(ground.project, policy=policy)
        ground.opened.append(sandbox)
        if is_allowed:
            assert printed(sandbox.run("ls /skills")) == "one\n"
        else:
            with pytest.raises(UsageError, match="is inside the root"):
                sandbox.run("true")


@pytest.mark.any_bwrap
def test_a_wanted_root_around_the_project_moves_nobody_elsewhere(ground: Ground, tree: Path) -> None:
    inner = ground.project / "inner"
    inner.mkdir()
    policy = ground.policy(view="rootfs", rootfs=os.fspath(tree))
    sandbox = NamedByHost(inner, policy=policy, approver=LongestAllowed())
    ground.opened.append(sandbox)
    assert printed(sandbox.run("pwd")) == "/workspace\n"
    assert printed(sandbox.run("pwd", roots=[os.fspath(ground.project)])) == "/workspace/inner\n"


@pytest.mark.any_bwrap
def test_what_was_kept_is_what_was_written_whatever_the_policy_says_now(ground: Ground, tree: Path) -> None:
    writable(ground, tree).run("echo tool > /usr/bin/tool")
    newer = make_again(tree)
    policy = ground.policy(view="rootfs", rootfs=os.fspath(newer))
    sandbox = NamedByHost(ground.project, policy=policy)
    ground.opened.append(sandbox)
    made = RootfsRegistry().keep(sandbox, "mine")
    assert (Path(os.fsdecode(made.tree)) / "usr/bin/tool").read_text() == "tool\n"
    shutil.rmtree(tree)
    with pytest.raises(UsageError, match="written nothing"):
        RootfsRegistry().keep(sandbox, "mine")


def attributes(tree: bytes) -> set[str]:
    places = [tree, *(os.path.join(at, name) for at, below, _files in os.walk(tree) for name in below)]
    return {name for place in places for name in os.listxattr(place, follow_symlinks=False)} - {"security.selinux"}


def marked(ground: Ground) -> Sandbox:
    """Return a sandbox in whose layer a command has set marks of an overlay, as the kernel keeps them there."""
    tree = make_small_tree(ground.top / "trees" / "small")
    sandbox = ground.sandbox(view="rootfs", rootfs=os.fspath(tree), rootfs_writable=True)
    assert sandbox.run("mkdir /opt/rd && echo tool > /usr/bin/tool").ok
    layers = [path for path in ground.state.rglob("rd") if path.is_dir()]
    assert layers
    for layer in layers:
        # One `overlay.` more: so the kernel keeps `user.overlay.opaque` of somebody inside
        os.setxattr(layer, "user.overlay.overlay.opaque", b"y")
        os.setxattr(layer, "user.overlay.overlay.redirect", b"/etc")
    return sandbox


@pytest.mark.any_bwrap
def test_marks_of_an_overlay_that_a_command_set_are_not_kept(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set overlayfs's own attributes in a writable rootfs, and have that kept: as a lower layer the new tree would
    show something else than the digest was taken of.

    Control: without the stripping the digest refuses; without that look too, the marks are in the tree.
    """
    sandbox = marked(ground)
    kept = keep_rootfs(sandbox._project, "mine", lambda _progress: None)
    assert attributes(kept.tree) == set()
    assert kept.manifest is not None
    assert dict(kept.manifest.left_out)["xattr"] >= 1
    assert printed(ground.sandbox("other", view="rootfs", rootfs="mine").run("cat /usr/bin/tool")) == "tool\n"
    monkeypatch.setattr(build, "_strip", lambda _path, _mode, _taken: None)
    with pytest.raises(RootfsUnsafe, match="extended attributes"):
        keep_rootfs(sandbox._project, "marked", lambda _progress: None)
    monkeypatch.setattr(build, "is_unsafe", lambda _name: False)
    control = keep_rootfs(sandbox._project, "marked", lambda _progress: None)
    assert "user.overlay.redirect" in attributes(control.tree)


@pytest.mark.any_bwrap
def test_what_is_kept_is_not_called_as_if_it_were_of_a_source(ground: Ground) -> None:
    sandbox = marked(ground)
    for label in ("alpine", "alpine.z", "debian_12"):
        with pytest.raises(UsageError, match="not a label"):
            keep_rootfs(sandbox._project, label, lambda _progress: None)
    archive = pack(ground, make_small_tree(ground.top / "trees" / "plain"))
    for label in ("alpine.z", "debian"):
        done = run_cli("rootfs", "pull", "--archive", os.fspath(archive), "--as", label, cwd=ground.project)
        assert (done.returncode, b"name of a source" in done.stderr) == (2, True), done.stderr.decode()


def pack(ground: Ground, tree: Path) -> Path:
    path = ground.top / f"{tree.name}.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(tree, ".")
    return path


FILL = """#!/bin/busybox ash
busybox dd if=/dev/zero of=/playground/fill bs=1M count=40 2>/dev/null
busybox mkdir /playground/d; busybox ln -s /etc /playground/l; busybox chmod 000 /playground/d
busybox chmod 500 /playground
"""


def test_a_rootfs_that_is_asked_for_its_tools_leaves_nothing_on_the_disk(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have /bin/sh write 40 MiB to the playground when it is asked what there is.

    Control: without the bound of a file and the tidying afterwards all of it stays.
    """
    tree = make_small_tree(ground.top / "trees" / "hostile")
    (tree / "bin/sh").unlink()
    (tree / "bin/sh").write_text(FILL)
    (tree / "bin/sh").chmod(0o755)
    registry = RootfsRegistry()
    made = registry.pull(RootfsSpec(source="archive", label="hostile", location=os.fspath(pack(ground, tree))))
    sizes: list[int] = []
    forget = rootfs._forget_playground

    def measure(data: bytes, project: bytes) -> None:
        sizes.append(sum(path.lstat().st_size for path in playgrounds(ground) if path.is_file()))
        forget(data, project)

    monkeypatch.setattr(rootfs, "_forget_playground", measure)
    assert registry.tools(made.name).tools == ()
    assert sizes == [1 << 20]
    assert playgrounds(ground) == []
    monkeypatch.setattr(rootfs, "_forget_playground", lambda _data, _project: None)
    monkeypatch.setattr(rootfs, "_TOOLS_LIMITS", Limits(wall_s=30.0))
    registry.tools(made.name)
    assert sum(path.lstat().st_size for path in playgrounds(ground) if path.is_file()) == 40 << 20


def test_several_who_ask_for_tools_at_once_do_not_disturb_each_other_and_leave_nothing(ground: Ground) -> None:
    tree = make_small_tree(ground.top / "trees" / "small")
    registry = RootfsRegistry()
    made = registry.pull(RootfsSpec(source="archive", label="small", location=os.fspath(pack(ground, tree))))
    before = kept(ground)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: RootfsRegistry().tools(made.name), range(8)))
    assert found == found[:1] * 8
    assert "sh" in [tool.name for tool in found[0].tools]
    assert kept(ground) == before
    assert list((ground.home / ".local/share/unspill/playground").iterdir()) == []
    with Store.open(os.fsencode(ground.state)) as store:
        assert store.sandboxes.all() == ()


def kept(ground: Ground) -> list[str]:
    """Return what is kept of runs and sandboxes, and where projects for asking are made."""
    names = ("locks", "runs", "layers", "work")
    places = [path for name in names for path in ground.state.glob(f"{name}/*")]
    places += (ground.home / ".cache/unspill").glob("*")
    return sorted(os.fspath(path) for path in places)


def playgrounds(ground: Ground) -> list[Path]:
    """Return what lies in all playgrounds of the person."""
    top = ground.home / ".local/share/unspill/playground"
    return [path for playground in top.iterdir() for path in playground.iterdir()]
