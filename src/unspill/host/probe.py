# SPDX-License-Identifier: Apache-2.0
"""Find out what this machine can do by trying it: bwrap, namespaces, overlays, system calls, control groups.

Nothing is concluded from a version or from what is installed. Each try is a process with a time limit, in a scratch
directory that is removed afterwards. All of it takes some tenths of a second, so runs use what is remembered (`bwrap`);
`diagnosis` says what the answers mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time

from unspill.errors import SandboxUnavailable
from unspill.host.cgroup import CONTROLLERS, GroupPlace, find_classic, find_delegated, read_memberships
from unspill.host.job import is_dead
from unspill.host.places import filesystem_of
from unspill.host.probe_child import PARTS, check, prepare
from unspill.model.plan import NO_ANSWER, Bwrap, Facts
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    # By name: 0 or a positive number, and the reason for a 0
    Answers = dict[str, tuple[int, str]]

# What hangs is rare; a machine on which hundreds of programs start at once is slow
TIMEOUT_S = 60.0
SCRATCH_PREFIX = b"probe-"
_SHOWN = 300
_MOST = 1 << 20
_SIGKILL = 9
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from unspill.host.probe_child import main; main(sys.argv[1:])"
)

_SEALED = (
    b"--unshare-user", b"--unshare-all", b"--cap-drop", b"ALL", b"--die-with-parent", b"--new-session",
    b"--ro-bind", b"/", b"/",
)  # fmt: skip
_NOTHING = (b"--", b"/bin/sh", b"-c", b":")
_PROC_IS_OURS = (b"--", b"/bin/sh", b"-c", b'read -r pid rest </proc/self/stat && test "$pid" -lt 100')
_BWRAP_TRIES = (
    # Filters of container engines let a namespace be made and then refuse to name the host in it
    ("namespaces", (b"--hostname", b"unspill", *_NOTHING)),
    # bwrap itself tries to make another user namespace inside
    ("disable_userns", (b"--disable-userns", b"--assert-userns-disabled", *_NOTHING)),
    ("proc_mount", (b"--proc", b"/proc", *_PROC_IS_OURS)),
)
_NO_BWRAP = "there is no bwrap to try it with"

# Name of the cause, the setting, and the value of it that forbids user namespaces
_SYSCTLS = (
    ("max-user-namespaces", "/proc/sys/user/max_user_namespaces", "0"),
    ("userns-clone", "/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ("apparmor", "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
)
_CONTAINER_GROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc")


def probe(bwrap: bytes | None, state_dir: bytes) -> Facts:
    """Try everything once and return what works, with the reason for each thing that does not.

    `bwrap` comes from `find_bwrap`; None if there is none that may be used. The engines are tried in the state
    directory, where the layers will be.
    """
    binary = None
    try:
        with scratch_directory(state_dir) as scratch:
            answers = _try_kernel(scratch) | _try_bwrap(bwrap, scratch)
            if bwrap is not None:
                binary = _describe(bwrap, scratch, answers)
    except OSError as error:
        binary, answers = None, {"state": (0, f"{os.fsdecode(state_dir)}: {error.strerror}")}
    cgroup = probe_cgroup()
    if cgroup.reason:
        answers["cgroup"] = (0, cgroup.reason)
    works = {name: bool(value) for name, (value, _reason) in answers.items()}
    facts = Facts(
        uid=os.getuid(),
        gid=os.getgid(),
        kernel=os.uname().release,
        boot_id=_read("/proc/sys/kernel/random/boot_id").strip(),
        bwrap=binary,
        namespaces=works.get("namespaces", False),
        disable_userns=works.get("disable_userns", False),
        proc_mount=works.get("proc_mount", False),
        own_namespace=works.get("own_namespace", False),
        engines=tuple(engine for engine in ("mount", "native") if works.get(engine)),
        lowerdir_plus=works.get("lowerdir_plus", False),
        seccomp=works.get("seccomp", False),
        landlock_abi=answers.get("landlock_abi", (0, ""))[0],
        openat2=works.get("openat2", False),
        cgroup=cgroup.kind,
        flatpak="FLATPAK_ID" in os.environ or os.path.exists("/.flatpak-info"),
        container=_find_surrounding(),
        state_filesystem=filesystem_of(state_dir),
    )
    problems = [(name, reason) for name, (_value, reason) in answers.items() if reason]
    return facts.replace(problems=tuple((name, _printable(why)) for name, why in (*problems, *_find_causes(facts))))


def _try_kernel(scratch: bytes) -> Answers:
    """Ask what needs no bwrap: system calls, and overlays that this process mounts by itself."""
    found: Answers = {}
    for kind, names in (
        ("kernel", ("landlock_abi", "openat2", "seccomp")),
        ("overlay", ("own_namespace", "mount", "lowerdir_plus")),
    ):
        answers, reason = ask(child_argv(kind), cwd=_make(scratch, kind.encode()))
        found |= {name: answers.get(name, (0, reason or "could not be tried")) for name in names}
    return found


def _try_bwrap(bwrap: bytes | None, scratch: bytes) -> Answers:
    if bwrap is None:
        return dict.fromkeys(("bwrap", "native", *(name for name, _options in _BWRAP_TRIES)), (0, _NO_BWRAP))
    reasons = {name: run_bounded([bwrap, *_SEALED, *options]).reason for name, options in _BWRAP_TRIES}
    reasons["native"] = _why_no_native(bwrap, _make(scratch, b"native"))
    return {name: (int(not reason), reason) for name, reason in reasons.items()}


def _why_no_native(bwrap: bytes, scratch: bytes) -> str:
    """Return why bwrap can't mount an overlay by itself with its upper below `scratch`."""
    prepare(scratch)
    lower, upper, work, merged = (os.path.join(scratch, part) for part in PARTS)
    overlay = (b"--overlay-src", lower, b"--overlay", upper, work, merged, b"--chdir", scratch, b"--")
    answers, reason = ask([bwrap, *_SEALED, *overlay, *child_argv("write")])
    value, why = answers.get("write", (0, "no answer"))
    if reason or not value:
        return reason or why
    try:
        check(scratch)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _describe(bwrap: bytes, scratch: bytes, answers: Answers) -> Bwrap:
    flaw, unknown = has_symlink_flaw(bwrap, _make(scratch, b"flaw"))
    answers["symlink_flaw"] = (int(flaw), unknown)
    found = os.stat(bwrap)
    words = run_bounded([bwrap, b"--version"]).stdout.decode("utf-8", "replace").split()
    return Bwrap(
        path=bwrap,
        version=words[-1] if words else "",
        device=found.st_dev,
        inode=found.st_ino,
        has_overlay="Unknown option" not in answers["native"][1],
        symlink_flaw=flaw,
    )


