# SPDX-License-Identifier: Apache-2.0
"""Secrets of a project: absent inside by every engine, the person's own file untouched whatever is applied."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import Event, Ground, kinds, printed, run_cli
from unspill import OutputChunk, RunResult, Sandbox, Selection
from unspill.errors import UsageError
from unspill.model.policy import Secrets
from unspill.policy.secrets import SECRET_NAMES
from unspill.sandbox import secrets
from unspill.sandbox.planning import make_spec
from unspill.sandbox.running import run_command

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap, pytest.mark.rootfs_view]

SECRET = "SECRET-of-the-person\n"
IN_CONFIG = Secrets(directories=(b"config", b"deploy/keys"))


@pytest.fixture
def secret(ground: Ground) -> Path:
    return ground.write(".env", SECRET)


def run_revealing(sandbox: Sandbox, command: str, *paths: bytes, after: Any = "hold") -> RunResult:
    """Run a command as if a person had granted it to see some secrets."""
    project = sandbox._project
    spec = make_spec(project, command, None, None, None)
    return run_command(project, spec.replace(revealed=paths, after=after))


def state_holds(ground: Ground, text: str) -> list[str]:
    """Return the files of the state directory that have a text in them."""
    found = subprocess.run(["grep", "-rlF", text.strip(), ground.state], capture_output=True, text=True, check=False)
    return found.stdout.splitlines()


LOOKS = [
    "cat .env", "ls -la .env", "stat .env", "test -e .env", "ls -A | grep -x .env", "cat < .env", "head -c1 ./././.env",
    "find . -name .env | grep .", "cp -a .env copy", "ln .env copy", "mv .env copy", "cat $PWD/.env",
    "cat /proc/self/cwd/.env", "tar cf - . | tar tf - | grep -x ./.env", "dd if=.env of=copy", "readlink -e .env",
    "python3 -c 'import os; os.open(\".env\", os.O_PATH)'", "mkdir d && mount --bind .env d", "grep -r SECRET .",
]  # fmt: skip


def test_a_masked_secret_is_absent_however_it_is_looked_for(ground: Ground, engine: str, secret: Path) -> None:
    script = "\n".join(f"if ( {look} ) 2>&1; then echo 'FOUND {number}'; fi" for number, look in enumerate(LOOKS))
    ground.write("seen.txt", "visible\n")
    result = ground.run(script + "\ncat seen.txt")
    text = printed(result)
    assert "FOUND" not in text
    assert "SECRET" not in text
    assert text.endswith("visible\n")
    assert kinds(result.changes) == {"d": "added"}
    assert secret.read_text() == SECRET


def test_without_the_mask_every_look_finds_it(ground: Ground, engine: str, secret: Path) -> None:
    readable = [look for look in LOOKS if "mount" not in look and "copy" not in look]
    script = "\n".join(f"if ( {look} ) >/dev/null 2>&1; then echo FOUND; fi" for look in readable)
    text = printed(ground.sandbox(secrets=Secrets(mask=False)).run(script))
    assert text.count("FOUND") == len(readable)


def test_every_name_of_the_table_is_absent(ground: Ground, engine: str) -> None:
    for name in SECRET_NAMES:
        ground.write(os.fsdecode(name), SECRET)
    ground.write(".env.example", "EXAMPLE\n")
    assert printed(ground.run("ls -A; cat .env.example")) == ".env.example\nEXAMPLE\n"


def test_a_secret_that_is_made_while_the_command_runs_is_not_seen(ground: Ground, engine: str) -> None:
    reading, writing = os.pipe()

    def make(event: Event) -> None:
        if isinstance(event, OutputChunk) and b"ready" in event.chunk:
            ground.write(".env", SECRET)
            ground.write("other", "visible\n")
            os.write(writing, b"go\n")

    try:
        result = ground.run("echo ready; read line; cat other; cat .env; ls -A", stdin=reading, on_event=make)
    finally:
        os.close(reading)
        os.close(writing)
    assert b"visible" in result.stdout.kept()
    assert b".env" not in result.stdout.kept()
    assert b"SECRET" not in result.stdout.kept()


def test_directories_of_the_policy_are_masked_and_look_as_they_do_outside(ground: Ground, engine: str) -> None:
    for path in ("config/.env", "deploy/keys/id_rsa", "deploy/.env", "config/app.toml"):
        ground.write(path, SECRET if path != "config/app.toml" else "x")
    for name, mode, mtime in (("config", 0o750, 1_234_567_890), ("deploy/keys", 0o700, 1_000_000_000)):
        (ground.project / name).chmod(mode)
        os.utime(ground.project / name, (mtime, mtime))
    os.setxattr(ground.project / "config", "user.colour", b"blue")
    os.utime(ground.project, (1_111_111_111, 1_111_111_111))
    look = "stat -c '%n %a %u %g %Y %F' . config deploy deploy/keys"
    outside = subprocess.run(["sh", "-c", look], cwd=ground.project, capture_output=True, text=True, check=True).stdout
    sandbox = ground.sandbox(secrets=IN_CONFIG)
    # Not yet found, nor in a directory that is named
    assert printed(sandbox.run(f"{look}; cat deploy/.env")) == outside + SECRET
    colour = 'python3 -c \'import os; print(os.getxattr("config", "user.colour"))\''
    script = f"ls -A config deploy/keys; {colour}"
    assert printed(sandbox.run(script)) == "config:\napp.toml\n\ndeploy/keys:\nb'blue'\n"
    assert not sandbox.run("cat config/.env").ok
    assert not sandbox.changes()


def test_a_directory_that_is_a_link_is_masked_where_it_leads(ground: Ground, engine: str) -> None:
    ground.write("real/.env", SECRET)
    (ground.project / "config").symlink_to("real")
    result = ground.sandbox(secrets=IN_CONFIG).run("cat config/.env real/.env; ls -A real")
    assert result.stdout.kept() == b""


def test_every_root_is_masked(ground: Ground, engine: str, secret: Path) -> None:
    second = ground.home / "second"
    second.mkdir()
    (second / ".env").write_text(SECRET)
    (second / "seen").write_text("visible\n")
    result = ground.sandbox(roots=(os.fsencode(second),)).run(f"cat {second}/seen; cat .env {second}/.env")
    assert result.stdout.kept() == b"visible\n"


def test_other_kinds_of_files_are_masked_and_directories_are_not(ground: Ground, engine: str) -> None:
    (ground.project / ".env").symlink_to("elsewhere")
    os.mkfifo(ground.project / ".npmrc")
    ground.write(".netrc/inside", "visible\n")
    result = ground.run("cat .netrc/inside; ls -A")
    assert printed(result) == "visible\n.netrc\n"


def test_what_a_command_makes_is_its_own_and_held(ground: Ground, engine: str, secret: Path) -> None:
    sandbox = ground.sandbox(after="apply")
    result = sandbox.run("echo own > .env && cat .env && echo x > other")
    assert printed(result) == "own\n"
    assert (kinds(result.changes), result.held) == ({".env": "added", "other": "added"}, True)
    assert secret.read_text() == SECRET
    assert (ground.project / "other").read_text() == "x\n"
    assert printed(sandbox.run("cat .env; ls -A")) == "own\n.env\nother\n"
    assert "SECRET" not in sandbox.diff()
    assert "+own" in sandbox.diff()
    assert not state_holds(ground, SECRET)


def test_an_included_file_is_a_conflict_with_the_persons_own(ground: Ground, engine: str, secret: Path) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo own > .env")
    (left,) = sandbox.apply(Selection(included=(b".env",))).left
    assert (left.path, left.why) == (b".env", "conflict")
    assert secret.read_text() == SECRET
    assert not state_holds(ground, SECRET)
    sandbox.apply(Selection(included=(b".env",), overwrite=(b".env",)))
    assert secret.read_text() == "own\n"
    sandbox.undo()
    assert secret.read_text() == SECRET


def test_an_included_file_is_applied_where_there_is_none(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox(after="apply")
    assert sandbox.run("echo own > .env; mkdir sub; echo x > sub/.env").held
    assert not (ground.project / ".env").exists()
    assert (ground.project / "sub/.env").exists()
    assert not sandbox.apply(Selection(included=(b".env",))).left
    assert (ground.project / ".env").read_text() == "own\n"
    sandbox.undo()
    assert not (ground.project / ".env").exists()


@pytest.mark.parametrize(
    "command",
    [
        "echo x > x; mv x .env",
        "ln -s /etc/passwd .env",
        "echo x > .env; rm .env",
        "mkdir .env; touch .env/x",
        "echo x > .env; chmod 777 .env; touch .env",
        "mkfifo .env",
        "rm -rf config; mkdir config; echo x > config/.env",
        "mv config other; mv other config",
        "rm -rf config; echo x > config",
        "rm -rf config",
        "chmod 700 config; touch config/x; rm config/x",
        "ls -A | xargs rm -rf",
    ],
)
def test_nothing_that_a_command_does_changes_the_persons_secret(
    ground: Ground, engine: str, secret: Path, command: str
) -> None:
    deep = ground.write("config/.env", SECRET)
    ground.write("config/app.toml", "x")
    before = secret.stat(), deep.stat()
    sandbox = ground.sandbox(after="apply", secrets=IN_CONFIG)
    assert sandbox.run(command).ok
    sandbox.apply()
    assert [path.read_text() for path in (secret, deep)] == [SECRET, SECRET]
    assert [(found.st_ino, found.st_mtime_ns, found.st_mode) for found in before] == [
        (found.st_ino, found.st_mtime_ns, found.st_mode) for found in (secret.stat(), deep.stat())
    ]
    assert not state_holds(ground, SECRET)
    look = "for f in .env config/.env; do test -f $f && cat $f; done; grep -r --devices=skip SECRET ."
    assert SECRET.encode().strip() not in sandbox.run(look).stdout.kept()


def test_a_deleted_directory_of_secrets_is_held_whole(ground: Ground, engine: str) -> None:
    deep = ground.write("config/.env", SECRET)
    ground.write("config/app.toml", "x")
    ground.write("plain/app.toml", "x")
    result = ground.sandbox(after="apply", secrets=IN_CONFIG).run("rm -rf config plain")
    assert result.held
    assert deep.read_text() == SECRET
    assert (ground.project / "config/app.toml").exists()
    assert not (ground.project / "plain").exists()


def test_a_grant_shows_one_secret_to_one_run(ground: Ground, engine: str, secret: Path) -> None:
    ground.write(".npmrc", SECRET)
    sandbox = ground.sandbox()
    assert run_revealing(sandbox, "cat .env; cat .npmrc", b".env").stdout.kept() == SECRET.encode()
    assert run_revealing(sandbox, "cat .env .npmrc", b".env", os.fsencode(ground.project / ".npmrc")).ok
    assert not sandbox.run("cat .env").ok
    assert not sandbox.changes()


def test_a_revealed_secret_that_is_changed_is_held(ground: Ground, engine: str, secret: Path) -> None:
    sandbox = ground.sandbox()
    result = run_revealing(sandbox, "echo more >> .env", b".env", after="apply")
    assert (kinds(result.changes), result.held) == ({".env": "modified"}, True)
    assert secret.read_text() == SECRET
    assert kinds(sandbox.changes()) == {".env": "modified"}
    assert not sandbox.apply(Selection(included=(b".env",))).left
    assert secret.read_text() == SECRET + "more\n"
    sandbox.run("echo own > .env")
    assert kinds(sandbox.changes()) == {".env": "added"}


def test_a_changed_secret_is_not_seen_by_later_runs_without_the_grant(
    ground: Ground, engine: str, secret: Path
) -> None:
    ground.write("config/.env", SECRET)
    sandbox = ground.sandbox(secrets=IN_CONFIG)
    both = (b".env", b"config/.env")
    assert run_revealing(sandbox, "for f in .env config/.env; do echo more >> $f; done; echo x > x", *both).ok
    assert printed(sandbox.run("ls -A . config")) == ".:\nconfig\nx\n\nconfig:\n"
    assert not sandbox.apply(Selection(paths=(b"x",))).left
    assert not sandbox.run("cat .env config/.env").ok
    assert printed(run_revealing(sandbox, "cat .env; ls config", b".env")) == SECRET + "more\n"
    sandbox.run("echo own > .env; echo y > y")
    assert printed(sandbox.run("cat .env")) == "own\n"
    sandbox.discard(["y"])
    assert SECRET.encode().strip() not in sandbox.run("cat .env config/.env; grep -r SECRET .").stdout.kept()
    assert (ground.project / ".env").read_text() == SECRET


@pytest.mark.parametrize("path", [b"other", b"sub/.env", b"../.env", b"/etc/passwd", b"."])
def test_what_is_not_masked_can_not_be_revealed(ground: Ground, path: bytes) -> None:
    with pytest.raises(UsageError, match="can't be revealed"):
        run_revealing(ground.sandbox(), "true", path)


def test_what_the_persons_policy_reveals_is_shown(ground: Ground, engine: str, secret: Path) -> None:
    ground.write(".npmrc", SECRET)
    sandbox = ground.sandbox(secrets=Secrets(reveal=(b".npmrc",), names=(b"my.key",)))
    ground.write("my.key", SECRET)
    assert printed(sandbox.run("cat .npmrc; ls -A")) == f"{SECRET}.npmrc\n"


def test_a_failed_command_that_names_a_masked_secret_gets_a_hint(ground: Ground, engine: str, secret: Path) -> None:
    sandbox = ground.sandbox()
    for command in ("cat .env", "cat ./.env", f"cat {secret}"):
        assert [hint.text for hint in sandbox.run(command).hints] == [".env is hidden as a secret."]
    assert not sandbox.run("cat .npmrc; false").hints
    assert not sandbox.run("cat .env || true").hints
    assert b"with `--reveal .env`." in run_cli("run", "--", "cat", ".env", cwd=ground.project).stderr


def test_a_held_file_that_is_deleted_again_is_no_deletion_of_the_secret(
    ground: Ground, engine: str, secret: Path
) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo own > .env; echo x > kept")
    sandbox.run("rm .env")
    assert kinds(sandbox.changes()) == {"kept": "added"}
    assert not sandbox.apply().left
    assert secret.read_text() == SECRET


def test_a_part_of_what_is_held_can_be_discarded(ground: Ground, engine: str, secret: Path) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo own > .env; echo x > kept")
    assert sandbox.discard([".env"]).changed == 1
    assert printed(sandbox.run("ls -A")) == "kept\n"
    assert secret.read_text() == SECRET


def test_a_mask_is_not_made_anew_for_each_run(ground: Ground, engine: str, secret: Path) -> None:
    sandbox = ground.sandbox()
    for number in range(3):
        sandbox.run("true")
        ground.write(f"new-{number}")
    assert len([name for name in os.listdir(ground.state / "masks") if not name.startswith(".")]) == 1


def test_nothing_is_masked_by_a_mount(ground: Ground, engine: str, secret: Path) -> None:
    ground.write("config/.env", SECRET)
    sandbox = ground.sandbox(secrets=IN_CONFIG)
    result = sandbox.run("cat /proc/self/mountinfo")
    points = [line.split()[4] for line in printed(result).splitlines()]
    assert not [point for point in points if point.startswith(f"{ground.project}/")]


def test_a_large_directory_is_asked_name_by_name(ground: Ground, engine: str, secret: Path) -> None:
    for number in range(600):
        ground.write(f"a-name-that-is-rather-long-{number:04}")
    assert ground.project.stat().st_size > secrets._SMALL
    ground.write(".netrc/inside", "visible\n")
    result = ground.run("cat .netrc/inside; cat .env")
    assert result.stdout.kept() == b"visible\n"
