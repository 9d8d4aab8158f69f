# SPDX-License-Identifier: Apache-2.0
"""What a run does and leaves on every engine: output, exit code, variables, a held layer, an untouched project."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import HOST_ROOT, Event, Ground, chosen_views, kinds, printed, shell_of_texts
from unspill import Callback, Exited, OutputChunk, Policy, Sandbox, SandboxFiles, UnspillError
from unspill.errors import UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


def tree_of(top: Path) -> dict[str, bytes | None]:
    """Return every path below a directory, with its content where it is a file."""
    return {os.fspath(path.relative_to(top)): path.read_bytes() if path.is_file() else None for path in top.rglob("*")}


def test_what_a_command_writes_is_held_and_the_project_is_not_touched(ground: Ground, engine: str) -> None:
    ground.write("kept", "same\n")
    ground.write("edited", "original\n")
    ground.write("removed", "gone soon\n")
    before = tree_of(ground.project)
    result = ground.run("echo test > file.txt && echo modified > edited && rm removed && mkdir -p d/e")
    assert result.outcome == Exited(code=0)
    assert result.held
    assert kinds(result.changes) == {
        "d": "added",
        "d/e": "added",
        "edited": "modified",
        "file.txt": "added",
        "removed": "deleted",
    }
    assert tree_of(ground.project) == before


def test_a_command_that_fails_still_holds_what_it_wrote(ground: Ground, engine: str) -> None:
    result = ground.run("echo x > file; false")
    assert result.outcome == Exited(code=1)
    assert result.held
    assert kinds(ground.sandbox().changes()) == {"file": "added"}


def test_a_held_layer_is_seen_by_the_next_run(ground: Ground, engine: str) -> None:
    ground.write("a", "1")
    sandbox = ground.sandbox()
    sandbox.run("echo 2 > a; echo new > b")
    assert printed(sandbox.run("cat a b")) == "2\nnew\n"
    sandbox.run("rm a; echo more >> b")
    assert printed(sandbox.run("ls; cat b")) == "b\nnew\nmore\n"
    assert kinds(sandbox.changes()) == {"a": "deleted", "b": "added"}


def test_a_sandbox_is_reopened_by_its_name(ground: Ground, engine: str) -> None:
    with Sandbox(ground.project, policy=ground.policy()) as first:
        first.run("echo x > file")
    with Sandbox(ground.project, policy=ground.policy()) as again:
        assert printed(again.run("cat file")) == "x\n"


def test_another_sandbox_of_the_project_sees_nothing_of_it(ground: Ground, engine: str) -> None:
    ground.sandbox().run("echo x > file")
    other = ground.sandbox("other")
    assert printed(other.run("ls -A")) == ""
    assert not other.changes()


def test_what_is_discarded_is_not_seen_again(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo x > file")
    sandbox.run("echo y > other")
    assert sandbox.discard().number == 1
    assert not sandbox.changes()
    assert printed(sandbox.run("ls -A")) == ""
    assert sandbox.discard().number == 0
    assert ground.left_behind() == []


def test_a_run_may_throw_its_changes_away(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo held > file")
    result = sandbox.run("cat file; echo changed > file; touch new", after="discard")
    assert printed(result) == "held\n"
    assert not result.held
    assert kinds(result.changes) == {"file": "modified", "new": "added"}
    assert printed(sandbox.run("ls; cat file")) == "file\nheld\n"


def test_the_policy_may_throw_changes_away(ground: Ground) -> None:
    sandbox = ground.sandbox(after="discard")
    assert kinds(sandbox.run("touch file").changes) == {"file": "added"}
    assert not sandbox.changes()


def test_the_changes_of_one_run_can_be_asked_for(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    first = sandbox.run("echo 1 > file; touch a")
    second = sandbox.run("echo 2 > file; rm a; touch b")
    assert kinds(sandbox.changes(run=first.number)) == {"a": "added", "file": "added"}
    assert kinds(sandbox.changes(run=second.run)) == {"a": "deleted", "b": "added", "file": "modified"}
    assert kinds(sandbox.changes()) == {"b": "added", "file": "added"}
    with pytest.raises(UsageError, match="no such run: 99"):
        sandbox.changes(run=99)


def test_a_run_that_changes_nothing_holds_nothing(ground: Ground, engine: str) -> None:
    ground.write("file", "x")
    result = ground.run("cat file; ls -R; test -e missing || true")
    assert not result.held
    assert not result.changes
    assert ground.left_behind() == []


def test_what_was_made_and_removed_within_a_run_is_no_change(ground: Ground, engine: str) -> None:
    ground.write("dir/file", "x")
    result = ground.run("touch dir/new && rm dir/new && mkdir -p d/e && rm -r d")
    assert not result.changes
    assert not result.held
    assert ground.left_behind() == []


def test_nothing_is_left_in_the_project_or_of_a_run(ground: Ground, engine: str) -> None:
    ground.write("file", "x")
    held = ground.run("echo y > file; mkdir d; chmod 0 d")
    assert held.held
    assert len([name for name in ground.left_behind() if not name.startswith("layers/")]) == 0
    ground.sandbox().discard()
    assert ground.left_behind() == []
    assert tree_of(ground.project) == {"file": b"x"}


def test_shell_syntax_works(ground: Ground, engine: str) -> None:
    ground.write("test_one")
    ground.write("other")
    assert printed(ground.run("ls | grep test")) == "test_one\n"
    result = ground.run("echo test > file.txt 2>&1 && cat file.txt; (exit 3) || echo $((1+2)) `echo x` $(echo y)")
    assert printed(result) == "test\n3 x y\n"


def test_a_list_of_words_needs_no_shell(ground: Ground) -> None:
    assert printed(ground.run(["printf", "%s|", "a b", "$HOME", "*", "\n", ""])) == "a b|$HOME|*|\n||"


def test_a_shell_text_of_a_mebibyte_is_run(ground: Ground, engine: str) -> None:
    text = "x=" + "a" * (1 << 20) + "\necho ${#x} $0; echo $# >&2; exit 7"
    result = ground.run(text)
    assert result.exit_code == 7
    assert result.stdout.kept().split()[0] == b"1048576"
    assert result.stderr.kept() == b"0\n"


def test_a_command_may_have_more_words_than_bwrap_takes(ground: Ground) -> None:
    words = ["it's", "", "$HOME", "a b\n", *map(str, range(20_000))]
    show = "import sys; print(len(sys.argv), sys.argv[1:5], sys.argv[-1])"
    result = ground.run(["python3", "-c", show, *words])
    assert printed(result) == f"20005 {words[:4]} 19999\n"


def test_a_word_that_the_kernel_would_not_take_is_refused_with_the_remedy(ground: Ground) -> None:
    for words in (["a" * (1 << 20)], ["a" * 100_000] * 30):
        with pytest.raises(UsageError) as refused:
            ground.run(["echo", *words])
        assert "stdin" in refused.value.remedy
    assert ground.run(["true", *["a" * 100_000] * 15]).ok


@pytest.mark.parametrize("command", ["", "  \n", [], [""]])
def test_an_empty_command_is_refused_in_the_words_of_the_seeds(ground: Ground, command: str | list[str]) -> None:
    with pytest.raises(UsageError, match=r"^Command cannot be empty$"):
        ground.run(command)


def test_a_command_with_nul_is_refused(ground: Ground) -> None:
    with pytest.raises(UsageError, match="NUL"):
        ground.run("echo a\0b")


def test_a_text_that_is_no_unicode_is_refused(ground: Ground) -> None:
    for command in ("echo \ud800", ["echo", "\ud800"]):
        with pytest.raises(UsageError, match="not a text"):
            ground.run(command)
    assert ground.run(b"echo \xff").stdout.kept() == b"\xff\n"


def test_a_project_that_is_not_there_is_refused(ground: Ground) -> None:
    with pytest.raises(UsageError, match="no such project directory"):
        Sandbox(ground.top / "missing", policy=Policy())


def without_project(ground: Ground, **settings: Any) -> Sandbox:
    """Open a sandbox that has no project."""
    sandbox = Sandbox(None, policy=ground.policy(**settings))
    ground.opened.append(sandbox)
    return sandbox


@pytest.mark.parametrize("view", ["sealed", "host", "rootfs"])
def test_without_a_project_commands_start_in_a_playground_and_nothing_is_applied(
    ground: Ground, engine: str, view: str
) -> None:
    other = ground.home / "other"
    other.mkdir()
    # Of a project it would be read, and stop everything
    (ground.home / ".unspill.toml").write_text("nonsense = true\n")
    before = tree_of(ground.home)
    settings = {"view": view, **({"rootfs": HOST_ROOT} if view == "rootfs" else {})}
    sandbox = without_project(ground, roots=(os.fsencode(other),), **settings)
    tries = "; ".join(f"echo x > {place}/new" for place in (ground.project, other, "$HOME", "/tmp", "."))
    result = sandbox.run(f"pwd; {tries}; ls; mkdir -p {ground.project} {other}; true")
    place = "/playground" if view == "rootfs" else f"{ground.home}/playground"
    assert printed(result) == f"{place}\nnew\n"
    assert not result.changes
    assert (result.held, result.operation) == (False, None)
    assert not sandbox.changes()
    after = {path: found for path, found in tree_of(ground.home).items() if not path.startswith(".local")}
    assert after == before
    assert printed(without_project(ground, **settings).run("cat new")) == "x\n", "the playground is kept"
    assert printed(ground.run("ls -A", working_dir="playground")) == "", "and is no project's"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"after": "apply"}, "nothing to apply"),
        ({"after": "hold"}, "nothing to hold"),
        ({"roots": ["/opt"]}, "no directory can be changed"),
        ({"working_dir": "missing"}, "does not exist"),
    ],
    ids=str,
)
def test_without_a_project_there_is_nothing_to_change(ground: Ground, options: dict[str, Any], said: str) -> None:
    sandbox = without_project(ground)
    with pytest.raises(UsageError, match=said):
        sandbox.run("true", **options)
    assert sandbox.run("true", after="discard").ok


def test_without_a_project_more_can_be_asked_for_and_files_are_the_playgrounds(ground: Ground) -> None:
    shown = ground.home / "shown"
    shown.write_text("seen\n")
    sandbox = without_project(ground)
    allowed = Callback(lambda _question: True)
    assert printed(sandbox.run(["cat", os.fspath(shown)], readable=[os.fspath(shown)], approver=allowed)) == "seen\n"
    SandboxFiles(sandbox).write("note", b"written")
    assert printed(sandbox.run("cat note")) == "written"
    assert [os.fsdecode(name) for name, _size in sandbox.playground().names] == ["note"]


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "a\nb"])
def test_a_name_that_is_none_is_refused(ground: Ground, name: str) -> None:
    with pytest.raises(UsageError, match="not a name for a sandbox"):
        ground.sandbox(name)


def test_an_earlier_run_is_in_the_log_with_all_it_said(ground: Ground) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo out; echo err >&2; touch file; exit 4")
    sandbox.run(["true"])
    latest, first = sandbox.runs()
    assert (latest.number, first.number) == (2, 1)
    assert first.argv == (shell_of_texts().encode(), b"-c", b"echo out; echo err >&2; touch file; exit 4")
    assert first.cwd == os.fsencode(ground.inside())
    assert first.outcome == Exited(code=4)
    assert (first.stdout.head, first.stderr.head) == (b"out\n", b"err\n")
    assert (first.changed, first.held) == (1, True)
    assert (latest.changed, latest.held) == (0, False)
    assert sandbox.find_run(first.id) == first == sandbox.find_run(1)


def test_every_error_of_ours_has_a_code_and_an_exit_code(ground: Ground) -> None:
    with pytest.raises(UnspillError) as refused:
        ground.run("")
    assert (refused.value.code, refused.value.exit_code) == ("usage", 2)


def variables(ground: Ground, **options: Any) -> dict[str, str]:
    text = printed(ground.sandbox(**options).run(["env", "-0"]))
    return dict(line.partition("=")[::2] for line in text.split("\0") if line)


@pytest.mark.parametrize("view", chosen_views())
def test_only_allowed_variables_enter(ground: Ground, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LANG": "de_DE.UTF-8",
        "LC_TIME": "C",
        "TERM": "xterm",
        "TZ": "UTC",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "GITHUB_TOKEN": "s3cret",
        "SSH_AUTH_SOCK": "/run/agent",
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/bus",
        "XDG_RUNTIME_DIR": "/run/user/1",
        "LD_PRELOAD": "/evil.so",
        "PYTHONPATH": "/evil",
        "MY_SETTING": "1",
    }.items():
        monkeypatch.setenv(name, value)
    found = variables(ground, view=view)
    language = {"LANG": "C.UTF-8"} if view == "rootfs" else {"LANG": "de_DE.UTF-8", "LC_TIME": "C"}
    expected = {**language, "TERM": "xterm", "TZ": "UTC"}
    assert {name: found.get(name) for name in ("LANG", "LC_TIME", "TERM", "TZ") if name in found} == expected
    assert "s3cret" not in str(found)
    assert not {"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "LD_PRELOAD", "MY_SETTING"} & set(found)


def test_home_user_and_tmpdir_are_set(ground: Ground, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setenv("USER", "somebody-else")
    found = variables(ground)
    assert found["HOME"] == ground.home_inside
    assert found["TMPDIR"] == "/tmp"
    assert found["USER"] == found["LOGNAME"] != "somebody-else"
    assert found["PWD"] == ground.inside() or "PWD" not in found


@pytest.mark.view("sealed", "host", reason="PATH is fixed in a rootfs; test_rootfs_view.py has all its variables")
def test_the_path_has_only_what_is_there(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"/usr/bin:{ground.top}/elsewhere:.:/bin:{ground.state}:/usr/bin")
    assert variables(ground)["PATH"] == "/usr/bin:/bin"


def test_a_configured_variable_enters(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MY_SETTING", "APP_ONE", "APP_TOKEN"):
        monkeypatch.setenv(name, "1")
    found = variables(ground, environment=("MY_SETTING", "APP_*"))
    assert found["MY_SETTING"] == found["APP_ONE"] == "1"
    assert "APP_TOKEN" not in found
    assert variables(ground, environment=("APP_TOKEN",))["APP_TOKEN"] == "1"


def test_a_call_may_set_variables(ground: Ground, engine: str) -> None:
    given = {"A": "1", "EMPTY": "", "LONG": "x" * 100_000, "ODD": "a\nb=c\t\x7f ünï", "LANG": "C"}
    result = ground.run(["python3", "-c", "import os; print(ascii(dict(os.environ)))"], env=given)
    found = printed(result)
    for name, value in given.items():
        assert f"{name!a}: {value!a}" in found


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH"])
def test_some_variables_never_enter(ground: Ground, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        ground.run("true", env={name: "x"})


@pytest.mark.parametrize("name", ["", "A=B", "A\0"])
def test_a_name_that_no_variable_has_is_refused(ground: Ground, name: str) -> None:
    with pytest.raises(UsageError):
        ground.run("true", env={name: "x"})


def test_values_are_on_no_command_line(ground: Ground, engine: str) -> None:
    secret = "value-that-ps-must-not-show"
    seen: list[str] = []
    looked = threading.Event()

    def look(event: Event) -> None:
        if isinstance(event, OutputChunk) and not looked.is_set():
            looked.set()
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.append(path.read_bytes().decode(errors="replace"))
                except OSError:
                    continue

    result = ground.run("echo $A; sleep 1", env={"A": secret}, on_event=look)
    assert printed(result) == f"{secret}\n"
    assert any("--json-status-fd" in line for line in seen)
    assert not [line for line in seen if secret in line]


ENTER = ["unshare", "--map-current-user", "--mount", "--keep-caps", "sh", "-ec"]
# bwrap refuses to start with ambient capabilities
DROP = 'exec setpriv --inh-caps=-all --ambient-caps=-all "$@"'


def with_mount(ground: Ground, program: str, *mount: str) -> "subprocess.CompletedProcess[str]":
    """Run Python where a tmpfs lies on `mount`."""
    steps = "; ".join(["true", *(f"mount -t tmpfs none '{path}'" for path in mount)])
    words = [*ENTER, f"{steps}; {DROP}", "sh", sys.executable, "-c", program]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


RUN = """
from unspill import Policy, Sandbox, UnspillError
try:
    sandbox = Sandbox({project!r}, policy=Policy(bwrap={bwrap!r}, engine={engine!r}, after="hold"))
    result = sandbox.run("echo x > mnt/file; echo y > file; cat mnt/file file")
    print(result.exit_code, result.stdout.kept().decode().split(), [change.path for change in result.changes])