def has_symlink_flaw(bwrap: bytes, scratch: bytes) -> tuple[bool, str]:
    """Tell whether bwrap follows a symlink out of the sandbox when it makes a mount point (CVE-2026-87766).

    Where that can't be told, the answer is yes, with the reason.
    """
    outside = _make(scratch, b"outside")
    # At set-up time the host's root is /oldroot; everything this can reach is our own scratch directory.
    made, _reason = makes_directory_through(bwrap, scratch, b"/oldroot" + outside)
    if made or os.listdir(outside):
        return True, ""
    made, reason = makes_directory_through(bwrap, scratch, None)
    return (False, "") if made else (True, reason or "bwrap made no mount point even where it may")


def makes_directory_through(bwrap: bytes, scratch: bytes, link: bytes | None) -> tuple[bool, str]:
    """Let bwrap make a directory below a bound one, through a symlink or (None) a plain directory.

    Returns whether the directory is there afterwards, seen from the host, and why bwrap failed.
    """
    bound = _make(scratch, b"bound-plain" if link is None else b"bound-link")
    between = os.path.join(bound, b"between")
    if link is None:
        os.mkdir(between)
    else:
        os.symlink(link, between)
    place = os.path.join(between if link is None else link.removeprefix(b"/oldroot"), b"made")
    options = (b"--bind", bound, bound, b"--dir", os.path.join(between, b"made"))
    ended = run_bounded([bwrap, *_SEALED, *options, *_NOTHING])
    return os.path.isdir(place), ended.reason


def probe_cgroup() -> GroupPlace:
    """Return where control groups can be made, tried by making one; or kind "none" with the reason."""
    try:
        memberships = read_memberships()
    except (OSError, ValueError) as error:
        return GroupPlace(kind="none", reason=f"/proc/self/cgroup or mountinfo: {error}")
    reasons = []
    for place in (find_delegated(memberships), find_classic(memberships)):
        reason = place.reason or _why_no_group(place)
        if not reason:
            return place
        reasons.append(reason)
    return GroupPlace(kind="none", reason="; ".join(reasons))


