# SPDX-License-Identifier: Apache-2.0
"""Writable roots: the project, and what the person configured; never what a symlink or a command makes of them."""

import os
from pathlib import Path

import pytest

from tests.support import Ground, is_rootfs_chosen, kinds, printed
from unspill import ChangeSet, Sandbox
from unspill.errors import RootRefused, UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap, pytest.mark.rootfs_view]


def by_root(changes: ChangeSet) -> dict[str, dict[str, str]]:
    """Return the kinds of change by path, by the name of their root."""
    return {
        os.fsdecode(part.root): {os.fsdecode(change.path): change.kind for change in part.changes}
        for part in changes.roots
        if part.changes
    }


def make(ground: Ground, *names: str) -> list[Path]:
    """Make directories in the home, each with a file that says its name."""
    made = []
    for name in names:
        path = ground.home / name
        path.mkdir(parents=True)
        (path / "file").write_text(f"{name}\n")
        made.append(path)
    return made


def test_writes_to_two_roots_land_in_two_layers(ground: Ground, engine: str) -> None:
    ground.write("file", "project\n")
    (library,) = make(ground, "library")
    sandbox = ground.sandbox(roots=(os.fsencode(library),))
    result = sandbox.run(f"echo 1 > file; echo 2 > {library}/file; echo 3 > {library}/new; rm -f nothing")
    assert by_root(result.changes) == {
        os.fspath(ground.project): {"file": "modified"},
        os.fspath(library): {"file": "modified", "new": "added"},
    }
    assert printed(sandbox.run(f"cat file {library}/file {library}/new")) == "1\n2\n3\n"
    assert (library / "file").read_text() == "library\n"
    assert (ground.project / "file").read_text() == "project\n"
    assert by_root(sandbox.changes()) == by_root(result.changes)
    assert sandbox.discard().changed == 3


def test_only_the_root_that_was_written_gets_a_layer(ground: Ground, engine: str) -> None:
    (library,) = make(ground, "library")
    sandbox = ground.sandbox(roots=(os.fsencode(library),))
    assert by_root(sandbox.run(f"touch {library}/new").changes) == {os.fspath(library): {"new": "added"}}
    assert sandbox.discard().changed == 1


LINKS = {
    "a directory": ("elsewhere", "cat link/file", "sealed"),
    "its file": ("elsewhere/file", "cat link", "sealed"),
    "by an absolute path": ("elsewhere", "cat $PWD/link/file", "sealed"),
    "behind another link": ("elsewhere", "cat via/file", "sealed"),
    "to go there": ("elsewhere", "cd link", "sealed"),
    "make": ("elsewhere", "printf 'all: link/file\n' > Makefile; make", "sealed"),
    "written": ("elsewhere", "echo x > link/new", "sealed"),
    "read-only": ("elsewhere", "echo x > link/new", "host"),
}


@pytest.mark.view("sealed", reason="the views are chosen here")
@pytest.mark.parametrize("case", LINKS)
def test_a_link_out_of_the_project_is_explained_where_a_command_fails_at_it(ground: Ground, case: str) -> None:
    """And the remedy helps. Control: without the link, or where the command succeeds, nothing is said."""
    name, script, view = LINKS[case]
    (elsewhere,) = make(ground, "elsewhere")
    target = ground.home / name
    (ground.project / "link").symlink_to(target)
    (ground.project / "via").symlink_to("link")
    result = ground.sandbox(view=view).run(script)
    (hint,) = [hint for hint in result.hints if hint.code == "link-leads-out"]
    shows = "is read-only" if view == "host" else "the sandbox does not show"
    assert hint.text == f"{ground.project}/link is a link that leads out of the project, to {target}, which {shows}."
    assert f"`--root {target}`" in hint.remedy
    assert all(hint.code != "link-leads-out" for hint in ground.sandbox(view=view).run(f"{script} || true").hints)
    helped = Sandbox(ground.project, name="other", policy=ground.policy(view=view, roots=(os.fsencode(elsewhere),)))
    ground.opened.append(helped)
    assert helped.run(script).hints == ()
    (ground.project / "link").unlink()
    assert all(hint.code != "link-leads-out" for hint in ground.sandbox(view=view).run(script).hints)


