# SPDX-License-Identifier: Apache-2.0
"""What a command must not read: secrets by path, eighty canaries, the caller's variables; what our own words tell."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.attack.arena import Arena, naive_bwrap, python, replaced, shown_as_it_is, wait_until
from tests.attack.canaries import Canary, planted, search, table
from tests.support import chosen_views, run_cli
from unspill import UnspillError
from unspill.errors import SandboxUnavailable
from unspill.host import places
from unspill.layers.trees import remove_tree
from unspill.model.plan import File, ReadOnly, Tmpfs
from unspill.model.policy import Secrets
from unspill.plan.explain import Judge, Refusal, remedy_of
from unspill.policy.defaults import ALLOWED_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def search_below(paths: Sequence[Path], below: str | Path = "/") -> str:
    # Not in one piece: the script itself can be read in /proc
    return SEARCH % (CANARY.split("-"), [*map(os.fspath, paths)], os.fspath(below))


def test_a8_no_secret_of_the_person_can_be_found_in_view_sealed(arena: Arena, engine: str) -> None:
    """Plant a canary in eighty well-known places; read each by several spellings, and grep all that is shown.
    Control: with the home directory shown read-only the same script finds them all."""
    planted = plant(arena.ground, [*MASKED, *UNSHOWN])
    elsewhere = plant_elsewhere(arena.ground)
    try:
        assert len(planted) >= 60
        assert not arena.attack(search_below([*planted, *elsewhere])).won
        home = os.fsencode(arena.ground.home)
        with arena.plan_changed(lambda mounts: replaced(mounts, home, shown_as_it_is(home))):
            found = arena.attack(search_below(planted)).won
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
    script = search_below([*planted, arena.ground.state / "runs/out"], below=arena.ground.top)
    assert not arena.attack(script, sandbox=sandbox).won

    def unmasked(mounts: Sequence[MountOp]) -> list[MountOp]:
        masks = {op.dest for op in mounts if isinstance(op, Tmpfs) and op.why.startswith(("secrets", "unspill"))}
        masks |= {op.dest for op in mounts if isinstance(op, File) and op.over}
        return [op for op in mounts if op.dest not in masks or (isinstance(op, ReadOnly) and op.dest == b"/")]

    with arena.plan_changed(unmasked):
        found = set(arena.attack(script, sandbox=sandbox).won)
    assert {os.fspath(path) for path in planted} <= found


def test_a8_a_file_that_a_secret_directory_links_to_is_masked_in_view_host(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read credentials where a tool for dotfiles keeps them, with a link in ~/.aws.
    Control: where such links are not followed the same command reads them."""
    kept = ground.home / "dotfiles/aws-credentials"
    kept.parent.mkdir()
    kept.write_text("CANARY")
    (ground.home / ".aws").mkdir()
    (ground.home / ".aws/credentials").symlink_to(kept)
    read = ["cat", os.fspath(kept)]
    assert ground.sandbox(view="host").run(read).stdout.head == b""
    monkeypatch.setattr(places, "find_linked_files", lambda *_given: ())
    assert ground.sandbox("control", view="host").run(read).stdout.head == b"CANARY"


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
        assert not arena.attack(search_below(links, below=arena.ground.project), view=view).won, view


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
        outcome = arena.ground.sandbox(view=view).run(["true"], working_dir=os.fspath(directory / name)).outcome
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


CANARIES = table()
BEGINNING = CANARIES[0].word.rpartition("-")[0]
IN_CONFIG = Secrets(directories=(b"config",))


def found_by(text: str) -> set[Canary]:
    """Return the canaries that a search says it has won."""
    won = {line.split()[1] for line in text.splitlines() if line.startswith("WON ")}
    return {canary for canary in CANARIES if canary.word in won}


def in_state(ground: Ground) -> set[str]:
    """Return the words of canaries that lie anywhere in the state directory."""
    words = ["grep", "-rhoaE", BEGINNING + "-[0-9]{3}", os.fspath(ground.state)]
    return set(subprocess.run(words, capture_output=True, text=True, check=False).stdout.split())


@pytest.mark.any_bwrap
def test_there_are_at_least_thirty_and_each_is_one_of_a_kind() -> None:
    assert len(CANARIES) >= 30
    assert len({canary.word for canary in CANARIES}) == len(CANARIES) == len({(c.kind, c.where) for c in CANARIES})


