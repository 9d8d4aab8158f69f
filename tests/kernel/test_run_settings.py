# SPDX-License-Identifier: Apache-2.0
"""The files that decide: the person's own may widen, a project's only tightens, and what is not understood stops."""

import os
import resource
from contextlib import suppress
from typing import Any

import pytest

from tests.support import Ground, find_native_bwrap, kinds, printed
from unspill import Limits, Policy, Sandbox, TimedOut
from unspill.errors import PolicyError, SandboxUnavailable, UsageError
from unspill.model.policy import Network, Rules
from unspill.policy.config import AFTER
from unspill.sandbox.project import _AFTER

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


def opened(ground: Ground) -> Sandbox:
    """Open the sandbox as a program would that leaves everything to the files."""
    sandbox = Sandbox(ground.project)
    ground.opened.append(sandbox)
    return sandbox


def test_the_persons_file_widens(ground: Ground) -> None:
    for name in ("notes", "library"):
        (ground.home / name).mkdir()
        (ground.home / name / "file").write_text(f"{name}\n")
    ground.configure('readable = ["~/notes"]\nroots = ["~/library"]\nafter = "discard"\n[limits]\nwall_s = 30\n')
    result = opened(ground).run(f"cat {ground.home}/notes/file; echo x > {ground.home}/library/file")
    assert printed(result) == "notes\n"
    assert kinds(result.changes) == {"file": "modified"}
    assert not result.held


def test_the_file_is_looked_for_in_the_xdg_directory(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ground.top / "elsewhere" / "unspill"
    place.mkdir(parents=True)
    (place / "config.toml").write_text('view = "host"\n')
    (ground.home / "seen").write_text("seen\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(place.parent))
    assert printed(opened(ground).run("cat ~/seen")) == "seen\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_setting = 1", "no_such_setting: there is no such setting"),
        ("view = 'everything'", "view: must be one of"),
        ("after = ", "not valid TOML"),
        ("[limits]\nwall = 3", "limits.wall: there is no such limit"),
        ("[limits]\nwall_s = -1", "limits.wall_s: must be a number of seconds"),
        ("readable = 'x'", "readable: must be a list of paths"),
        ("readable = ['relative']", "readable"),
        ("roots = ['~/*']", "wildcard"),
        ("environment = ['LD_PRELOAD']", "never enters a sandbox"),
        ("after = 'never'", "after: must be one of"),
        ("after_timeout = 1", "after_timeout: must be one of"),
        ("after_cancel = 1", "after_cancel: must be one of"),
    ],
)
def test_what_is_not_understood_stops_the_run(ground: Ground, text: str, message: str) -> None:
    ground.configure(text)
    with pytest.raises(PolicyError, match=message) as refused:
        opened(ground)
    assert "config.toml" in refused.value.message
    assert refused.value.remedy
    assert ground.left_behind() == []


@pytest.mark.parametrize("kind", ["unreadable", "directory", "fifo", "binary", "huge", "dangling"])
def test_a_file_that_can_not_be_read_stops_the_run(ground: Ground, kind: str) -> None:
    ground.configure("")
    path = ground.home / ".config" / "unspill" / "config.toml"
    if kind == "unreadable":
        path.chmod(0)
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe")
    elif kind == "huge":
        path.write_bytes(b"#" * (2 << 20))
    else:
        path.unlink()
        if kind == "directory":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to("nowhere")
    with pytest.raises(PolicyError):
        opened(ground)


def test_an_empty_file_changes_nothing(ground: Ground) -> None:
    ground.configure("")
    assert opened(ground).run("true").ok


def test_a_project_may_tighten(ground: Ground) -> None:
    for name in (".cargo/bin", "shown/hidden/deep"):
        (ground.home / name).mkdir(parents=True)
    ground.configure("readable = ['~/shown']\n")
    ground.write(
        ".unspill.toml", 'toolchains = false\nafter = "discard"\nhidden = ["~/shown/hidden"]\n[limits]\nwall_s = 0.5\n'
    )
    sandbox = opened(ground)
    result = sandbox.run(f"test ! -e ~/.cargo && touch new && ls -A {ground.home}/shown/hidden")
    assert printed(result) == ""
    assert not result.held
    assert sandbox.run("sleep 5").outcome == TimedOut(after_s=0.5)


@pytest.mark.parametrize(
    "text",
    [
        'view = "host"',
        'roots = ["/home"]',
        'readable = ["~/.ssh"]',
        'environment = ["AWS_SECRET_ACCESS_KEY"]',
        "allow_root = true",
        'bwrap = "/tmp/bwrap"',
        'engine = "native"',
        "[limits]\nwall_s = 6000",
        '[limits]\nlayer_bytes = "unlimited"',
        "shown_lines = 1000000",
        "keep_days = 1",
        'after_timeout = "apply"',
        'after_cancel = "apply"',
        "no_such_setting = 1",
        "not toml",
    ],
)
def test_a_project_that_asks_for_more_stops_the_run(ground: Ground, text: str) -> None:
    ground.write(".unspill.toml", text)
    with pytest.raises(PolicyError, match=r"\.unspill\.toml"):
        opened(ground)


def test_a_policy_given_by_a_program_is_tightened_too(ground: Ground) -> None:
    ground.write(".unspill.toml", "toolchains = false\n")
    (ground.home / ".cargo/bin").mkdir(parents=True)
    assert not ground.sandbox(toolchains=True).run("test -e ~/.cargo").ok


def test_a_projects_file_that_is_a_link_is_not_followed(ground: Ground) -> None:
    target = ground.top / "target.toml"
    target.write_text("")
    (ground.project / ".unspill.toml").symlink_to(target)
    with pytest.raises(PolicyError):
        opened(ground)


