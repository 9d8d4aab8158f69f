# SPDX-License-Identifier: Apache-2.0
"""Which directories a plan is laid over: what exists, what a link may stand for, what is mounted."""

import os
import pwd
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import HostError, RootRefused
from unspill.host import places
from unspill.host.places import (
    decode_octal,
    filesystem_of,
    find_home,
    find_places,
    mount_points,
    mounts_below,
    parse_mount,
    read_git_configs,
)
from unspill.model.plan import Home, Places
from unspill.model.policy import Policy


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


def found(home: Path, policy: Policy | None = None, **tables: tuple[str, ...]) -> Places:
    """Find places with candidates that are given relative to the home directory."""
    absolute = {name: tuple(os.fsencode(home / entry) for entry in entries) for name, entries in tables.items()}
    return find_places(
        project=os.fsencode(home),
        state=os.fsencode(home / ".local/state/unspill"),
        playground=os.fsencode(home / ".local/share/unspill/playground"),
        policy=policy or Policy(),
        home=Home(path=os.fsencode(home), user="somebody"),
        **absolute,
    )


def names(home: Path, paths: tuple[bytes, ...]) -> list[str]:
    return [os.fspath(Path(os.fsdecode(path)).relative_to(home)) for path in paths]


def test_candidates_that_exist_are_kept_in_their_order(home: Path) -> None:
    for name in (".cargo/bin", ".pyenv/versions"):
        (home / name).mkdir(parents=True)
    wanted = (".pyenv/versions", ".nvm/versions", ".cargo/bin", ".cargo/other")
    assert names(home, found(home, toolchains=wanted).home.toolchains) == [".pyenv/versions", ".cargo/bin"]


def test_a_candidate_that_is_a_file_is_no_place(home: Path) -> None:
    (home / ".cargo").write_text("")
    assert found(home, toolchains=(".cargo", ".cargo/bin")).home.toolchains == ()


def test_a_link_to_another_candidate_counts_once_by_its_real_path(home: Path) -> None:
    (home / ".local/share/python").mkdir(parents=True)
    (home / ".pyenv").symlink_to(".local/share/python")
    places = found(home, toolchains=(".pyenv", ".local/share/python"))
    assert names(home, places.home.toolchains) == [".local/share/python"]


@pytest.mark.parametrize("target", [".ssh", "../elsewhere", "/etc", "."])
def test_a_link_to_anything_else_shows_nothing(target: str, home: Path) -> None:
    (home / ".ssh").mkdir()
    (home.parent / "elsewhere").mkdir()
    (home / ".pyenv").symlink_to(target)
    assert found(home, toolchains=(".pyenv",)).home.toolchains == ()


def test_a_link_in_the_middle_of_a_candidate_is_resolved_too(home: Path) -> None:
    (home / ".ssh/bin").mkdir(parents=True)
    (home / ".cargo").symlink_to(".ssh")
    assert found(home, toolchains=(".cargo/bin",)).home.toolchains == ()


def test_without_the_check_of_links_one_would_show_the_secrets(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".ssh/bin").mkdir(parents=True)
    (home / ".cargo").symlink_to(".ssh")
    monkeypatch.setattr(places, "_is_allowed", lambda *_anything: True)
    assert names(home, found(home, toolchains=(".cargo/bin",)).home.toolchains) == [".ssh/bin"]


def test_a_cache_of_somebody_else_is_no_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".cache/pip").mkdir(parents=True)
    assert names(home, found(home, caches=(".cache/pip",)).home.caches) == [".cache/pip"]
    # Only root can make a directory of another user, so this one asks as another user.
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert found(home, caches=(".cache/pip",)).home.caches == ()


def test_a_policy_can_do_without_toolchains_and_caches(home: Path) -> None:
    (home / ".cargo/bin").mkdir(parents=True)
    policy = Policy(toolchains=False, caches=False)
    places = found(home, policy, toolchains=(".cargo/bin",), caches=(".cargo/bin",))
    assert (places.home.toolchains, places.home.caches) == ((), ())


def test_the_top_of_this_system_is_found_as_it_is(home: Path) -> None:
    places = found(home)
    assert {b"/usr", b"/etc"} <= set(places.system)
    for path in places.system:
        assert stat.S_ISDIR(os.lstat(path).st_mode)
    for path, target in places.links:
        assert os.readlink(path) == target
    assert places.top == ()


def test_view_host_finds_every_other_directory_at_the_top(home: Path) -> None:
    places = found(home, Policy(view="host"))
    listed = {b"/" + os.fsencode(name) for name in os.listdir("/") if os.path.isdir(f"/{name}")}
    linked = {path for path in listed if os.path.islink(path)}
    assert set(places.system) | set(places.top) == listed - linked
    assert not set(places.system) & set(places.top)