def test_a8_none_of_eighty_canaries_is_found_inside_nor_left_in_any_record(arena: Arena, engine: str) -> None:
    """Plant secrets in files, variables, processes, descriptors, sockets, a keyring, shared memory, the project and our
    own directories; read, grep, connect and ask for them all inside; then grep output, plan, records and state.
    Control: the same search on the host itself finds every single one."""
    ground = arena.ground
    with planted(ground, CANARIES, arena.patch) as made:
        sandbox = ground.sandbox(after="apply", secrets=IN_CONFIG)
        attempt = arena.attack(search(ground, CANARIES, made, ("/",)), sandbox=sandbox)
        assert attempt.won == ()
        result = attempt.result
        assert sandbox.run("echo x > new && mkdir made && echo y > made/new").ok
        sandbox.undo()
        texts = [result.stdout.kept(), result.stderr.kept(), repr(result).encode(), repr(sandbox.runs()).encode()]
        texts += [sandbox.explain("true").encode(), sandbox.diff().encode()]
        assert [text for text in texts if BEGINNING.encode() in text] == []
        assert in_state(ground) == {canary.word for canary in CANARIES if canary.kind in ("own", "held")}
        missed = set(CANARIES) - found_outside(ground, search(ground, CANARIES, made, (os.fspath(ground.top),)))
    assert missed == set()


def found_outside(ground: Ground, script: str) -> set[Canary]:
    """Run the search as a person's own command would run: with every variable and descriptor of the caller."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", python(script)[-1]],
        cwd=ground.project,
        capture_output=True,
        text=True,
        check=True,
        close_fds=False,
        timeout=30,
    )
    return found_by(done.stdout)


def test_a8_canaries_that_are_known_secrets_are_not_found_in_view_host(arena: Arena, engine: str) -> None:
    """The same search in view `host`, where the home directory is shown, for all but ordinary files of the person.
    Control: the search of the sealed view has shown on the host that it finds every single one."""
    ordinary = {"Documents/taxes.txt", "other-project/.env", "other-project/src/main.py", ".Xauthority"}
    ordinary |= {".local/share/klipper/history2.lst", "/var/tmp", "/tmp", "/dev/shm"}
    ground = arena.ground
    with planted(ground, CANARIES, arena.patch) as made:
        script = search(ground, CANARIES, made, (os.fspath(ground.top),))
        attempt = arena.attack(script, view="host", secrets=IN_CONFIG)
    assert {canary.where for canary in found_by("\n".join(attempt.lines))} <= ordinary


def told(ground: Ground, guesses: tuple[str, str]) -> set[str]:
    """Return what is told of two paths that a model guesses, one that exists and one that does not."""
    texts = [ground.run(["stat", guess]).text().replace(guess, "GUESS") for guess in guesses]
    assert all("No such file" in text for text in texts)
    return set(texts)


def test_a8_hints_do_not_tell_which_hidden_paths_exist(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for guessed paths in the home directory and elsewhere, and read from the hints which exist.

    Control: where the host is asked first, what is told of the two differs.
    """
    for directory in (ground.home / ".ssh", ground.home):
        directory.mkdir(exist_ok=True)
        (directory / "real").write_text("k")
    places = [f"{ground.home}/.ssh/", f"{ground.home}/"]
    pairs = [(f"{place}real", f"{place}none") for place in places] + [("/var/lib/dpkg/status", "/var/lib/dpkg/none")]
    assert [len(told(ground, pair)) for pair in pairs] == [1, 1, 1]

    refusal_of = Judge.refusal

    def refusal(judge: Judge, path: bytes, *, is_write: bool) -> Refusal | None:
        found = refusal_of(judge, path, is_write=is_write)
        # In a rootfs nobody misses what the host has, so there only a careless rule could tell of it
        found = found or Refusal(kind="outside", path=path, rule="not shown")
        return found if os.path.lexists(path) else None

    monkeypatch.setattr(Judge, "refusal", refusal)
    assert [len(told(ground, pair)) for pair in pairs] == [2, 2, 2]


HOSTILE: Final = ("a;touch PWNED;", "$(touch PWNED)", "`touch PWNED`", "a\ntouch PWNED\n", "x y")
# What a hint finds in an output has neither blanks nor quotes
PRINTED: Final = (
    "a;touch${IFS}PWNED;",
    "a|touch${IFS}PWNED|a",
    "a&touch${IFS}PWNED&a",
    "a;>PWNED;",
    "*",
    "$HOME",
)


def check_pasted(ground: Ground, path: str, remedy: str) -> None:
    """Paste the option that a remedy proposes into a shell, and for control the same path without quotes."""
    option = remedy.partition("`")[2].rpartition("` or")[0]
    assert option.startswith("--root ")
    pasted = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {option}"], cwd=ground.top, capture_output=True, check=True
    ).stdout.split(b"\0")
    assert pasted == [b"--root", os.path.dirname(path).encode(), b""]
    assert not (ground.top / "PWNED").exists()
    subprocess.run(["bash", "-c", f"printf '%s\\0' --root {path}"], cwd=ground.top, capture_output=True, check=False)
    assert (ground.top / "PWNED").exists() == ("PWNED" in path)


@pytest.mark.any_bwrap
@pytest.mark.parametrize("name", HOSTILE)
def test_c8_a_remedy_can_be_pasted(ground: Ground, name: str) -> None:
    """Name a path so that what is proposed against its refusal does something else in a shell.

    Control: the same path without quotes makes a shell run what is in it.
    """
    path = f"/absent/{name}/x"
    refusal = Judge(ground.sandbox().plan("true").mounts).refusal(path.encode(), is_write=True)
    assert refusal is not None
    check_pasted(ground, path, remedy_of(refusal, is_write=True, home=bytes(ground.home)))