def test_what_a_command_writes_into_the_projects_file_is_not_obeyed(ground: Ground) -> None:
    ground.sandbox().run("echo 'no_such_setting = 1' > .unspill.toml")
    # It is held, not in the project: the next opening reads the live file only
    assert opened(ground).run("true").ok


def test_a_projects_file_is_not_applied_without_consent(ground: Ground) -> None:
    ground.write(".unspill.toml", "caches = false\n")
    result = ground.sandbox(after="apply").run("echo 'no_such_setting = 1' > .unspill.toml; touch new")
    assert result.operation is not None
    assert [(left.path, left.why) for left in result.operation.left] == [(b".unspill.toml", "held")]
    assert (ground.project / "new").exists()
    result = ground.sandbox("other", after="apply").run("rm .unspill.toml")
    assert (ground.project / ".unspill.toml").read_text() == "caches = false\n"
    assert result.held


def test_a_policy_may_switch_the_engine(ground: Ground, trusted_bwrap: bytes) -> None:
    bwrap = find_native_bwrap(os.fsdecode(trusted_bwrap))
    ground.configure(f'engine = "native"\nbwrap = "{os.path.realpath(bwrap)}"\n')
    sandbox = opened(ground)
    assert sandbox.engine == "native"
    assert sandbox.run("touch file").ok


def test_an_engine_that_is_gone_is_refused_with_what_to_do(ground: Ground) -> None:
    with pytest.raises(PolicyError, match="engine is not one of mount, native: 'copy'") as by_a_program:
        ground.sandbox(engine="copy")
    ground.configure('engine = "copy"\n')
    with pytest.raises(PolicyError, match='engine: "copy" is no longer supported') as by_a_file:
        opened(ground)
    for refused in (by_a_program, by_a_file):
        assert "Remove the setting `engine`" in refused.value.remedy


def test_how_much_a_model_is_shown_can_be_set(ground: Ground) -> None:
    ground.configure("shown_lines = 2\n")
    assert opened(ground).run("seq 5").text().startswith("1\n2\n\n// ... (output truncated: showing first 2 of 5 lines")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"profile": "strct"}, "profile is not one of default, strict: 'strct'"),
        ({"view": "hst"}, "view is not one of sealed, host, rootfs: 'hst'"),
        ({"after": "held"}, "after is not one of apply, hold, discard: 'held'"),
        ({"after_timeout": "held"}, "after_timeout is not one of apply, hold, discard: 'held'"),
        ({"after_cancel": "held"}, "after_cancel is not one of apply, hold, discard: 'held'"),
        ({"engine": "quick"}, "engine is not one of mount, native: 'quick'"),
        ({"network": Network(mode="open")}, "network.mode is not one of proxy, host: 'open'"),  # type: ignore[arg-type]
        ({"network": Network(mode="pasta")}, "network.mode is not one of proxy, host: 'pasta'"),  # type: ignore[arg-type]
        ({"network": Network(mode=["pasta"])}, "network.mode is not one of proxy, host: ['pasta']"),  # type: ignore[arg-type]
        ({"permissions": Rules(network="allow")}, "permissions.network is not one of ask, deny: 'allow'"),  # type: ignore[arg-type]
        ({"permissions": Rules(longest="ever")}, "permissions.longest is not one of once, run,"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_word_that_no_policy_knows_is_named_before_anything_is_opened(
    ground: Ground, setting: dict[str, Any], message: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        Sandbox(ground.project, policy=Policy(**setting))
    assert f"the policy's {message}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"after": "held"}, "`after` is not one of apply, hold, discard: 'held'"),
        ({"after": ""}, "`after` is not one of"),
        ({"after_cancel": "held"}, "`after_cancel` is not one of apply, hold, discard: 'held'"),
        ({"after": "discard", "after_cancel": "hold"}, "a run that discards its changes can't keep them"),
        ({"stdin": True}, "`stdin` can't be bool"),
        ({"stdin": -1}, "`stdin` can't be int"),
        ({"stdin": 1.5}, "`stdin` can't be float"),
        ({"stdin": bytearray(b"x")}, "`stdin` can't be bytearray"),
        ({"stdin": ["x"]}, "`stdin` can't be list"),
        ({"stdin": "\ud800"}, "`stdin` is not a text that UTF-8 has"),
        ({"timeout": 0}, "the timeout must be more than 0 seconds: 0"),
        ({"timeout": -1.5}, "more than 0 seconds: -1.5"),
        ({"timeout": float("nan")}, "more than 0 seconds: nan"),
        ({"limits": Limits(wall_s=0)}, "more than 0 seconds: 0"),
    ],
    ids=str,
)
def test_what_no_run_can_have_is_refused_before_it_begins(
    ground: Ground, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        ground.sandbox().run("touch ran", **options)
    assert message in str(caught.value)
    assert not (ground.project / "ran").exists()


def test_the_words_for_afterwards_are_the_same_everywhere() -> None:
    assert _AFTER == AFTER


def test_a_caller_without_descriptors_is_told_so_and_loses_none(ground: Ground) -> None:
    sandbox = ground.sandbox()
    assert sandbox.run("true").ok
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    remedies: list[str] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        before = len(taken)
        for _ in range(40):
            try:
                result = sandbox.run("true")
                break
            except SandboxUnavailable as error:
                remedies.append(error.remedy)
            os.close(taken.pop())
        assert result.ok
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, hard)
    assert all(remedies)
    assert any("ulimit -n" in remedy for remedy in remedies)
    # Each refusal gave back what it had: one descriptor more at a time is enough in the end
    assert before - len(taken) == len(remedies) < 30
    assert sandbox.run("true").ok
