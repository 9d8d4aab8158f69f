# SPDX-License-Identifier: Apache-2.0
"""A plan in words that any shell can read: what keeps a path from a command, and a line that can be pasted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tests.unit.plan.given import HOME, PROJECT, cache, facts, given, home, places, stack
from tests.unit.plan.ground import Ground
from unspill.errors import RootRefused
from unspill.model.permission import ReadablePath
from unspill.model.plan import Bind, Dev, Directory, File, Overlay, Plan, PlanInput, Proc, ReadOnly, Symlink, Tmpfs
from unspill.model.policy import Limits, Policy
from unspill.permissions.question import check_request
from unspill.plan.build import build_plan
from unspill.plan.explain import Judge, Refusal, ShellWords, describe, explain, paste_command, printf_format, remedy_of

if TYPE_CHECKING:
    from typing import Any

    from unspill.model.policy import EngineName


def explained(**values: Any) -> str:
    return explain(build_plan(given(**values)), facts())


def test_every_mount_is_there_with_its_reason() -> None:
    plan = build_plan(given(places=places(home=home(b".cargo/bin")), caches=(cache(HOME + b"/.cache/pip"),)))
    text = explain(plan, facts()).splitlines()
    for operation in plan.mounts:
        assert any(describe(operation) in line and line.endswith(operation.why) for line in text), operation


def test_variables_are_named_without_their_values() -> None:
    text = explained(extra_environ=((b"MY_TOKEN", b"canary"),))
    summary, _, command = text.partition("sh <<'UNSPILL'")
    assert "MY_TOKEN" in summary
    assert "canary" not in summary
    assert "--setenv MY_TOKEN canary" in command


def test_limits_have_units() -> None:
    text = explained(policy=Policy(limits=Limits(wall_s=1.5, layer_bytes=None, file_bytes=1000)))
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    for row in (
        ["wall_s", "1.5"],
        ["layer_bytes", "unlimited"],
        ["file_bytes", "1000 bytes"],
        ["memory_bytes", "4 GiB"],
    ):
        assert row in lines


def test_held_layers_are_counted() -> None:
    assert "copy-on-write over 2 held layers, writes to" in explained(stacks=(stack(PROJECT, sealed=2),))
    assert "copy-on-write over 1 held layer, writes to" in explained(stacks=(stack(PROJECT, sealed=1),))
    assert "copy-on-write, writes to" in explained()


def test_the_filter_is_explained() -> None:
    assert "system calls: a filter of 2 instructions refuses what no namespace covers" in explained(filter=bytes(16))
    assert "system calls: not filtered" in explained(filter=b"")
    assert "strict: tracing and Unix sockets too; no Landlock" in explained(policy=Policy(profile="strict"))
    assert "Landlock" not in explained()


def test_warnings_are_shown() -> None:
    assert "note: /opt is not shown" in explained(places=places(mounted=(b"/opt/x",)))


def test_no_control_character_is_printed() -> None:
    live = HOME + b"/\x1b]0;x\x07\n\xff" + "\u202e".encode()
    text = explained(stacks=(stack(live),), cwd=live, argv=(b"sh", b"-c", b"echo \x1b[2J\n"))
    assert [line for line in text.split("\n") if not line.isprintable()] == []


def test_the_command_is_all_that_follows_the_last_empty_line() -> None:
    plan = build_plan(given())
    assert explain(plan, facts()).rpartition("\n\n")[2] == paste_command(plan, facts())


VALUES = st.binary(max_size=40).map(lambda value: value.replace(b"\0", b"")) | st.sampled_from(
    [b"-n", b"-", b"%s", b"%", b"\\", b"'", b"a\n\n", b"\n", b"", b"\\n", b"$(id)", b"a b", b"\\045d", b"~", b"{a,b}"]
)
SHELLS = (["dash"], ["bash"], ["bash", "--posix"])


def run(shell: list[str], script: str) -> bytes:
    assert all(char == "\n" or " " <= char <= "~" for char in script)
    return subprocess.run([*shell, "-c", script], capture_output=True, check=True, cwd="/").stdout


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@for_all(values=st.lists(VALUES, min_size=1, max_size=8))
def test_a_word_is_read_as_exactly_the_bytes_it_stands_for(shell: list[str], values: list[bytes]) -> None:
    words = ShellWords()
    command = "printf '%s|' " + " ".join([words.word(value) for value in values])
    shown = run(shell, "\n".join([*words.assignments, command]))
    assert shown == b"".join(value + b"|" for value in values)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@for_all(value=st.binary(max_size=60))
def test_a_printf_format_prints_exactly_the_bytes_it_stands_for(shell: list[str], value: bytes) -> None:
    assert run(shell, f"printf '{printf_format(value)}'") == value


def test_plain_words_stay_readable() -> None:
    words = ShellWords()
    assert [words.word(value) for value in (b"/usr/bin", b"a b", b"it's")] == ["/usr/bin", "'a b'", "'it'\\''s'"]
    assert words.assignments == []


def plan() -> Plan:
    policy = Policy(hidden=(b"/opt/private", b"/etc/hidden"), readable=(b"/srv/sets",))
    return build_plan(given(policy=policy, places=places(files=(b"/etc/hidden",))))


WRITES = {
    b"/data/out": "outside",
    b"/": "outside",
    b"/srv/other": "outside",
    b"/usr/lib/x": "read-only",
    b"/bin/x": "read-only",
    b"/etc/../etc/passwd": "read-only",
    b"/etc/hidden": "read-only",
    b"/opt/private/x": "read-only",
    b"/srv/sets/a": "read-only",
    b"/proc/sys/kernel/core_pattern": "read-only",
    b"/tmp/x": None,
    b"/var/run/x": None,
    b"/dev/null": None,
    b"/dev/shm/x": None,
    b"/proc/self/comm": None,
    HOME: None,
    HOME + b"/x": None,
    PROJECT.removesuffix(b"shop") + b"x": None,
    HOME + b"/.cache/x": "hidden",
    b"/tmp/made/x": "hidden",
    HOME + b"/playground/x": None,
    PROJECT + b"/src/a": None,
    PROJECT + b"/../../../../usr/x": "read-only",
}
READS = {
    b"/data/in": "outside",
    b"/srv/other": "outside",
    b"/srv/sets/a": None,
    b"/srv": None,
    b"/sys/kernel/mm/transparent_hugepage/enabled": None,
    b"/": None,
    b"/usr/lib/x": None,
    b"/bin/sh": None,
    b"/etc/hidden": "masked",
    b"/opt/private/x": "masked",
    HOME + b"/.ssh/id_ed25519": "hidden",
    b"/tmp/x": "hidden",
    b"/var/run/docker.sock": "hidden",
    b"/dev/null": None,
    b"/proc/1/maps": None,
    PROJECT + b"/src/a": None,
}


@pytest.mark.parametrize(("path", "kind"), WRITES.items())
def test_a_write_is_judged_by_what_covers_its_place(path: bytes, kind: str | None) -> None:
    refusal = Judge(plan().mounts).refusal(path, is_write=True)
    assert (refusal and refusal.kind) == kind


@pytest.mark.parametrize(("path", "kind"), READS.items())
def test_a_read_is_judged_by_what_covers_its_place(path: bytes, kind: str | None) -> None:
    refusal = Judge(plan().mounts).refusal(path, is_write=False)
    assert (refusal and refusal.kind) == kind


def test_the_path_is_told_where_it_really_lies() -> None:
    refusal = Judge(plan().mounts).refusal(b"/bin//../bin/./x", is_write=True)
    assert refusal is not None
    assert refusal.path == b"/usr/bin/x"
    assert refusal.rule == "/usr is read-only: programs and libraries"


@pytest.mark.parametrize(
    ("path", "is_write", "words"),
    [
        (b"/data/out/x", True, "--root /data/out`"),
        (b"/data", True, "--root /data`"),
        (b"/srv/x", True, "--root /srv/x`"),
        (b"/usr/lib/x", True, "can't be allowed"),
        (HOME + b"/sets/out/x", True, f"--root {HOME.decode()}/sets/out` or `roots` in your own configuration (create"),
        (HOME + b"/.ssh/new", True, "can't be allowed"),
        (HOME + b"/sets/a.csv", False, f"--readable {HOME.decode()}/sets/a.csv`"),
        (HOME + b"/.ssh/config", False, "No option shows it"),
        (HOME, False, "never see all of it"),
        (b"/opt/private/x", False, "from `hidden`"),
        (b"/data/\x1b[2J", False, "--readable $'/data/\\x1b[2J'`"),
    ],
)
def test_what_is_proposed_would_help_and_is_safe_to_print(path: bytes, is_write: bool, words: str) -> None:
    refusal = Judge(plan().mounts).refusal(path, is_write=is_write)
    assert refusal is not None
    remedy = remedy_of(refusal, is_write=is_write, home=HOME)
    assert words in remedy
    assert remedy.isprintable()


@pytest.mark.parametrize("path", [HOME + b"/.ssh/id_rsa", HOME + b"/.aws/credentials", HOME + b"/.netrc", HOME])
def test_no_option_is_proposed_that_would_be_refused(path: bytes) -> None:
    for is_write in (False, True):
        refusal = Refusal(kind="hidden", path=path, rule="fresh")
        assert "--" not in remedy_of(refusal, is_write=is_write, home=HOME)
    request = ReadablePath(project=PROJECT, argv=(b"x",), path=path)
    with pytest.raises(RootRefused):
        check_request(request, home=HOME, own=())


def test_a_directory_that_a_mount_needs_is_there() -> None:
    """The project's own parents lie in the fresh home: whoever writes to them needs no hint."""
    judge = Judge(plan().mounts)
    assert judge.refusal(PROJECT[: PROJECT.rindex(b"/")] + b"/x", is_write=True) is None
    refusal = judge.refusal(HOME + b"/other/x", is_write=True)
    assert refusal is not None
    assert refusal.rule.startswith("its directory does not exist, as /home/ann is empty in the sandbox")