def test_secrets_are_looked_for_in_view_host_only(home: Path) -> None:
    (home / ".ssh").mkdir()
    (home / ".netrc").write_text("")
    wanted = (".ssh", ".netrc", ".aws")
    places = found(home, Policy(view="host"), secrets=wanted)
    assert names(home, places.secrets) == [".ssh"]
    assert names(home, places.secret_files) == [".netrc"]
    assert found(home, secrets=wanted).secrets == ()


def test_readable_and_hidden_paths_are_sorted_by_what_they_are(home: Path) -> None:
    (home / "file").write_text("")
    paths = tuple(os.fsencode(home / name) for name in ("file", "none"))
    places = found(home, Policy(readable=(os.fsencode(home), paths[0]), hidden=(paths[1],)))
    assert (places.files, places.absent) == ((paths[0],), (paths[1],))


def test_a_live_socket_that_would_be_shown_is_found(home: Path) -> None:
    path = os.fsencode(home / "live")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert path in found(home, Policy(readable=(os.fsencode(home),))).sockets
        assert path in found(home, Policy(view="host")).sockets
        assert path not in found(home).sockets
    os.unlink(path)
    assert path not in found(home, Policy(view="host")).sockets


def test_a_project_is_resolved(home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    assert places.resolve_project(os.fsencode(tmp_path / "link")) == os.fsencode(home)


@pytest.mark.parametrize("name", ["none", "file", "loop"])
def test_a_project_that_is_no_directory_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RootRefused):
        places.resolve_project(os.fsencode(tmp_path / name))


def test_home_is_the_recorded_one_when_nothing_else_is_said() -> None:
    entry = pwd.getpwuid(os.getuid())
    assert find_home(os.getuid(), None) == Home(path=os.fsencode(entry.pw_dir), user=entry.pw_name)


def test_home_can_be_another_directory_of_the_same_user(home: Path) -> None:
    assert find_home(os.getuid(), os.fsencode(home)).path == os.fsencode(home)


@pytest.mark.parametrize("variable", [b"/", b"/etc", b"", b"relative", b"/nonexistent"])
def test_home_is_never_what_belongs_to_somebody_else(variable: bytes) -> None:
    recorded = os.fsencode(pwd.getpwuid(os.getuid()).pw_dir)
    assert find_home(os.getuid(), variable).path == recorded


def test_a_user_without_any_home_is_told() -> None:
    with pytest.raises(HostError, match="4000000"):
        find_home(4_000_000, b"/etc")


def test_git_configuration_is_returned_as_text_in_the_order_git_reads_it(home: Path) -> None:
    (home / ".config/git").mkdir(parents=True)
    (home / ".gitconfig").write_text("[user]\n\tname = Second\n")
    (home / ".config/git/config").write_text("[user]\n\tname = First\n")
    texts = read_git_configs(os.fsencode(home))
    assert texts == (b"[user]\n\tname = First\n", b"[user]\n\tname = Second\n")


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside"])
def test_git_configuration_outside_home_is_not_read(target: str, home: Path) -> None:
    (home.parent / "outside").write_text("[user]\n")
    (home / ".gitconfig").symlink_to(target)
    assert read_git_configs(os.fsencode(home)) == ()


def test_git_configuration_kept_elsewhere_in_home_is_read(home: Path) -> None:
    (home / "dotfiles").mkdir()
    (home / "dotfiles/gitconfig").write_text("[user]\n")
    (home / ".gitconfig").symlink_to("dotfiles/gitconfig")
    assert read_git_configs(os.fsencode(home)) == (b"[user]\n",)


def test_a_fifo_in_place_of_the_git_configuration_blocks_nothing(home: Path) -> None:
    os.mkfifo(home / ".gitconfig")
    assert read_git_configs(os.fsencode(home)) == ()


def test_mount_points_are_found_below_a_directory_and_not_beside_it() -> None:
    points = mount_points()
    assert {b"/", b"/proc"} <= set(points)
    assert b"/proc" in mounts_below(b"/")
    assert b"/" not in mounts_below(b"/")
    assert mounts_below(b"/pro") == ()
    assert mounts_below(b"/proc/self") == ()


def test_the_filesystem_of_a_path_is_that_of_the_mount_above_it() -> None:
    assert filesystem_of(b"/proc/self/status") == "proc"
    assert filesystem_of(b"/dev/shm") == "tmpfs"


def test_a_line_of_mountinfo_is_read_with_its_optional_fields() -> None:
    line = rb"36 35 98:0 /mnt1 /a\040b\134c rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue"
    mount = parse_mount(line)
    assert (mount.root, mount.point, mount.kind) == (b"/mnt1", b"/a b\\c", "ext3")
    assert mount.options == b"rw,errors=continue"


@given(st.binary(max_size=30))
def test_octal_escapes_are_undone_as_the_kernel_makes_them(path: bytes) -> None:
    escaped = b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes((byte,)) for byte in path)
    assert decode_octal(escaped) == path
