# SPDX-License-Identifier: Apache-2.0
"""What a command can and can't reach in the plainest cases, and where it starts."""

import os
import socket
from pathlib import Path

import pytest

from tests.support import Ground, is_rootfs_chosen, kinds, printed
from unspill.errors import UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap, pytest.mark.rootfs_view]


def test_the_project_can_be_read_and_written_at_its_real_path(ground: Ground, engine: str) -> None:
    ground.write("src/file", "text\n")
    where = ground.inside()
    result = ground.run(f"cat {where}/src/file && echo new > {where}/src/new && realpath src")
    assert printed(result) == f"text\n{where}/src\n"
    assert kinds(result.changes) == {"src/new": "added"}


@pytest.mark.parametrize(
    "target",
    ["/usr/x", "/etc/x", "/etc/passwd", "/x", "/bin/sh", "/opt/x", "/var/x", "/proc/sys/kernel/hostname", "/dev/x"],
)
def test_nothing_else_can_be_written(ground: Ground, engine: str, target: str) -> None:
    result = ground.run(f"echo evil > {target}")
    assert not result.ok
    assert not Path(target).exists() or "evil" not in Path(target).read_text(errors="replace")


def test_system_files_can_be_read_and_programs_run(ground: Ground, engine: str) -> None:
    assert "root:" in printed(ground.run("cat /etc/passwd"))
    assert printed(ground.run("python3 -c 'print(6*7)'; git --version | cut -d' ' -f1,2")) == "42\ngit version\n"


@pytest.mark.view("sealed", "host", reason="a rootfs has an /opt of its own")
def test_opt_is_shown_here_as_on_every_machine(ground: Ground) -> None:
    assert printed(ground.run("ls -A /opt")).split() == sorted(os.listdir("/opt"))


def test_the_caller_is_the_same_person_inside(ground: Ground, engine: str) -> None:
    ground.write("file")
    assert printed(ground.run("id -u; id -g; stat -c '%u %g' . file; touch new; stat -c '%u %g' new")) == "".join(
        f"{line}\n" for line in [os.getuid(), os.getgid(), *[f"{os.getuid()} {os.getgid()}"] * 3]
    )


def test_devices_that_harm_nobody_work(ground: Ground, engine: str) -> None:
    command = "echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; sleep 0 & wait; ls /dev"
    lines = printed(ground.run(command)).split()
    assert lines[:2] == ["4", "4"]
    assert {"null", "zero", "full", "random", "urandom", "tty", "pts", "shm", "fd", "stdin"} <= set(lines[2:])
    assert not {"sda", "vda", "kmsg", "mem", "fuse", "kvm", "net"} & set(lines)


def test_only_its_own_processes_are_seen(ground: Ground, engine: str) -> None:
    pids = printed(ground.run("ls /proc | grep '^[0-9]*$'")).split()
    assert len(pids) <= 6
    assert not ground.run(f"kill -0 {os.getpid()}").ok
    assert printed(ground.run("cat /proc/1/comm")).strip() == "bwrap"


def test_tmp_is_fresh_writable_untracked_and_gone(ground: Ground, engine: str) -> None:
    marker = ground.top / "marker"
    marker.write_text("host")
    first = ground.run(
        "mktemp /tmp/test.XXXXXX && mktemp /var/tmp/x.XXXXXX >/dev/null && echo > /dev/shm/x && stat -c %a /tmp"
    )
    assert first.ok
    assert first.stdout.kept().endswith(b"\n1777\n")
    made = first.stdout.kept().split()[0].decode()
    assert not Path(made).exists()
    assert not first.changes
    seen = printed(ground.run("ls -A /var/tmp /dev/shm /run; ls /tmp"))
    assert made.removeprefix("/tmp/") not in seen
    assert "marker" not in printed(ground.run("find /tmp"))


def test_a_project_below_tmp_is_there(ground: Ground, engine: str) -> None:
    # Every project of these tests is: the fresh /tmp is made before it
    assert os.fspath(ground.project).startswith("/tmp/")
    assert printed(ground.run("pwd")) == f"{ground.inside()}\n"