MOUNTS = (
    Bind(source=b"/r/usr", dest=b"/usr", why="of the rootfs, read-only"),
    Bind(source=b"/r/etc", dest=b"/etc", why="of the rootfs, read-only"),
    Directory(dest=b"/srv", why="of the rootfs, empty"),
    Symlink(target=b"usr/bin", dest=b"/bin", why=""),
    Tmpfs(dest=b"/tmp", size_bytes=1, why="temporary files"),
    Overlay(lowers=(b"/home/ann/shop",), dest=b"/workspace", upper=b"/u", work=b"/w", why="root"),
    Overlay(lowers=(b"/e", b"/home/ann/read"), dest=b"/home/ann/read", why="readable by your policy"),
    File(content=b"root:x:0:0::/:/bin/sh\n", dest=b"/etc/passwd", over=True, why="the caller has a name inside"),
    Tmpfs(dest=b"/home/ann/read/private", size_bytes=1, mode=0o555, why="hidden by your policy"),
    ReadOnly(dest=b"/home/ann/read/private", why=""),
)
JUDGE = Judge(MOUNTS, has_rootfs=True)


@pytest.mark.parametrize(
    "path", [b"/home/ann/notes", b"/data/x", b"/tmp/none", b"/etc/none", b"/etc/passwd", b"/bin/none", b"/srv/x"]
)
def test_nothing_is_told_of_a_file_that_a_rootfs_does_not_have(path: bytes) -> None:
    assert JUDGE.refusal(path, is_write=False) is None


