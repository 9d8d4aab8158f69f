# SPDX-License-Identifier: Apache-2.0
"""What `doctor PROJECT` finds in a project, on real trees."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.cli.doctor import FINDINGS
from unspill.host.survey import Finding, Survey, leads_out, survey_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def survey(project: Path) -> Survey:
    return survey_project(os.fsencode(project))


def found(project: Path) -> dict[str, list[bytes]]:
    return {finding.kind: sorted(finding.examples) for finding in survey(project).findings}


def test_an_ordinary_project_needs_no_word(project: Path) -> None:
    (project / "src").mkdir()
    (project / "src/main.c").write_text("int main;")
    (project / "link").symlink_to("src/main.c")
    assert survey(project) == Survey(root=os.fsencode(project), entries=3, findings=())


def test_each_kind_of_thing_is_found_where_it_is(project: Path) -> None:
    (project / "one").write_text("")
    os.link(project / "one", project / "two")
    (project / "program").write_text("")
    (project / "program").chmod(0o4755)
    os.mkfifo(project / "fifo")
    (project / "home").symlink_to("/home")
    (project / "closed").mkdir(mode=0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(project / "socket"))
    assert found(project) == {
        "hard-link": [b"one", b"two"],
        "link-out": [b"home"],
        "setuid": [b"program"],
        "special": [b"fifo", b"socket"],
        "unreadable": [b"closed"],
    }


def test_marks_of_overlays_are_found(project: Path) -> None:
    (project / "pkg").mkdir()
    (project / "pkg" / "file").write_text("")
    os.setxattr(project / "pkg", "user.mine", b"1")
    os.setxattr(project / "pkg" / "file", "user.overlay.whiteout", b"y")
    os.setxattr(project, "user.overlay.opaque", b"y")
    assert found(project) == {"overlay-mark": [b".", b"pkg/file"]}


def test_a_link_out_is_reported_and_not_followed(project: Path) -> None:
    outside = project.parent / "outside"
    outside.mkdir()
    os.mkfifo(outside / "fifo")
    (project / "link").symlink_to("../outside")
    assert found(project) == {"link-out": [b"link"]}


def test_a_long_list_is_cut_and_counted(project: Path) -> None:
    for number in range(25):
        (project / f"link{number:02}").symlink_to("/etc")
    (finding,) = survey(project).findings
    assert finding == Finding(kind="link-out", count=25, examples=tuple(b"link%02d" % number for number in range(10)))


def test_names_that_are_no_text_are_shown_as_they_are(project: Path) -> None:
    os.symlink("/etc", os.fsencode(project) + b"/bad\xff\nname")
    assert found(project) == {"link-out": [b"bad\xff\nname"]}


def test_a_tree_deeper_than_a_path_can_be_is_walked(project: Path) -> None:
    depth, name = 300, "d" * 100
    fd = os.open(project, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        next_fd = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = next_fd
    os.mkfifo("fifo", dir_fd=fd)
    os.close(fd)
    result = survey(project)
    assert result.entries == depth + 1
    assert [finding.kind for finding in result.findings] == ["special"]


def test_no_descriptor_stays_open(project: Path) -> None:
    (project / "a/b/c").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    survey(project)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.root
def test_what_only_root_can_make_is_found(project: Path) -> None:
    for name in ("owned", "grouped", "capable", "immutable"):
        (project / name).write_text("")
        (project / name).chmod(0o755)
    os.chown(project / "owned", 4000, os.getgid())
    os.chown(project / "grouped", os.getuid(), 4000)
    assert os.system(f"setcap cap_net_raw+ep {project}/capable && chattr +i {project}/immutable") == 0
    (project / "mounted").mkdir()
    assert os.system(f"mount -t tmpfs none {project}/mounted") == 0
    (project / "mounted/inside").symlink_to("/etc")
    try:
        assert found(project) == {
            "capabilities": [b"capable"],
            "immutable": [b"immutable"],
            "mount-point": [b"mounted"],
            "other-owner": [b"grouped", b"owned"],
        }
    finally:
        os.system(f"umount {project}/mounted; chattr -i {project}/immutable")


@pytest.mark.parametrize(
    ("path", "target", "expected"),
    [
        (b"link", b"other", False),
        (b"link", b".", False),
        (b"link", b"..", True),
        (b"a/link", b"..", False),
        (b"a/link", b"../..", True),
        (b"a/link", b"../../p/x", False),
        (b"a/link", b"../../pq", True),
        (b"link", b"/p", False),
        (b"link", b"/p/deep", False),
        (b"link", b"/pq", True),
        (b"link", b"/", True),
    ],
)
def test_a_link_is_judged_by_names(path: bytes, target: bytes, expected: bool) -> None:
    assert leads_out(b"/p", path, target) is expected


@given(st.lists(st.sampled_from([b"..", b".", b"a", b"bb"]), min_size=1, max_size=8), st.integers(0, 3))
def test_a_link_leads_out_when_it_climbs_above_the_root_at_its_end(steps: list[bytes], depth: int) -> None:
    path = b"/".join([b"x"] * depth + [b"link"])
    # Deep enough that the top of the file system is never reached, with names that never lead back in.
    root = b"/r" * 12
    assert leads_out(root, path, b"/".join(steps)) is _ends_outside(depth, steps)


def _ends_outside(depth: int, steps: list[bytes]) -> bool:
    stack = [b"r"] * 12 + [b"x"] * depth
    for step in steps:
        if step == b"..":
            stack.pop()
        elif step != b".":
            stack.append(step)
    return stack[:12] != [b"r"] * 12


def test_every_kind_of_finding_has_a_meaning() -> None:
    kinds = "other-owner setuid capabilities immutable hard-link link-out special mount-point overlay-mark unreadable"
    assert set(FINDINGS) == set(kinds.split())