def test_a_project_elsewhere_is_there(ground: Ground, engine: str) -> None:
    real_home = Path(f"/var/tmp/unspill-test-{os.getpid()}")
    real_home.mkdir()
    try:
        sandbox, where = ground.sandbox(project=real_home), "/workspace" if is_rootfs_chosen() else real_home
        assert printed(sandbox.run("pwd; echo x > file; cat file")) == f"{where}\nx\n"
        assert list(real_home.iterdir()) == []
        sandbox.discard()
    finally:
        real_home.rmdir()


def test_there_is_no_network(ground: Ground, engine: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        result = ground.run(["python3", "-c", connect])
        assert not result.ok
        assert b"refused" in result.stderr.kept()
        # The control arm: from here the very same connection is made
        with socket.create_connection(("127.0.0.1", port), 2):
            server.accept()[0].close()
    assert printed(
        ground.run("ls /sys/class/net 2>/dev/null; cat /proc/net/dev | tail -n +3 | cut -d: -f1")
    ).split() == ["lo"]
    assert not ground.run("git clone -q https://example.org/x.git y").ok


def test_a_socket_of_the_host_can_not_be_reached_through_the_project(ground: Ground, engine: str) -> None:
    path = ground.project / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(path))
        server.listen()
        connect = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('s')"
        assert not ground.run(["python3", "-c", connect]).ok
        client = socket.socket(socket.AF_UNIX)
        client.connect(os.fspath(path))
        client.close()


def test_no_capability_and_no_new_privilege(ground: Ground, engine: str) -> None:
    status = printed(ground.run("grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status"))
    values = dict(line.split(":\t") for line in status.splitlines())
    assert values == {
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16),
        "NoNewPrivs": "1",
    }


