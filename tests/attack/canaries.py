# SPDX-License-Identifier: Apache-2.0
"""Secrets to be found: a table of where they are planted on a person's machine, and the search that looks for all.

Each has a word of its own, so that a search says exactly which it found. Planting leaves nothing outside the machine of
the test but some files in shared directories, a key and a segment of memory, which go when the context ends.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Ground

Kind = Literal[
    "home",
    "project",
    "variable",
    "shared",
    "own",
    "process",
    "descriptor",
    "unix",
    "abstract",
    "port",
    "key",
    "memory",
    "held",
]

HOME: Final = """
.ssh/id_ed25519 .ssh/id_rsa .ssh/config .aws/credentials .azure/accessTokens.json .config/gcloud/credentials.db
.kube/config .docker/config.json .netrc .npmrc .pypirc .git-credentials .config/git/credentials
.gnupg/private-keys-v1.d/k.key .password-store/mail.gpg .config/gh/hosts.yml .pgpass .my.cnf .vault-token
.cargo/credentials.toml .gem/credentials .m2/settings.xml .terraform.d/credentials.tfrc.json .bash_history .zsh_history
.python_history .mozilla/firefox/p.default/logins.json .config/google-chrome/Default/Cookies .Xauthority
.local/share/keyrings/login.keyring .local/share/klipper/history2.lst .local/share/recently-used.xbel
.claude/.credentials.json .codex/auth.json .config/rclone/rclone.conf .thunderbird/p.default/key4.db
Documents/taxes.txt other-project/.env other-project/src/main.py .config/unspill/config.note
.local/share/unspill/playground/another-0000/note .cache/huggingface/token .config/Code/User/settings.json
""".split()
PROJECT: Final = """
.env .env.local .npmrc .pypirc .netrc id_rsa id_ed25519 credentials.json service-account.json kubeconfig
config/.env config/master.key
""".split()
VARIABLES: Final = """
AWS_SECRET_ACCESS_KEY GITHUB_TOKEN OPENAI_API_KEY ANTHROPIC_API_KEY DATABASE_URL NPM_TOKEN PGPASSWORD SENTRY_DSN
MY_APP_SETTING HTTP_PROXY
""".split()
SHARED: Final = ("/tmp", "/var/tmp", "/dev/shm")
OWN: Final = ("note", "locks/note", "lost-note/of-a-layer")
GIT_CONFIG: Final = """
[user]
    name = Ada Lovelace
    email = ada@example.org
[http]
    extraHeader = Authorization: {header}
[url "https://{address}@example.org/"]
    insteadOf = https://example.org/
[credential]
    helper = !echo {helper}
"""


@dataclass(frozen=True)
class Canary:
    """One secret: how it is planted, where, and the word that gives it away."""

    kind: Kind
    where: str
    word: str


def table() -> tuple[Canary, ...]:
    """Return all canaries, with words that nobody has seen before."""
    seed = os.urandom(6).hex()
    places: list[tuple[Kind, str]] = [
        *(("home", name) for name in HOME),
        *(("home", f".gitconfig#{name}") for name in ("header", "address", "helper")),
        *(("project", name) for name in PROJECT),
        *(("variable", name) for name in VARIABLES),
        *(("shared", name) for name in SHARED),
        *(("own", name) for name in OWN),
        ("process", "environ"), ("process", "cmdline"), ("descriptor", "inherited"), ("unix", "agent.sock"),
        ("abstract", "name"), ("port", "loopback"), ("key", "user keyring"), ("memory", "System V"),
        ("held", "another sandbox"),
    ]  # fmt: skip
    return tuple(Canary(kind, where, f"CANARY-{seed}-{number:03}") for number, (kind, where) in enumerate(places))


@dataclass
class Planted:
    """Where the canaries are that are no files of known places."""

    port: int = 0
    segment_key: int = 0
    descriptor: int = -1


@contextmanager
def planted(ground: Ground, canaries: tuple[Canary, ...], patch: pytest.MonkeyPatch) -> Iterator[Planted]:
    """Put every canary into its place."""
    made = Planted()
    with ExitStack() as stack:
        of = {(canary.kind, canary.where): canary.word for canary in canaries}
        for canary in canaries:
            match canary.kind:
                case "home" if "#" not in canary.where:
                    _write(ground.home / canary.where, canary.word)
                case "project":
                    _write(ground.project / canary.where, canary.word)
                case "variable":
                    patch.setenv(canary.where, canary.word)
                case "own":
                    _write(ground.state / canary.where, canary.word)
                case "shared":
                    path = shared_path(canary)
                    _write(path, canary.word)
                    stack.callback(path.unlink)
        words = {name: of["home", f".gitconfig#{name}"] for name in ("header", "address", "helper")}
        (ground.home / ".gitconfig").write_text(GIT_CONFIG.format(**words))
        # By stdin: what a command is called with is recorded
        assert ground.sandbox("another").run("cat > note", stdin=of["held", "another sandbox"].encode()).ok
        stack.enter_context(_process(of["process", "environ"], of["process", "cmdline"]))
        made.descriptor = stack.enter_context(_descriptor(ground, of["descriptor", "inherited"]))
        agent = os.fspath(ground.home / "agent.sock")
        patch.setenv("SSH_AUTH_SOCK", agent)
        stack.enter_context(_server(socket.AF_UNIX, agent, of["unix", "agent.sock"]))
        stack.enter_context(_server(socket.AF_UNIX, abstract_name(), of["abstract", "name"]))
        made.port = stack.enter_context(_server(socket.AF_INET, ("127.0.0.1", 0), of["port", "loopback"]))
        stack.enter_context(_key(of["key", "user keyring"]))
        made.segment_key = stack.enter_context(_segment(of["memory", "System V"]))
        yield made


def shared_path(canary: Canary) -> Path:
    return Path(canary.where, f"unspill-note-{os.getpid()}")


def abstract_name() -> str:
    return f"\0unspill-canary-{os.getpid()}"


def key_name() -> str:
    return f"unspill-canary-{os.getpid()}"


def _write(path: Path, word: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# {word}\n")
    path.chmod(0o600)


@contextmanager
def _process(environ: str, word: str) -> Iterator[None]:
    script = "import sys; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-I", "-c", script, word],
        env={**os.environ, "SECRET": environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield
        finally:
            child.kill()


@contextmanager
def _descriptor(ground: Ground, word: str) -> Iterator[int]:
    path = ground.top / "open-file"
    _write(path, word)
    fd = os.open(path, os.O_RDONLY)
    path.unlink()
    os.set_inheritable(fd, True)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _server(family: int, address: str | tuple[str, int], word: str) -> Iterator[int]:
    """Tell a word to whoever connects; give the port, where there is one."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(word.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1] if family == socket.AF_INET else 0
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


