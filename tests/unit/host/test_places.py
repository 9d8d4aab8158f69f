# SPDX-License-Identifier: Apache-2.0
"""Which directories a plan is laid over, where unspill itself lies, and which addresses are this host's own."""

from __future__ import annotations

import os
import pwd
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unspill
from unspill.errors import HostError, RootRefused
from unspill.host import places
from unspill.host import places as module
from unspill.host.places import (
    check_own_place,
    decode_octal,
    filesystem_of,
    find_home,
    find_places,
    mount_points,
    mounts_below,
    own_addresses,
    own_words,
    parse_fib_trie,
    parse_if_inet6,
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


PACKAGE = Path(unspill.__path__[0])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root in which nothing of unspill lies."""
    (tmp_path / "root").mkdir()
    assert not check_own_place([os.fsencode(tmp_path / "root")])
    return tmp_path / "root"


def refusal(root: Path) -> str:
    """Return why a directory can't be a root, nothing if it can."""
    try:
        check_own_place([b"/nowhere", os.fsencode(root)])
    except RootRefused as error:
        return error.message
    return ""


def lead(link: Path, target: Path) -> str:
    link.symlink_to(target)
    return os.fspath(link)


Change = Callable[[pytest.MonkeyPatch, Path], object]
CHANGES: dict[str, tuple[str, Change]] = {
    "the environment": ("installed", lambda patch, root: patch.setattr(sys, "prefix", f"{root}/.venv")),
    "the root as environment": ("installed", lambda patch, root: patch.setattr(sys, "prefix", f"{root}")),
    "the standard library": ("installed", lambda patch, root: patch.setattr(sys, "base_prefix", f"{root}/python")),
    "its machine code": ("installed", lambda patch, root: patch.setattr(sys, "base_exec_prefix", f"{root}/python")),
    "the interpreter": ("installed", lambda patch, root: patch.setattr(sys, "executable", f"{root}/bin/python")),
    "a link to the interpreter": (
        "installed",
        lambda patch, root: patch.setattr(sys, "executable", lead(root / "python", Path(sys.executable))),
    ),
    "an interpreter by a link to a link": (
        "installed",
        lambda patch, root: (
            lead(root / "python", Path(sys.executable)),
            patch.setattr(sys, "executable", lead(root.parent / "python", Path("root/python"))),
        ),
    ),
    "directories of packages": (
        "imports",
        lambda patch, root: patch.setattr(sys, "path", [*sys.path, f"{root}/packages"]),
    ),
    "a directory that leads to packages elsewhere": (
        "imports",
        lambda patch, root: patch.setattr(sys, "path", [*sys.path, lead(root / "packages", PACKAGE.parent)]),
    ),
    "a link outside that leads in": (
        "imports",
        lambda patch, root: patch.setattr(sys, "path", [*sys.path, lead(root.parent / "packages", root)]),
    ),
    "a way that goes in and out again": (
        "imports",
        lambda patch, root: patch.setattr(sys, "path", [*sys.path, f"{root}/sub/../../packages"]),
    ),
    "the directory where it stands": ("imports", lambda patch, root: patch.setattr(sys, "path", [*sys.path, ""])),
    "a relative directory": ("imports", lambda patch, root: patch.setattr(sys, "path", [*sys.path, "lib"])),
    "the compiled modules": ("imports", lambda patch, root: patch.setattr(sys, "pycache_prefix", f"{root}/cache")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_root_with_a_part_of_unspill_is_refused(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word, change = CHANGES[name]
    monkeypatch.chdir(root)
    change(monkeypatch, root)
    assert word in refusal(root)
    assert os.fspath(root) in refusal(root)
    (root.parent / "other").mkdir()
    assert not refusal(root.parent / "other")


@pytest.mark.parametrize("above", [PACKAGE, PACKAGE.parent, PACKAGE.parent.parent])
def test_its_own_source_can_not_be_a_root(above: Path) -> None:
    """An editable installation: to develop unspill in its own sandbox."""
    assert "unspill runs from its source" in refusal(above) or "is installed inside" in refusal(above)


def test_a_user_site_that_does_not_exist_yet_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = sys.modules["site"]
    monkeypatch.setattr(site, "USER_SITE", f"{root}/lib/python/site-packages")
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    assert not refusal(root)
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    assert "imports" in refusal(root)


START = """
import sys
from unspill.host.places import check_own_place
print(check_own_place([sys.argv[1].encode()]))
"""


@pytest.mark.parametrize(
    ("words", "is_warned"),
    [
        (["-c", START], True),
        (["-P", "-c", START], False),
        (["-I", "-c", START], False),
        (["{root}/program.py"], True),
        (["-P", "{root}/program.py"], False),
        (["{root}/../program.py"], False),
        (["-m", "program"], True),
    ],
)
def test_a_program_that_python_lets_import_from_the_root_is_warned(
    words: list[str], is_warned: bool, root: Path
) -> None:
    for place in (root, root.parent):
        (place / "program.py").write_text(START)
    words = [word.format(root=root) if word != START else word for word in words]
    done = subprocess.run(
        [sys.executable, *words, os.fspath(root)], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("This program imports modules from ") is is_warned
    assert (os.fspath(root) in done.stdout) is is_warned


def test_what_only_passes_by_a_root_is_no_reason(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody inside can replace the root itself."""
    monkeypatch.setattr(sys, "path", [*sys.path, f"{root}/../packages", f"{root}x", os.fspath(root.parent)])
    assert not refusal(root)


def test_links_without_end_and_directories_that_are_gone_are_no_reason(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(root.parent / "a", root.parent / "b")
    lead(root.parent / "b", root.parent / "a")
    gone = root.parent / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", "lib", f"{root.parent}/a/lib", *sys.path])
    assert not refusal(root)


def test_a_root_is_found_behind_a_bind_mount(root: Path) -> None:
    (root / "lib").mkdir()
    (root.parent / "mounted").mkdir()
    program = f"""
import os, sys
from unspill.host.places import check_own_place
sys.path.append({os.fspath(root.parent / "mounted/lib")!r})
check_own_place([{os.fsencode(root)!r}])
"""
    mount = f"mount --bind {root} {root.parent}/mounted"
    for before, expected in (("true", 0), (mount, 1)):
        words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{before} && exec "$@"', "sh"]
        done = subprocess.run([*words, sys.executable, "-P", "-c", program], capture_output=True, check=False)
        assert done.returncode == expected, done.stderr
    assert b"Python imports modules from" in done.stderr


def test_a_directory_by_the_name_of_the_program_is_not_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is for `python -P` that reads its program from a terminal, in a project that is called unspill."""
    project = tmp_path / "unspill"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "argv", [""])
    assert own_words()[-2:] == ["-m", "unspill"]
    assert not refusal(project)


TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 50.0.0.0/24 2 0 2
        |-- 50.0.0.0
           /24 link UNICAST
        |-- 50.0.0.2
           /32 host LOCAL
        |-- 50.0.0.255
           /32 link BROADCAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 127.0.0.0/8 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
"""
INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
2a000050000000000000000000000002 02 40 00 80     out0
fe800000000000000000000000000001 02 40 20 80     out0
"""


def test_local_addresses_are_found_among_routes_and_broadcasts() -> None:
    assert parse_fib_trie(TRIE) == [bytes((50, 0, 0, 2)), bytes((127, 0, 0, 1))]


def test_addresses_of_every_interface_are_found() -> None:
    assert parse_if_inet6(INET6) == [
        socket.inet_pton(socket.AF_INET6, text) for text in ("::1", "2a00:50::2", "fe80::1")
    ]


@pytest.mark.parametrize("text", ["", "Main:\n", "  |-- \n /32 host LOCAL\n"])
def test_a_list_without_addresses_is_empty(text: str) -> None:
    assert parse_fib_trie(text) == []


@pytest.mark.parametrize("text", ["|-- 1.2.3.4000\n   /32 host LOCAL\n", "|-- name\n   /32 host LOCAL\n"])
def test_a_list_that_is_none_of_the_kernels_is_not_guessed_at(text: str) -> None:
    with pytest.raises(ValueError, match=r"int\(\)|range"):
        parse_fib_trie(text)


def test_this_hosts_own_addresses_are_all_there() -> None:
    shown = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    texts = [line.split()[3].partition("/")[0] for line in shown.splitlines()]
    packed = {socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text) for text in texts}
    assert packed <= own_addresses()
    assert bytes((127, 0, 0, 1)) in own_addresses()


def test_a_kernel_without_ipv6_has_no_such_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fib_trie").write_text(TRIE)
    monkeypatch.setattr(module, "_IPV4", str(tmp_path / "fib_trie"))
    monkeypatch.setattr(module, "_IPV6", str(tmp_path / "if_inet6"))
    assert own_addresses() == {bytes((50, 0, 0, 2)), bytes((127, 0, 0, 1))}


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_list_that_can_not_be_read_is_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IPV4", str(tmp_path / name))
    with pytest.raises(OSError, match=r"Is a directory|No such file"):
        own_addresses()


def test_the_lists_are_those_of_the_threads_own_namespace() -> None:
    """A thread may have left the namespace of its process, and the proxy's is started by it."""
    assert all(path.startswith("/proc/thread-self/net/") for path in (module._IPV4, module._IPV6))