def test_masks_are_told_as_anywhere() -> None:
    refusal = JUDGE.refusal(b"/home/ann/read/private/x", is_write=False)
    assert refusal is not None
    assert refusal.kind == "masked"


@pytest.mark.parametrize("path", [b"/usr/x", b"/bin/x", b"/etc/x", b"/srv/x"])
def test_a_write_to_the_rootfs_is_told_with_the_setting_that_allows_it(path: bytes) -> None:
    refusal = JUDGE.refusal(path, is_write=True)
    assert refusal is not None
    assert refusal.kind == "read-only"
    assert "`rootfs_writable = true`" in remedy_of(refusal, is_write=True, home=b"/workspace")


@pytest.mark.parametrize(
    ("path", "word"), [(b"/data/x", "--root /data"), (b"/home/ann/read/x", "--root /home/ann/read")]
)
def test_a_write_elsewhere_is_told_with_the_root_that_allows_it(path: bytes, word: str) -> None:
    refusal = JUDGE.refusal(path, is_write=True)
    assert refusal is not None
    assert word in remedy_of(refusal, is_write=True, home=b"/workspace")


def test_a_file_with_a_content_is_no_mask_in_any_view() -> None:
    assert Judge(MOUNTS).refusal(b"/etc/passwd", is_write=False) is None


NAMES = (b"shop", b"a b", b"a,b:c\\d", b"q'q\"q$HOME`id`", b"new\nline\n", b"\xff\x1b[31m", b"--bind", "übung".encode())
PASTING_SHELLS = (["sh"], ["bash"], ["bash", "--posix"])


def paste(given: PlanInput, shell: list[str]) -> subprocess.CompletedProcess[bytes]:
    text = paste_command(build_plan(given), given.facts)
    assert all(char == "\n" or " " <= char <= "~" for char in text)
    return subprocess.run(shell, input=text.encode("ascii"), capture_output=True, check=False)