_libc = ctypes.CDLL(None, use_errno=True)
_ADD_KEY, _KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
_USER_KEYRING, _UNLINK = -4, 9


@contextmanager
def _key(word: str) -> Iterator[None]:
    content = word.encode()
    number = _libc.syscall(_ADD_KEY, b"user", key_name().encode(), content, len(content), _USER_KEYRING)
    assert number > 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        _libc.syscall(_KEYCTL, _UNLINK, number, _USER_KEYRING, 0, 0)


@contextmanager
def _segment(word: str) -> Iterator[int]:
    key = int.from_bytes(os.urandom(3), "big") + 1
    number = _libc.shmget(key, 4096, 0o1600)
    assert number >= 0, os.strerror(ctypes.get_errno())
    _libc.shmat.restype = ctypes.c_void_p
    place = _libc.shmat(number, None, 0)
    ctypes.memmove(place, word.encode() + b"\0", len(word) + 1)
    try:
        yield key
    finally:
        _libc.shmdt(ctypes.c_void_p(place))
        _libc.shmctl(number, 0, None)


SEARCH = """
import re
beginning = "-".join(%(beginning)r).encode()
pattern = re.compile(re.escape(beginning) + rb"-[0-9]{3}")
def see(content, where):
    for word in set(pattern.findall(content)): won(word.decode(), where)
def read(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError: return
    try: see(os.read(fd, 1 << 20), path)
    except OSError: pass
    finally: os.close(fd)
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as link:
        link.settimeout(2)
        try: link.connect(address); see(link.recv(100), address)
        except OSError as error: lost(address, error.strerror)
for path in %(paths)r:
    for spelling in (path, "/proc/self/root" + path, "/proc/1/root" + path): read(spelling)
see("\\n".join(os.environ.values()).encode(), "variables")
for number in range(3, 64): read(f"/proc/self/fd/{number}")
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if int(pid) != os.getpid():
        for name in ("environ", "cmdline"): read(f"/proc/{pid}/{name}")
for path in ("/proc/keys", "/proc/net/unix", "/proc/self/mountinfo"): read(path)
see(subprocess.run(["git", "config", "--list", "--show-origin"], capture_output=True).stdout, "git config")
elsewhere = [f"--exclude-dir={name}" for name in ("proc", "usr", "opt", "sys", "lib")]
words = ["grep", "-rhosaE", "--devices=skip", *elsewhere, beginning.decode() + "-[0-9]{3}", *%(below)r]
see(subprocess.run(words, capture_output=True).stdout, "grep")
for address in %(sockets)r: connect(socket.AF_UNIX, address)
connect(socket.AF_INET, ("127.0.0.1", %(port)d))
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
number = libc.syscall(keyctl, 10, -4, b"user", %(key)r, 0)
if number > 0:
    text = ctypes.create_string_buffer(100)
    if libc.syscall(keyctl, 11, number, text, 100, 0) > 0: see(text.raw, "keyring")
number = libc.shmget(%(segment)d, 0, 0)
if number >= 0:
    libc.shmat.restype = ctypes.c_void_p
    see(ctypes.string_at(libc.shmat(number, None, 0o10000), 100), "shared memory")
"""


def search(ground: Ground, canaries: tuple[Canary, ...], made: Planted, below: tuple[str, ...]) -> str:
    """Return the script that looks for all of them, in known places and in everything below some directories."""
    homes = [os.fspath(ground.home / one.where) for one in canaries if one.kind == "home" and "#" not in one.where]
    return SEARCH % {
        # Not in one piece: the script itself can be read in /proc
        "beginning": canaries[0].word.split("-")[:2],
        "paths": [
            *homes,
            *(os.fspath(ground.project / one.where) for one in canaries if one.kind == "project"),
            *(os.fspath(shared_path(one)) for one in canaries if one.kind == "shared"),
        ],
        "below": below,
        "sockets": [os.fspath(ground.home / "agent.sock"), abstract_name()],
        "port": made.port,
        "key": key_name().encode(),
        "segment": made.segment_key,
    }