@pytest.mark.any_bwrap
@pytest.mark.parametrize("name", PRINTED)
def test_c8_a_remedy_for_what_a_command_printed_can_be_pasted(ground: Ground, name: str) -> None:
    """Print a path so that what the hint proposes does something else in a shell.

    Control: the same path without quotes makes a shell run what is in it.
    """
    path = f"/absent/{name}/x"
    said = 'printf "tool: %s: Read-only file system\\n" "$1" >&2; exit 1'
    [hint] = ground.run(["sh", "-c", said, "sh", path]).hints
    check_pasted(ground, path, hint.remedy)


@pytest.fixture
def full_device() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_WRONLY)
    yield fd
    os.close(fd)


@pytest.mark.any_bwrap
def test_b5_output_that_can_not_be_written_costs_no_change(ground: Ground, full_device: int) -> None:
    """Print to a standard output that takes nothing, and change a file.

    Control: the command itself fails where its own output goes there.
    """
    program = Path(sys.executable).with_name("unspill")
    ground.configure(f'bwrap = "{os.fsdecode(ground.bwrap)}"\n')
    words = [os.fspath(program), "run", "--apply", "--", "sh", "-c", "echo out; echo kept > kept"]
    done = subprocess.run(
        words, cwd=ground.project, stdout=full_device, stderr=subprocess.PIPE, check=False, timeout=60
    )
    assert done.returncode == 125
    assert b"stdout could not be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    assert (ground.project / "kept").read_text() == "kept\n"
    for verb in ("log", "status"):
        done = subprocess.run(
            [program, verb], cwd=ground.project, stdout=full_device, stderr=subprocess.PIPE, check=False
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (5, False)
        both = subprocess.run([program, verb], cwd=ground.project, stdout=full_device, stderr=full_device, check=False)
        assert both.returncode == 5
    control = subprocess.run(["sh", "-c", "echo out"], stdout=full_device, stderr=subprocess.DEVNULL, check=False)
    assert control.returncode != 0


@pytest.mark.any_bwrap
def test_b10_a_held_layer_that_was_removed_by_hand_is_named_with_the_way_on(ground: Ground) -> None:
    """Remove a held layer from the state directory, then list changes and run a command.
    Control: after what the message says the sandbox works again."""
    sandbox = ground.sandbox()
    assert sandbox.run("echo held > new", after="hold").held
    [layer] = (ground.state / "layers").iterdir()
    remove_tree(os.fsencode(layer))
    for ask in (sandbox.changes, lambda: sandbox.run("true")):
        with pytest.raises(SandboxUnavailable) as refused:
            ask()
        assert refused.value.remedy.endswith(f": mkdir -m 700 {layer}")
    layer.mkdir(mode=0o700)
    assert sandbox.run("true").ok


@pytest.mark.any_bwrap
def test_b10_a_project_that_a_command_closed_says_how_to_open_it(ground: Ground) -> None:
    """Take the right to enter the project away, so that no later run begins.

    Control: the later run is refused; what the message proposes lets it begin again.
    """
    ground.configure(f'bwrap = "{os.fsdecode(ground.bwrap)}"\n')
    run_cli("run", "--hold", "--", "chmod", "000", ".", cwd=ground.project)
    refused = run_cli("run", "--", "true", cwd=ground.project)
    assert refused.returncode != 0
    assert b"`unspill discard`" in refused.stderr
    assert run_cli("discard", cwd=ground.project).returncode == 0
    assert run_cli("run", "--", "true", cwd=ground.project).returncode == 0


@pytest.mark.any_bwrap
@pytest.mark.parametrize("instead", ["link", "file"])
def test_c4_a_backup_is_not_restored_through_a_link(ground: Ground, instead: str) -> None:
    """Replace a directory by a link to another one, and have a file below it restored.

    Control: with the directory back in its place the same restore succeeds.
    """
    ground.configure(f'bwrap = "{os.fsdecode(ground.bwrap)}"\n')
    ground.write("d/f", "first")
    ground.write("e/f", "other")
    run_cli("run", "-q", "--apply", "--", "sh", "-c", "echo second > d/f", cwd=ground.project)
    make = {"link": "ln -s e d", "file": "echo x > d"}[instead]
    run_cli("run", "-q", "--apply", "--", "sh", "-c", f"rm -rf d; {make}", cwd=ground.project)
    done = run_cli("restore", "d/f", cwd=ground.project)
    assert done.returncode == 2
    assert b"a link or file took the place of a directory above it" in done.stderr
    assert (ground.project / "e" / "f").read_text() == "other"
    (ground.project / "d").unlink()
    assert run_cli("restore", "d/f", cwd=ground.project).returncode == 0
    assert (ground.project / "d" / "f").read_text() == "second\n"