ENGINES: tuple[EngineName, ...] = ("mount", "native")


LOOK = """
cat kept && echo written >kept && cat kept && touch new &&
ls -A "$HOME" && cat "$HOME/secret"; cut -d' ' -f5 /proc/self/mountinfo; exit 7
"""


@pytest.mark.kernel
@pytest.mark.bwrap
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_the_pasted_command_gives_the_sandbox_of_the_plan(tmp_path: Path, name: bytes) -> None:
    ground = Ground(tmp_path, name)
    for engine in ENGINES:
        given = ground.given("/bin/sh", "-c", LOOK, engine=engine)
        result = paste(given, ["sh"])
        assert result.returncode == 7, result.stderr
        assert result.stdout.startswith(b"live\nwritten\n.gitconfig\nplayground\nwork\n")
        assert b"canary" not in result.stdout
        assert sorted(os.listdir(ground.project)) == [b"kept"]
        assert Path(os.fsdecode(ground.project), "kept").read_text() == "live\n"
        assert mount_points(result.stdout) == planned_points(given)


def mount_points(output: bytes) -> set[bytes]:
    lines = [line for line in output.splitlines() if line.startswith(b"/")]
    # What --dev brings along: its devices and terminals
    inside_dev = {line for line in lines if line.startswith(b"/dev/") and line != b"/dev/shm"}
    return {unescaped(line) for line in lines if line not in inside_dev}


def unescaped(line: bytes) -> bytes:
    for escape, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        line = line.replace(escape, char)
    return line


def planned_points(given: PlanInput) -> set[bytes]:
    mounts = build_plan(given).mounts
    kinds = (Bind, Overlay, Tmpfs, Proc, Dev)
    return {b"/"} | {operation.dest for operation in mounts if isinstance(operation, kinds)}


@pytest.mark.kernel
@pytest.mark.bwrap
@pytest.mark.parametrize("shell", PASTING_SHELLS, ids=" ".join)
def test_every_shell_reads_every_byte_of_the_command(tmp_path: Path, shell: list[str]) -> None:
    ground = Ground(tmp_path)
    every_byte = bytes(range(1, 256))
    given = ground.given("/usr/bin/printf", "%s|", every_byte, b"-n", b"", b"\n", b"%d\\", b"trailing\n\n")
    result = paste(given, shell)
    assert result.stdout == every_byte + b"|-n||\n|%d\\|trailing\n\n|", result.stderr


@pytest.mark.kernel
@pytest.mark.bwrap
def test_nothing_is_left_of_the_scratch_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scr atch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", os.fspath(scratch))
    ground = Ground(tmp_path)
    given = ground.given("/bin/sh", "-c", "mkdir -p deep/er && chmod 0 deep/er && chmod 0 deep")
    assert paste(given, ["sh"]).returncode == 0
    assert list(scratch.iterdir()) == []


@pytest.mark.kernel
@pytest.mark.bwrap
def test_the_pasted_command_has_the_filter(tmp_path: Path) -> None:
    """Control: without one in the plan the same command is not filtered."""
    ground = Ground(tmp_path)
    for engine in ENGINES:
        given = ground.given("/usr/bin/grep", "Seccomp:", "/proc/self/status", engine=engine)
        assert paste(given, ["sh"]).stdout == b"Seccomp:\t2\n"
        assert paste(given.replace(filter=b""), ["sh"]).stdout == b"Seccomp:\t0\n"


@pytest.mark.kernel
@pytest.mark.bwrap
def test_generated_files_are_exact_and_git_reads_them(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    given = ground.given("/usr/bin/git", "config", "--global", "user.name")
    assert paste(given, ["sh"]).stdout == b'A "q" \\ Ann\n'


@pytest.mark.kernel
@pytest.mark.bwrap
def test_held_changes_are_seen_and_stay_as_they_are(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    layers = ground.state + b"/layers"
    held = stack(ground.project, sealed=2, layers=layers)
    for number, content in enumerate((b"older\n", b"newer\n")):
        ground.write(b"%s/s%d/upper/kept" % (layers, number), content)
    for engine in ENGINES:
        given = ground.given("/bin/sh", "-c", "cat kept; echo x >kept", engine=engine, stacks=(held,))
        result = paste(given, ["sh"])
        assert result.stdout == b"newer\n", result.stderr
        assert Path(os.fsdecode(layers), "s1", "upper", "kept").read_text() == "newer\n"
        assert Path(os.fsdecode(ground.project), "kept").read_text() == "live\n"