def _why_no_group(place: GroupPlace) -> str:
    made: list[bytes] = []
    try:
        for parent in place.parents:
            group = os.path.join(parent, b"unspill-probe-%d" % os.getpid())
            os.mkdir(group)
            made.append(group)
        for group, controller in zip((made[0], made[-1]), CONTROLLERS, strict=True):
            names = (b"pids.max",) if controller == b"pids" else (b"memory.max", b"memory.limit_in_bytes")
            if not any(os.access(os.path.join(group, name), os.W_OK) for name in names):
                return f"a new group has no limit to set: {os.fsdecode(os.path.join(group, names[0]))}"
        answers, reason = ask(child_argv("join", *made))
        value, why = answers.get("join", (0, "no answer"))
        return "" if value and not reason else f"no process can be moved into a new group: {reason or why}"
    except OSError as error:
        return f"{error.strerror}: {os.fsdecode(error.filename or b'')}"
    finally:
        for group in made:
            os.rmdir(group)


def detect_container(environ: Mapping[str, str], top: str = "") -> str:
    """Return the container engine or hosted workspace around this process, "" where there seems to be none.

    There is no reliable mark, and whoever starts unspill could make one up: only a person's own configuration may give
    the answer a meaning. `environ` are the variables of this process; `top` is looked in instead of `/`.
    """
    if environ.get("CODESPACES") == "true":
        return "codespaces"
    if environ.get("GITPOD_WORKSPACE_ID"):
        return "gitpod"
    if os.path.exists(top + "/.dockerenv"):
        return "docker"
    if environ.get("container"):
        return environ["container"]
    if os.path.exists(top + "/run/.containerenv"):
        return "podman"
    groups = _read(top + "/proc/1/cgroup")
    found = next((word for word in _CONTAINER_GROUPS if word in groups), "")
    # With cgroups of their own, which is usual by now, pods have no other mark
    return found or ("kubernetes" if environ.get("KUBERNETES_SERVICE_HOST") else "")


def _find_surrounding() -> str:
    """Return what seems to surround this process, for people: more than what container mode accepts."""
    found = detect_container(os.environ)
    if not found and os.path.exists("/run/systemd/container"):
        return "nspawn"
    if not found and (os.getpid() == 1 or _read("/proc/1/comm").strip() == "bwrap"):
        return "bwrap"
    return found