@pytest.mark.view("sealed", reason="the views are chosen here")
def test_a_link_of_a_held_layer_is_explained_too(ground: Ground) -> None:
    make(ground, "elsewhere")
    sandbox = ground.sandbox()
    sandbox.run(f"mkdir d; ln -s {ground.home}/elsewhere d/link")
    assert [hint.code for hint in sandbox.run("cat d/link/file").hints] == ["link-leads-out"]
    sandbox.run("rm d/link; mkdir d/link")
    assert sandbox.run("cat d/link/file").hints == ()


def test_the_project_comes_first(ground: Ground) -> None:
    (first,) = make(ground, "a-library")
    sandbox = ground.sandbox(roots=(os.fsencode(first),))
    result = sandbox.run(f"touch x {first}/x; pwd")
    assert [part.root for part in result.changes.roots] == [os.fsencode(ground.project), os.fsencode(first)]
    assert printed(result) == f"{ground.inside()}\n"


def test_a_root_inside_another_is_part_of_it(ground: Ground, engine: str) -> None:
    ground.write("sub/file", "x")
    ground.write("sub/deep/file", "x")
    extra = tuple(os.fsencode(ground.project / name) for name in ("sub", "sub/deep", "."))
    sandbox = ground.sandbox(roots=extra)
    result = sandbox.run("echo y > sub/file; echo z > sub/deep/file")
    assert by_root(result.changes) == {os.fspath(ground.project): {"sub/deep/file": "modified", "sub/file": "modified"}}
    assert printed(sandbox.run("cat sub/file sub/deep/file")) == "y\nz\n"


def test_names_that_begin_alike_are_not_nested(ground: Ground, engine: str) -> None:
    # /a/proj, /a/proj-x, /a/proj/sub in the order of their bytes: the third must not be taken for one of its own
    other, sub = make(ground, "project-x", "project/sub")
    sandbox = ground.sandbox(roots=(os.fsencode(other), os.fsencode(sub)))
    result = sandbox.run(f"echo 1 > sub/file; echo 2 > {other}/file")
    assert by_root(result.changes) == {
        os.fspath(ground.project): {"sub/file": "modified"},
        os.fspath(other): {"file": "modified"},
    }


def test_a_root_around_the_project_takes_it_in(ground: Ground, engine: str) -> None:
    outer = ground.home / "work"
    project = outer / "project"
    project.mkdir(parents=True)
    sandbox = ground.sandbox(project=project, roots=(os.fsencode(outer),))
    result = sandbox.run("pwd; touch here ../there")
    assert printed(result) == ("/workspace/project\n" if is_rootfs_chosen() else f"{project}\n")
    assert by_root(result.changes) == {os.fspath(outer): {"project/here": "added", "there": "added"}}


def test_the_same_root_twice_is_one(ground: Ground) -> None:
    (library,) = make(ground, "library")
    link = ground.home / "link"
    link.symlink_to(library)
    sandbox = ground.sandbox(roots=(os.fsencode(library), os.fsencode(link), os.fsencode(library)))
    assert by_root(sandbox.run(f"touch {library}/x").changes) == {os.fspath(library): {"x": "added"}}


def test_a_link_in_the_project_makes_nothing_writable(ground: Ground, engine: str) -> None:
    (outside,) = make(ground, "outside")
    (ground.project / "link").symlink_to(outside)
    sandbox = ground.sandbox()
    assert not sandbox.run("echo evil > link/file").ok
    assert not sandbox.run("cat link/file").ok
    assert (outside / "file").read_text() == "outside\n"
    # The control arm: what the person names is writable
    assert ground.sandbox("control", roots=(os.fsencode(outside),)).run("echo fine > link/file").ok
    assert (outside / "file").read_text() == "outside\n"


def test_a_link_that_a_command_made_is_no_root_for_the_next(ground: Ground, engine: str) -> None:
    (outside,) = make(ground, "outside")
    sandbox = ground.sandbox()
    (change,) = sandbox.run(["ln", "-s", os.fspath(outside), "door"]).changes
    assert change.leads_out
    assert not sandbox.run("echo evil > door/file").ok
    assert not sandbox.run("ls door/").ok
    assert (outside / "file").read_text() == "outside\n"