except UnspillError as error:
    print(type(error).__name__, error.message, "|", error.remedy)
"""


def test_a_mount_below_a_root_is_named_with_the_remedy(ground: Ground, engine: str) -> None:
    mount = ground.project / "mnt"
    mount.mkdir()
    program = RUN.format(project=os.fspath(ground.project), bwrap=ground.bwrap, engine=engine)
    done = with_mount(ground, program, os.fspath(mount))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("UsageError ")
    assert f"mounted on {mount}" in done.stdout
    assert "| Unmount it, mount it outside the project, or choose a project directory without it" in done.stdout
    # The control arm: without the mount the same run works
    assert with_mount(ground, program).stdout == "0 ['x', 'y'] [b'file', b'mnt/file']\n"


def test_a_mount_beside_the_root_does_not_matter(ground: Ground, engine: str) -> None:
    (ground.project / "mnt").mkdir()
    beside = ground.home / "project-mnt"
    beside.mkdir()
    program = RUN.format(project=os.fspath(ground.project), bwrap=ground.bwrap, engine=engine)
    done = with_mount(ground, program, os.fspath(beside))
    assert done.stdout == "0 ['x', 'y'] [b'file', b'mnt/file']\n"


NESTED = ["--unshare-user", "--unshare-pid", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]


def test_inside_another_sandbox_it_seals_as_well(ground: Ground, engine: str) -> None:
    (ground.project / "mnt").mkdir()
    program = RUN.format(project=os.fspath(ground.project), bwrap=ground.bwrap, engine=engine)
    words = [os.fsdecode(ground.bwrap), *NESTED, sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "0 ['x', 'y'] [b'file', b'mnt/file']\n", done.stderr
    assert list((ground.project / "mnt").iterdir()) == []


def test_inside_a_sandbox_that_forbids_namespaces_it_refuses_and_says_why(ground: Ground) -> None:
    program = RUN.format(project=os.fspath(ground.project), bwrap=ground.bwrap, engine=None)
    words = [os.fsdecode(ground.bwrap), *NESTED, "--disable-userns", sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith("NamespacesForbidden "), done
    assert list(ground.project.iterdir()) == []