def _find_causes(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the settings of this host that explain why namespaces do not work, by name."""
    if facts.namespaces and facts.own_namespace:
        return
    set_so = [(name, path, value) for name, path, value in _SYSCTLS if _read(path).strip() == value]
    for name, path, value in set_so:
        yield name, f"{path.removeprefix('/proc/sys/').replace('/', '.')} is {value}"
    if not set_so and not facts.namespaces and facts.bwrap is not None:
        yield "surroundings", "a sandbox or a security module around this process forbids it"


class Finished(Record):
    """How a program of a probe ended: `reason` is empty if it exited with 0."""

    reason: str
    stdout: bytes


def run_bounded(argv: Sequence[bytes], *, cwd: bytes = b"/", timeout_s: float = TIMEOUT_S) -> Finished:
    """Run a program to its end, or kill it, and all that it started; never raises for what the program does."""
    # Files and not pipes: a pipe has no end while anything that the program started is alive
    stdout, stderr = (os.memfd_create("probe", os.MFD_CLOEXEC) for _ in range(2))
    try:
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env={b"PATH": b"/usr/bin:/bin", b"LC_ALL": b"C"},
            process_group=0,
        ) as program:
            is_in_time = _end_group(program.pid, timeout_s)
        if not is_in_time:
            return Finished(reason=f"{NO_ANSWER} {timeout_s:g} seconds", stdout=b"")
        reason = _reason(program.returncode, os.pread(stderr, _MOST, 0))
        return Finished(reason=reason, stdout=os.pread(stdout, _MOST, 0))
    except OSError as error:
        return Finished(reason=f"{os.fsdecode(argv[0])}: {error.strerror}", stdout=b"")
    finally:
        os.close(stdout)
        os.close(stderr)


def _end_group(leader: int, timeout_s: float) -> bool:
    """Wait for a program, kill its group while nobody has reaped it, and tell whether it ended in time by itself.

    A bwrap that is killed while it starts up leaves a child that waits for it for ever.
    """
    try:
        pidfd = os.pidfd_open(leader)
    except ProcessLookupError:
        return True  # the caller ignores SIGCHLD, so the kernel has reaped it already
    try:
        return is_dead(pidfd, int(timeout_s * 1000))
    finally:
        os.close(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, _SIGKILL)


def _reason(code: int, stderr: bytes) -> str:
    if code == 0:
        return ""
    said = stderr.decode("utf-8", "replace").strip()[-_SHOWN:]
    return said or (f"exit code {code}" if code > 0 else f"killed by signal {-code}")


def child_argv(kind: str, *arguments: bytes) -> list[bytes]:
    """Return the command that asks `probe_child` one kind of question, without site-packages."""
    above = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    start = (sys.executable, "-I", "-S", "-c", _CHILD, above, kind)
    return [*map(os.fsencode, start), *arguments]


def ask(argv: Sequence[bytes], *, cwd: bytes = b"/") -> tuple[Answers, str]:
    """Run a `probe_child` and return its answers by name, and why it did not come to its end."""
    ended = run_bounded(argv, cwd=cwd)
    return parse_answers(ended.stdout), ended.reason


def parse_answers(text: bytes) -> Answers:
    """Read lines of name, number and reason; a line cut short is no answer."""
    answers: Answers = {}
    for line in text.decode("utf-8", "replace").splitlines(keepends=True):
        name, _, rest = line.partition("\t")
        number, _, reason = rest.partition("\t")
        if line.endswith("\n") and number.isdecimal():
            answers[name] = (int(number), reason.rstrip("\n"))
    return answers


@contextlib.contextmanager
def scratch_directory(state_dir: bytes) -> Iterator[bytes]:
    """Make a private directory in the state directory, and remove it afterwards.

    It is locked while in use: one that nobody holds is what a killed probe left, and is removed first. Another process
    that does so may take a new one, not locked yet, for such a rest: then the next is made.
    """
    state = os.path.realpath(state_dir)
    for name in os.listdir(state):
        if name.startswith(SCRATCH_PREFIX):
            _try_remove(os.path.join(state, name))
    lock_fd = None
    while lock_fd is None:
        path = _make(state, SCRATCH_PREFIX + os.urandom(8).hex().encode())
        lock_fd = _lock(path)
    try:
        yield path
    finally:
        _remove_tree(path)
        os.close(lock_fd)


def _try_remove(path: bytes) -> None:
    # What can't be removed does not keep a probe from working
    with contextlib.suppress(OSError):
        lock_fd = _lock(path)
        if lock_fd is not None:
            try:
                _remove_tree(path)
            finally:
                os.close(lock_fd)


def _lock(path: bytes) -> int | None:
    """Return a descriptor that locks the directory, None if somebody else holds it or has removed it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.lexists(path):
            return fd
    except BlockingIOError:
        pass
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _remove_tree(path: bytes) -> None:
    """Remove a directory tree, also the mode-000 directories that overlays leave; never follows a link."""
    os.chmod(path, 0o700)
    with os.scandir(path) as entries:
        found = list(entries)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            _remove_tree(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(path)


def _make(above: bytes, name: bytes) -> bytes:
    path = os.path.join(above, name)
    os.mkdir(path, 0o700)
    return path


def _printable(reason: str) -> str:
    """Return one line of a program's or a path's words, with nothing in it that a terminal would obey."""
    line = " ".join(reason.split())
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65_536)
    except OSError:
        return ""


def run_apart(
    commands: Sequence[Sequence[bytes]],
    *,
    bwrap: bytes,
    hidden: Sequence[bytes],
    environ: Mapping[bytes, bytes],
    cwd: bytes,
    seconds: float,
) -> list[bytes | int | None]:
    """Run programs of this machine at once, on its network, where they can write nothing and directories are empty.

    Returns:
        Of each what it printed, its exit code if it is none but 0, or None if it took too long.

    Raises:
        SandboxUnavailable: bwrap can't be started.
    """
    words = [bwrap, b"--unshare-pid", b"--unshare-ipc", b"--die-with-parent", b"--new-session"]
    words += [b"--ro-bind", b"/", b"/", b"--dev", b"/dev", b"--proc", b"/proc"]
    words += [word for path in sorted(hidden) for word in (b"--tmpfs", path)]
    words += [b"--chdir", cwd, b"--"]
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        try:
            started = [stack.enter_context(_start_apart([*words, *command], environ)) for command in commands]
        except OSError as error:
            raise SandboxUnavailable(f"bwrap can't be started: {error.strerror}") from None
        return [_printed_by(process, until) for process in started]


def _start_apart(words: list[bytes], environ: Mapping[bytes, bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def _printed_by(process: subprocess.Popen[bytes], until: float) -> bytes | int | None:
    try:
        printed, _ = process.communicate(timeout=max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    return process.returncode or printed