def test_replacing_a_directory_on_the_way_by_a_link_leads_nowhere(ground: Ground, engine: str) -> None:
    (outside,) = make(ground, "outside")
    ground.write("dir/file", "x")
    sandbox = ground.sandbox()
    sandbox.run(f"rm -r dir && ln -s {outside} dir")
    assert not sandbox.run("echo evil > dir/file").ok
    assert (outside / "file").read_text() == "outside\n"
    assert kinds(sandbox.changes()) == {"dir": "replaced"}


@pytest.mark.parametrize(
    "path", ["/", "/usr", "/usr/lib", "/etc", "/home", "/tmp", "/root", "/var", "/proc", "/dev/shm"]
)
def test_a_system_directory_is_refused(ground: Ground, path: str) -> None:
    for attempt in ({"project": Path(path)}, {"roots": (os.fsencode(path),)}):
        with pytest.raises(UsageError):
            ground.sandbox(**attempt)
    assert ground.left_behind() == []


def test_the_home_and_what_is_around_it_are_refused(ground: Ground) -> None:
    for path in (ground.home, ground.top):
        with pytest.raises(RootRefused) as refused:
            ground.sandbox(project=path)
        assert refused.value.remedy
        with pytest.raises(RootRefused):
            ground.sandbox(roots=(os.fsencode(path),))


def test_unspills_own_directories_are_refused(ground: Ground) -> None:
    ground.configure("")
    for path in (ground.state, ground.state / "layers", ground.home / ".config", ground.home / ".local"):
        path.mkdir(parents=True, exist_ok=True)
        with pytest.raises(RootRefused):
            ground.sandbox(project=path)


def test_what_holds_secrets_is_refused(ground: Ground) -> None:
    (ground.home / ".ssh").mkdir()
    with pytest.raises(RootRefused):
        ground.sandbox(project=ground.home / ".ssh")


def test_a_project_may_be_named_by_a_link(ground: Ground) -> None:
    link = ground.home / "short"
    link.symlink_to(ground.project)
    sandbox = ground.sandbox(project=link)
    assert sandbox.project == os.fsencode(ground.project)
    sandbox.run("touch file")
    assert kinds(ground.sandbox().changes()) == {"file": "added"}


NAMES = [
    "a,b",
    "a:b",
    "a\\b",
    "a b",
    "a\nb",
    "a'b\"c",
    "-rf",
    "ünï",
    "$HOME",
    "`id`",
    "*?[",
    " lead",
    "trail ",
    "\x1b[31m",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_project_may_have_any_name(ground: Ground, engine: str, name: str) -> None:
    project = ground.home / name / name
    project.mkdir(parents=True)
    (project / name).write_text("before\n")
    sandbox = ground.sandbox(project=project)
    result = sandbox.run(["sh", "-c", 'cat "$1" && echo after > "$1" && pwd', "sh", f"./{name}"])
    assert printed(result) == f"before\n{'/workspace' if is_rootfs_chosen() else project}\n"
    assert kinds(result.changes) == {name: "modified"}
    assert printed(sandbox.run(["cat", f"./{name}"])) == "after\n"
    assert (project / name).read_text() == "before\n"


def test_names_that_are_no_utf8_work(ground: Ground, engine: str) -> None:
    project = os.fsencode(ground.home) + b"/\xff\xfe"
    os.mkdir(project)
    sandbox = Sandbox(project, policy=ground.policy())
    result = sandbox.run(b"echo x > a\xffb; pwd")
    assert result.stdout.kept() == (b"/workspace" if is_rootfs_chosen() else project) + b"\n"
    assert [change.path for change in result.changes] == [b"a\xffb"]
    sandbox.close()


def test_the_state_directory_may_have_any_name(ground: Ground, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("st,a:t\\e x", "new\nline"):
        state = ground.top / name
        monkeypatch.setenv("UNSPILL_STATE_DIR", os.fspath(state))
        sandbox = ground.sandbox()
        assert kinds(sandbox.run("touch file").changes) == {"file": "added"}
        assert printed(sandbox.run("ls")) == "file\n"
