# SPDX-License-Identifier: Apache-2.0
"""What a command must not read: secrets of the person by path, and variables of the caller."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena, naive_bwrap, python, replaced, shown_as_it_is, wait_until
from tests.support import chosen_views
from unspill import UnspillError
from unspill.model.plan import File, ReadOnly, Tmpfs
from unspill.policy.defaults import ALLOWED_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support import Ground
    from unspill.model.plan import MountOp

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

# New each time: this file itself may be among what a sandbox shows
CANARY = f"CANARY-{os.urandom(6).hex()}"

# Known to be secret wherever they are found: masked in view `host` too
MASKED = """
.ssh/id_rsa .ssh/id_ed25519 .ssh/config .ssh/known_hosts .aws/credentials .aws/config .azure/accessTokens.json
.config/gcloud/credentials.db .config/gcloud/application_default_credentials.json .kube/config .docker/config.json
.netrc .npmrc .pypirc .git-credentials .config/git/credentials .gnupg/private-keys-v1.d/k .password-store/x.gpg
.config/gh/hosts.yml .config/hub .pgpass .my.cnf .vault-token .cargo/credentials.toml .gem/credentials .m2/settings.xml
.gradle/gradle.properties .config/rclone/rclone.conf .terraform.d/credentials.tfrc.json .bash_history .zsh_history
.python_history .psql_history .mozilla/firefox/p/logins.json .config/google-chrome/Default/Cookies
.config/chromium/Default/Login .config/Code/User/globalStorage/state.vscdb .local/share/keyrings/login.keyring
.claude/.credentials.json .claude.json .codex/auth.json .gemini/oauth.json .config/github-copilot/hosts.json
.config/containers/auth.json .huggingface/token .kaggle/kaggle.json .databrickscfg .s3cfg .oci/config .thunderbird/p/x
.electrum/wallets/default .config/Signal/config.json .local/share/TelegramDesktop/tdata/x .composer/auth.json
""".split()

# Private because nothing shows the home directory; view `host` is for people who want them seen
UNSHOWN = """
Documents/taxes.txt Desktop/todo other-project/.env other-project/src/main.py notes .config/app/settings.json
Downloads/x .local/share/app/state .cache/thumbnails/x Mail/inbox playground/of-the-person .config/unspill/config.toml
.local/share/unspill/playground/another-0000/x
""".split()

SEARCH = """
canary, paths, below = "-".join(%r), %r, %r
for path in paths:
    beside = "/proc/self/cwd/../" + path.split("/home/", 1)[-1]
    for spelling in (path, "/proc/self/root" + path, "/proc/1/root" + path, beside):
        try:
            with open(spelling, "rb") as file: content = file.read()
        except OSError: continue
        if canary.encode() in content: won(spelling)
elsewhere = [f"--exclude-dir={name}" for name in ("proc", "usr", "opt")]
words = ["grep", "-rlsIF", "--devices=skip", *elsewhere, canary, below]
for line in subprocess.run(words, capture_output=True, text=True).stdout.splitlines(): won("grep", line)
if any(canary in word for word in os.environ.values()): won("environment")
"""


def plant(ground: Ground, names: Sequence[str]) -> list[Path]:
    """Write the canary to files of the person's home directory."""
    made = [ground.home / name for name in names]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {CANARY}\n")
        path.chmod(0o600)
    return made


def plant_elsewhere(ground: Ground) -> list[Path]:
    """Write it beside the project, into the state directory and into the shared places of the host."""
    mine = [ground.home / "beside", ground.top / "above", ground.state / "layers-of-another", ground.state / "runs/out"]
    for path in mine:
        path.write_text(f"# {CANARY}\n")
    shared = [Path(top, f"unspill-canary-{os.getpid()}") for top in ("/tmp", "/var/tmp", "/dev/shm")]
    for path in shared:
        path.write_text(f"# {CANARY}\n")
        path.chmod(0o600)
    return [*mine, *shared]


def search(paths: Sequence[Path], below: str | Path = "/") -> str:
    # Not in one piece: the script itself can be read in /proc
    return SEARCH % (CANARY.split("-"), [*map(os.fspath, paths)], os.fspath(below))


def test_a8_no_secret_of_the_person_can_be_found_in_view_sealed(arena: Arena, engine: str) -> None:
    """Plant a canary in eighty well-known places; read each by several spellings, and grep all that is shown.
    Control: with the home directory shown read-only the same script finds them all."""
    planted = plant(arena.ground, [*MASKED, *UNSHOWN])
    elsewhere = plant_elsewhere(arena.ground)
    try:
        assert len(planted) >= 60
        assert not arena.attack(search([*planted, *elsewhere])).won
        home = os.fsencode(arena.ground.home)
        with arena.plan_changed(lambda mounts: replaced(mounts, home, shown_as_it_is(home))):
            found = arena.attack(search(planted)).won
        assert {os.fspath(path) for path in planted} - set(found) <= {
            os.fspath(arena.ground.home / "playground/of-the-person")
        }
    finally:
        for path in elsewhere[-3:]:
            path.unlink()


def test_a8_known_secrets_are_masked_in_view_host(arena: Arena, engine: str) -> None:
    """The same in view `host`, which shows the home directory, for what is known to be secret, and for unspill's own.
    Control: without the masks the same script finds them."""
    own = [".config/unspill/config.toml", ".local/share/unspill/playground/another-0000/x"]
    planted = plant(arena.ground, [*MASKED, *own])
    sandbox = arena.ground.sandbox(view="host")
    script = search([*planted, arena.ground.state / "runs/out"], below=arena.ground.top)
    assert not arena.attack(script, sandbox=sandbox).won

    def unmasked(mounts: Sequence[MountOp]) -> list[MountOp]:
        masks = {op.dest for op in mounts if isinstance(op, Tmpfs) and op.why.startswith(("secrets", "unspill"))}
        masks |= {op.dest for op in mounts if isinstance(op, File) and op.over}
        return [op for op in mounts if op.dest not in masks or (isinstance(op, ReadOnly) and op.dest == b"/")]

    with arena.plan_changed(unmasked):
        found = set(arena.attack(script, sandbox=sandbox).won)
    assert {os.fspath(path) for path in planted} <= found


