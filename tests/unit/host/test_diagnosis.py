# SPDX-License-Identifier: Apache-2.0
"""What facts mean, each thing taken away alone and all together; and what is found in a project, on real trees."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import BwrapUnsafe
from unspill.host.diagnosis import (
    FINDINGS,
    REMEDIES,
    DoctorReport,
    Finding,
    Row,
    Survey,
    diagnose,
    find_refusal,
    install_command,
    leads_out,
    level_of,
    remedy_for,
    survey_project,
)
from unspill.model.plan import Bwrap, Facts
from unspill.model.policy import Network, Policy

if TYPE_CHECKING:
    from unspill.model.policy import EngineName, Profile

BWRAP = Bwrap(path=b"/usr/bin/bwrap", version="0.12.0", device=1, inode=2, has_overlay=True, symlink_flaw=False)
BEST = Facts(
    uid=1000,
    gid=1000,
    kernel="6.8.0",
    boot_id="1",
    bwrap=BWRAP,
    namespaces=True,
    disable_userns=True,
    proc_mount=True,
    own_namespace=True,
    engines=("mount", "native"),
    lowerdir_plus=True,
    seccomp=True,
    landlock_abi=4,
    openat2=True,
    cgroup="v2",
    flatpak=False,
    container="",
    state_filesystem="ext4",
)
OLD = BWRAP.replace(version="0.9.0", has_overlay=False, symlink_flaw=True)
NOT_OURS = {"own_namespace": False, "engines": ("native",), "problems": (("mount", "could not be tried"),)}

# Name: what is otherwise, the level, the row it shows in, words of its remedy.
CASES: dict[str, tuple[dict[str, object], str, str, str]] = {
    "everything": ({}, "A", "engines", ""),
    "no cgroup": ({"cgroup": "none"}, "B", "cgroup", "Delegate=yes"),
    "no landlock": ({"landlock_abi": 0}, "A", "landlock", ""),
    "no time": (
        {"seccomp": False, "problems": (("seccomp", "no answer in 60 seconds"),)},
        "D",
        "seccomp",
        "Run it again",
    ),
    "no seccomp": ({"seccomp": False}, "D", "seccomp", "newer kernel"),
    "no openat2": ({"openat2": False}, "B", "openat2", "newer kernel"),
    "only native": (NOT_OURS, "A", "engines", ""),
    "old kernel": ({"lowerdir_plus": False}, "A", "lowerdir+", ""),
    "flaw": ({"bwrap": OLD}, "A", "symlink-flaw", "0.12 or later"),
    "state on overlayfs": (
        {"engines": (), "state_filesystem": "overlay", "problems": (("mount", "Invalid argument"),)},
        "D",
        "engines",
        "UNSPILL_STATE_DIR",
    ),
    "apparmor with an old bwrap": (
        {"bwrap": OLD, "own_namespace": False, "engines": (), "problems": (("apparmor", "is 1"),)},
        "D",
        "engines",
        "0.11 or later",
    ),
    "apparmor": (
        {"namespaces": False, "own_namespace": False, "problems": (("apparmor", "is 1"),)},
        "D",
        "namespaces",
        "profile unspill-bwrap /usr/bin/bwrap",
    ),
    "max_user_namespaces": (
        {"namespaces": False, "problems": (("max-user-namespaces", "is 0"),)},
        "D",
        "namespaces",
        "user.max_user_namespaces=15000",
    ),
    "userns_clone": (
        {"namespaces": False, "problems": (("userns-clone", "is 0"),)},
        "D",
        "namespaces",
        "kernel.unprivileged_userns_clone=1",
    ),
    "container": (
        {"namespaces": False, "container": "docker", "problems": (("surroundings", "something"),)},
        "D",
        "namespaces",
        "seccomp=unconfined",
    ),
    "flatpak": ({"namespaces": False, "flatpak": True}, "D", "namespaces", "Flatpak"),
    "covered proc": ({"proc_mount": False}, "D", "proc", "systempaths=unconfined"),
    "ancient bwrap": (
        {"disable_userns": False, "problems": (("disable_userns", "bwrap: Unknown option --disable-userns"),)},
        "D",
        "disable-userns",
        "0.8 or later",
    ),
    "sysctl not writable": ({"disable_userns": False}, "D", "disable-userns", "/proc/sys/user"),
    "no bwrap": ({"bwrap": None, "namespaces": False}, "D", "bwrap", "Install bubblewrap: "),
    "no state": ({"engines": (), "problems": (("state", "Permission denied"),)}, "D", "state", "UNSPILL_STATE_DIR"),
    "root": ({"uid": 0}, "D", "caller", "allow_root"),
}


def judged(**otherwise: object) -> DoctorReport:
    return diagnose(BEST.replace(**otherwise), Policy())


def row_of(found: DoctorReport, fact: str) -> Row:
    (row,) = [row for row in found.rows if row.fact == fact]
    return row


@pytest.mark.parametrize("case", CASES)
def test_one_thing_otherwise_gives_its_level_and_its_remedy(case: str) -> None:
    otherwise, level, fact, remedy = CASES[case]
    found = judged(**otherwise)
    row = row_of(found, fact)
    assert found.level == level
    assert remedy in row.remedy
    assert row.consequence


def test_every_row_that_refuses_has_a_remedy() -> None:
    for otherwise, *_rest in CASES.values():
        for row in judged(**otherwise).rows:
            assert row.remedy or row.standing not in {"missing", "less", "weak"}, row


def test_a_reason_that_was_found_is_told() -> None:
    found = judged(namespaces=False, problems=(("namespaces", "No space left on device"),))
    assert "No space left on device" in row_of(found, "namespaces").consequence


def test_root_is_the_weaker_level_only_if_it_was_configured() -> None:
    root = BEST.replace(uid=0)
    assert diagnose(root, Policy()).level == "D"
    assert diagnose(root, Policy(allow_root=True)).level == "C"


def test_allowing_root_repairs_nothing_else() -> None:
    broken = BEST.replace(uid=0, namespaces=False)
    assert diagnose(broken, Policy(allow_root=True)).level == "D"


@pytest.mark.parametrize(
    ("engines", "wanted", "level"),
    [
        (("mount", "native"), "mount", "A"),
        (("mount", "native"), "native", "A"),
        (("mount",), "native", "D"),
        ((), None, "D"),
        ((), "mount", "D"),
    ],
)
def test_a_configured_engine_must_work(engines: tuple[str, ...], wanted: EngineName | None, level: str) -> None:
    found = diagnose(BEST.replace(engines=engines), Policy(engine=wanted))
    assert found.level == level
    assert (find_refusal(found) is not None) is (level == "D")


def test_the_first_refusal_is_what_an_error_tells() -> None:
    refusal = find_refusal(judged(proc_mount=False, engines=()))
    assert refusal is not None
    assert refusal.fact == "proc"


def test_a_bwrap_that_was_refused_is_explained_by_its_refusal() -> None:
    error = BwrapUnsafe("it is setuid", remedy="use another")
    row = row_of(diagnose(BEST.replace(bwrap=None), Policy(), bwrap_error=error), "bwrap")
    assert (row.standing, row.consequence, row.remedy) == ("missing", "it is setuid", "use another")


@pytest.mark.parametrize("name", ["docker", "podman", "bwrap", "anything"])
def test_being_surrounded_never_decides(name: str) -> None:
    assert judged(container=name, flatpak=True).level == judged().level == "A"


@given(
    st.fixed_dictionaries(
        {
            "namespaces": st.booleans(),
            "disable_userns": st.booleans(),
            "proc_mount": st.booleans(),
            "bwrap": st.sampled_from([None, BWRAP, OLD]),
            "engines": st.sampled_from([(), ("native",), ("mount",)]),
            "uid": st.sampled_from([0, 1000]),
            "cgroup": st.sampled_from(["none", "v1", "v2"]),
            "seccomp": st.booleans(),
        }
    ),
    st.booleans(),
)
def test_nothing_is_run_unless_all_that_seals_works(otherwise: dict[str, object], allow_root: bool) -> None:
    found = diagnose(BEST.replace(**otherwise), Policy(allow_root=allow_root))
    needed = ("namespaces", "disable_userns", "proc_mount", "bwrap", "engines", "seccomp")
    is_sealed = all(otherwise[name] for name in needed)
    may = otherwise["uid"] != 0 or allow_root
    assert (found.level != "D") is (is_sealed and may)


def test_the_worst_row_decides() -> None:
    order = {"ok": "A", "note": "A", "less": "B", "weak": "C", "missing": "D"}
    for standings in itertools.product(order, repeat=2):
        rows = tuple(Row(fact="", value="", standing=standing, consequence="") for standing in standings)  # type: ignore[arg-type]
        assert level_of(rows) == max(order[standing] for standing in standings)


@pytest.mark.parametrize(("profile", "words"), [("default", "No run uses it."), ("strict", "has no Landlock fence")])
@pytest.mark.parametrize(("abi", "value"), [(7, "ABI 7"), (0, "no")])
def test_landlock_is_used_by_no_profile_and_its_absence_lowers_no_level(
    profile: Profile, words: str, abi: int, value: str
) -> None:
    found = diagnose(BEST.replace(landlock_abi=abi), Policy(profile=profile))
    row = row_of(found, "landlock")
    assert found.level == "A"
    assert row.value == value
    assert words in row.consequence


def test_the_network_of_the_host_is_the_weaker_level() -> None:
    found = diagnose(BEST, Policy(network=Network(mode="host")))
    assert found.level == "C"
    assert 'mode = "proxy"' in row_of(found, "network").remedy


# What the machine lacks, the container that is detected, the level, words of the row
CONTAINERS: dict[str, tuple[dict[str, object], str, str, str]] = {
    "a sandbox works": ({}, "docker", "A", "no effect"),
    "no container": ({"namespaces": False}, "", "D", "no effect"),
    "it takes the sandbox's place": ({"namespaces": False}, "docker", "C", "WITHOUT a sandbox"),
    "root is refused all the same": ({"namespaces": False, "uid": 0}, "docker", "D", "WITHOUT a sandbox"),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_container_mode_counts_only_where_no_sandbox_can_be_made_and_a_container_is_there(case: str) -> None:
    otherwise, container, level, words = CONTAINERS[case]
    found = diagnose(BEST.replace(**otherwise), Policy(container=True), container=container)
    assert found.level == level
    assert words in row_of(found, "mode").consequence
    assert diagnose(BEST.replace(namespaces=False), Policy(), container="docker").level == "D"


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("apt-get", "sudo apt install bubblewrap"),
        ("dnf", "sudo dnf install bubblewrap"),
        ("pacman", "sudo pacman -S bubblewrap"),
        ("zypper", "sudo zypper install bubblewrap"),
        ("apk", "sudo apk add bubblewrap"),
        ("emerge", "sudo emerge sys-apps/bubblewrap"),
        ("xbps-install", "sudo xbps-install -S bubblewrap"),
        ("something-else", "your package manager has it as `bubblewrap`"),
    ],
)
def test_bubblewrap_is_installed_by_the_package_manager_that_is_there(
    program: str, command: str, tmp_path: Path
) -> None:
    (tmp_path / program).touch(mode=0o755)
    assert install_command([os.fspath(tmp_path / "none"), os.fspath(tmp_path)]) == command


@pytest.mark.parametrize("repair", REMEDIES)
def test_a_remedy_has_nothing_left_to_fill_in(repair: str) -> None:
    text = remedy_for(repair)
    assert text.strip()
    assert "{install}" not in text
    assert "{bwrap}" not in text
    assert "{version}" not in text


def test_the_apparmor_profile_names_the_bwrap_that_is_used() -> None:
    other = BWRAP.replace(path=b"/usr/local/bin/bwrap")
    found = judged(bwrap=other, namespaces=False, engines=(), own_namespace=False, problems=(("apparmor", "is 1"),))
    for fact in ("namespaces", "engines"):
        text = row_of(found, fact).remedy
        assert "\nprofile unspill-bwrap /usr/local/bin/bwrap flags=(unconfined) {\n  userns,\n}\nEND\n" in text
        assert "\nsudo apparmor_parser -r /etc/apparmor.d/unspill-bwrap\n" in text
        assert "kernel.apparmor_restrict_unprivileged_userns=0" in text


@pytest.mark.parametrize(
    ("repair", "setting"),
    [("max-user-namespaces", "user.max_user_namespaces=15000"), ("userns-clone", "kernel.unprivileged_userns_clone=1")],
)
def test_a_setting_of_the_kernel_is_given_whole(repair: str, setting: str) -> None:
    assert f"echo {setting} | sudo tee /etc/sysctl.d/60-unspill.conf && sudo sysctl --system" in remedy_for(repair)


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