def test_no_namespace_can_be_made_inside(ground: Ground, engine: str) -> None:
    assert not ground.run("unshare -U true").ok
    assert not ground.run(["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]).ok


def test_signals_are_neither_ignored_nor_blocked(ground: Ground, engine: str) -> None:
    status = printed(ground.run(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]))
    # 32 and 33 are the C library's own and beyond anybody's reach
    own = 0b11 << 31
    assert [int(line.split()[1], 16) & ~own for line in status.splitlines()] == [0, 0]
    assert ground.run("yes | head -1").stderr.total == 0


def test_the_umask_is_the_callers(ground: Ground, engine: str) -> None:
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            result = ground.run("umask; rm -f f; touch f; stat -c %a f")
        finally:
            os.umask(before)
        assert printed(result) == f"{mask:04o}\n{0o666 & ~mask:o}\n"


def test_a_name_of_the_host_is_not_told(ground: Ground) -> None:
    assert printed(ground.run("uname -n")) == "unspill\n"


def test_the_state_directory_is_not_seen(ground: Ground, engine: str) -> None:
    assert not ground.run(["ls", os.fspath(ground.state)]).ok


@pytest.mark.parametrize("given", [None, "", "."])
def test_the_project_is_the_default(ground: Ground, engine: str, given: str | None) -> None:
    assert printed(ground.run("pwd", working_dir=given)) == f"{ground.inside()}\n"


def test_the_callers_own_directory_does_not_matter(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/usr")
    assert printed(ground.run("pwd")) == f"{ground.inside()}\n"


@pytest.mark.parametrize("given", ["sub/dir", "./sub//dir/", "sub/../sub/dir"])
def test_what_is_not_absolute_is_relative_to_the_project(ground: Ground, engine: str, given: str) -> None:
    ground.write("sub/dir/file", "found\n")
    result = ground.run("pwd; cat file", working_dir=given)
    assert printed(result) == f"{ground.inside()}/sub/dir\nfound\n"


def test_an_absolute_path_is_kept(ground: Ground, engine: str) -> None:
    ground.write("sub/file")
    assert printed(ground.run("pwd", working_dir=os.fspath(ground.project / "sub"))) == f"{ground.inside()}/sub\n"
    # There is no restriction: what may be written there is the sandbox's business
    assert (
        printed(ground.run("pwd; touch x 2>/dev/null || echo read-only", working_dir="/usr/bin"))
        == "/usr/bin\nread-only\n"
    )


@pytest.mark.parametrize("given", ["/tmp", "/"])
def test_a_directory_that_every_sandbox_has_will_do(ground: Ground, given: str) -> None:
    assert printed(ground.run("pwd", working_dir=given)) == f"{given}\n"


def test_playground_is_a_name_of_its_own(ground: Ground, engine: str) -> None:
    result = ground.run("pwd; echo kept > note", working_dir="playground")
    assert printed(result) == f"{ground.playground_inside}\n"
    assert not result.changes
    assert printed(ground.run("cat note", working_dir=ground.playground_inside)) == "kept\n"
    assert printed(ground.run("cat ~/playground/note")) == "kept\n"


def test_a_place_in_the_playground_may_be_new_there(ground: Ground) -> None:
    ground.run("mkdir -p clone/deep", working_dir="playground")
    assert printed(ground.run("pwd", working_dir=f"{ground.playground_inside}/clone/deep")).endswith(
        "/playground/clone/deep\n"
    )
    missing = f"{ground.playground_inside}/other"
    with pytest.raises(UsageError) as refused:
        ground.run("pwd", working_dir=missing)
    assert refused.value.message == f"ERROR: Working directory does not exist: {missing}"


@pytest.mark.parametrize("given", ["missing", "/no/such/directory", "sub/missing"])
def test_a_directory_that_is_not_there_is_refused_in_the_words_of_the_seeds(
    ground: Ground, engine: str, given: str
) -> None:
    ground.write("sub/file")
    whole = Path(given) if given.startswith("/") else Path(ground.inside()) / given
    with pytest.raises(UsageError) as refused:
        ground.run("pwd", working_dir=given)
    assert refused.value.message == f"ERROR: Working directory does not exist: {whole}"
    assert ground.left_behind() == []


def test_it_is_refused_too_where_only_the_sandbox_could_have_known(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    sandbox.run("touch file")
    with pytest.raises(UsageError) as refused:
        sandbox.run("pwd", working_dir="missing")
    assert refused.value.message == f"ERROR: Working directory does not exist: {ground.inside()}/missing"


def test_a_file_is_no_directory(ground: Ground, engine: str) -> None:
    ground.write("file")
    sandbox = ground.sandbox()
    for expected in (f"ERROR: Working directory is not a directory: {ground.inside()}/file",) * 2:
        with pytest.raises(UsageError) as refused:
            sandbox.run("pwd", working_dir="file")
        assert refused.value.message == expected
        # The second time with something held, where the host's answer may be out of date
        sandbox.run("touch other")


def test_a_directory_of_an_earlier_run_will_do(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    sandbox.run("mkdir -p made/deep; echo x > made/deep/f")
    assert printed(sandbox.run("pwd; cat f", working_dir="made/deep")) == f"{ground.inside()}/made/deep\nx\n"
    assert not (ground.project / "made").exists()


def test_a_directory_that_an_earlier_run_removed_is_not_there(ground: Ground, engine: str) -> None:
    ground.write("dir/file")
    sandbox = ground.sandbox()
    sandbox.run("rm -r dir")
    with pytest.raises(UsageError, match="ERROR: Working directory does not exist: "):
        sandbox.run("pwd", working_dir="dir")


def test_a_link_is_followed_inside_the_sandbox_only(ground: Ground, engine: str) -> None:
    ground.write("real/file", "x")
    (ground.project / "link").symlink_to("real")
    assert printed(ground.run("pwd -P; ls", working_dir="link")) == f"{ground.inside()}/real\nfile\n"
    outside = ground.home / "private"
    outside.mkdir()
    (ground.project / "out").symlink_to(outside)
    with pytest.raises(UsageError, match="does not exist"):
        ground.run("pwd", working_dir="out")


def test_a_hidden_place_of_the_host_is_not_there(ground: Ground) -> None:
    (ground.home / "Documents").mkdir()
    with pytest.raises(UsageError, match="ERROR: Working directory does not exist: "):
        ground.run("pwd", working_dir=os.fspath(ground.home / "Documents"))


def test_nul_and_invalid_names_are_refused(ground: Ground) -> None:
    with pytest.raises(UsageError):
        ground.run("pwd", working_dir="a\0b")


def test_writes_count_wherever_the_command_started(ground: Ground, engine: str) -> None:
    ground.write("a/b/file")
    assert kinds(ground.run("touch new ../up", working_dir="a/b").changes) == {"a/b/new": "added", "a/up": "added"}