def test_a8_a_symlink_in_the_project_leads_to_no_secret(arena: Arena) -> None:
    """The project has links to secrets, to the home directory and to the state directory.
    Control: on the host the same links are read."""
    [key] = plant(arena.ground, [".ssh/id_rsa"])
    for name, target in {
        "key": key,
        "home": arena.ground.home,
        "up": Path("../.ssh"),
        "state": arena.ground.state,
    }.items():
        (arena.ground.project / name).symlink_to(target)
    (arena.ground.state / "runs/out").write_text(CANARY)
    links = [arena.ground.project / name for name in ("key", "home/.ssh/id_rsa", "up/id_rsa", "state/runs/out")]
    assert all(CANARY in link.read_text() for link in links)
    for view in chosen_views():
        assert not arena.attack(search(links, below=arena.ground.project), view=view).won, view


@pytest.mark.parametrize("view", chosen_views())
def test_a8_the_working_directory_tells_nothing_about_files_that_are_not_shown(arena: Arena, view: str) -> None:
    """Ask for working directories that are hidden files, and that are nothing at all: one answer.
    Control: a file of the project, which may be seen, has another answer than nothing."""
    plant(arena.ground, [".ssh/id_rsa"])
    (arena.ground.project / "file").write_text("")
    for directory, name in ((arena.ground.home / ".ssh", "id_rsa"), (arena.ground.state, "store.db")):
        assert answer(arena, view, directory, name) == answer(arena, view, directory, "missing")
    assert answer(arena, view, arena.ground.project, "file") != answer(arena, view, arena.ground.project, "missing")


def answer(arena: Arena, view: str, directory: Path, name: str) -> str:
    try:
        outcome = arena.ground.sandbox(view=view).run(["true"], cwd=os.fspath(directory / name)).outcome
    except UnspillError as error:
        return error.message.replace(name, "NAME")
    return repr(outcome)


VARIABLES = """
AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN GITHUB_TOKEN GH_TOKEN GITLAB_TOKEN OPENAI_API_KEY ANTHROPIC_API_KEY HF_TOKEN
NPM_TOKEN PYPI_PASSWORD TWINE_PASSWORD DATABASE_URL PGPASSWORD MYSQL_PWD REDIS_URL SSH_AUTH_SOCK SSH_ASKPASS
DBUS_SESSION_BUS_ADDRESS XAUTHORITY DISPLAY WAYLAND_DISPLAY XDG_RUNTIME_DIR KUBECONFIG DOCKER_HOST VAULT_TOKEN
GPG_AGENT_INFO GOOGLE_APPLICATION_CREDENTIALS AZURE_CLIENT_SECRET STRIPE_API_KEY SLACK_TOKEN SENTRY_DSN LD_PRELOAD
LD_LIBRARY_PATH BASH_ENV ENV PYTHONPATH PYTHONSTARTUP PERL5LIB NODE_OPTIONS HTTP_PROXY https_proxy GIT_ASKPASS
SUDO_ASKPASS EDITOR MY_APP_X
""".split()

READ_VARIABLES = """
canary = "-".join(%r)
for name, value in os.environ.items():
    if canary in value: won(name)
for pid in filter(str.isdecimal, os.listdir("/proc")):
    for file in ("environ", "cmdline"):
        try: content = open(f"/proc/{pid}/{file}", "rb").read()
        except OSError: continue
        if canary.encode() in content: won(pid, file)
"""


def test_a11_no_variable_of_the_caller_is_seen_inside(arena: Arena) -> None:
    """Put the canary into fifty variables of the caller; read the environment and that of every process.
    Control: a bwrap call without `--clearenv` has them all."""
    for name in VARIABLES:
        arena.patch.setenv(name, f"{CANARY}-{name}")
    assert not ALLOWED_VARIABLES.intersection(VARIABLES)
    script = READ_VARIABLES % (CANARY.split("-"),)
    for view in chosen_views():
        assert not arena.attack(script, view=view).won
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        arena.patch.delenv(name)
    naive = naive_bwrap(arena.ground.bwrap, "--proc", "/proc", "--unshare-pid", *python(script))
    assert naive.stdout.count(b"WON") > 40, naive


def test_a11_no_value_of_a_variable_is_on_a_command_line_of_the_host(arena: Arena) -> None:
    """Give a variable to a command on purpose, and read the command lines of all processes while it runs.
    Control: with `--setenv` as an argument the same look finds it."""
    given, seen = {"GIVEN": CANARY}, []
    running = threading.Event()

    def look(event: object) -> None:
        if type(event).__name__ == "OutputChunk" and not running.is_set():
            running.set()
            seen.extend(on_command_lines(CANARY))

    result = arena.ground.sandbox().run("echo $GIVEN; sleep 0.2", env=given, on_event=look)
    assert running.is_set()
    assert CANARY.encode() in result.stdout.head
    assert seen == []
    words = ["--setenv", "GIVEN", CANARY, "sleep", "1"]
    thread = threading.Thread(target=naive_bwrap, args=(arena.ground.bwrap, *words))
    thread.start()
    assert wait_until(lambda: on_command_lines(CANARY))
    thread.join()


def on_command_lines(text: str) -> list[str]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if text.encode() in Path("/proc", pid, "cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found
