# SPDX-License-Identifier: Apache-2.0
"""Say what the facts of a probe mean: the level of this machine, and the remedy for each thing that is missing.

A: everything works. B: something that a run can do without is missing. C: a weaker mode that the person configured.
D: no command is run. Also looks through a project for what will not work under a layer. Repairs nothing.
"""

from __future__ import annotations

import os
import posixpath
import stat

from unspill.host.libc import Statx
from unspill.host.places import mounts_below
from unspill.model.plan import NO_ANSWER
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    from unspill.errors import HostError
    from unspill.model.plan import Facts, Level
    from unspill.model.policy import Policy

    Standing = Literal["ok", "note", "less", "weak", "missing"]

_LEVELS: dict[Standing, Level] = {"missing": "D", "weak": "C", "less": "B", "note": "A", "ok": "A"}
_SUMMARIES: dict[Level, str] = {
    "A": "everything works",
    "B": "the sandbox works; optional features are missing",
    "C": "the sandbox is weaker, because you configured it so",
    "D": "unspill runs no command here until you repair what is missing",
}

# What installs bubblewrap, by the program that does it
_INSTALLERS = {
    "apt-get": "sudo apt install bubblewrap",
    "dnf": "sudo dnf install bubblewrap",
    "pacman": "sudo pacman -S bubblewrap",
    "zypper": "sudo zypper install bubblewrap",
    "apk": "sudo apk add bubblewrap",
    "emerge": "sudo emerge sys-apps/bubblewrap",
    "xbps-install": "sudo xbps-install -S bubblewrap",
}
_PROGRAM_DIRS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin")

_NEWER_BWRAP = (
    "Use bubblewrap {version} or later: {{install}}. If that package is older, take a newer release; root must own it."
)
_SYSCTL = "echo {} | sudo tee /etc/sysctl.d/60-unspill.conf && sudo sysctl --system"
_UNCOVERED = "--security-opt systempaths=unconfined (podman: --security-opt unmask=ALL)"
# The causes of missing namespaces that a probe names, the surest first
_CAUSES = {
    "max-user-namespaces": "Allow user namespaces: " + _SYSCTL.format("user.max_user_namespaces=15000"),
    "userns-clone": "Allow user namespaces: " + _SYSCTL.format("kernel.unprivileged_userns_clone=1"),
    "apparmor": """\
AppArmor lets only programs with a profile use user namespaces. Give bwrap one:
sudo tee /etc/apparmor.d/unspill-bwrap >/dev/null <<'END'
abi <abi/4.0>,
include <tunables/global>

profile unspill-bwrap {bwrap} flags=(unconfined) {
  userns,
}
END
sudo apparmor_parser -r /etc/apparmor.d/unspill-bwrap
Or lift the restriction for all programs: """
    + _SYSCTL.format("kernel.apparmor_restrict_unprivileged_userns=0"),
    "surroundings": (
        "Start unspill outside the container or sandbox, or let the container make user namespaces: for docker and "
        f"podman --security-opt seccomp=unconfined --security-opt apparmor=unconfined {_UNCOVERED}; "
        "never --privileged."
    ),
}
REMEDIES = _CAUSES | {
    "bwrap-missing": "Install bubblewrap: {install}",
    "bwrap-unsafe": (
        "Install your distribution's bubblewrap ({install}), which only root can write, or name such a one in your "
        'configuration: bwrap = "/usr/bin/bwrap"'
    ),
    "bwrap-0.8": _NEWER_BWRAP.format(version="0.8"),
    "bwrap-0.11": _NEWER_BWRAP.format(version="0.11"),
    "bwrap-0.12": _NEWER_BWRAP.format(version="0.12"),
    "flatpak": "Install unspill on the host: it can't make a sandbox inside a Flatpak application.",
    "proc": (
        "bwrap must be able to mount a /proc and to write /proc/sys/user. If a container covers them, start it with "
        f"{_UNCOVERED}, or start unspill outside it."
    ),
    "state-filesystem": (
        "Keep the state on a local filesystem such as ext4, XFS, btrfs or tmpfs: set UNSPILL_STATE_DIR to a "
        "directory there. Overlays can't have their upper directory on overlayfs, NFS, FUSE or eCryptfs."
    ),
    "state": "Make the directory yours, writable and not full, or set UNSPILL_STATE_DIR to one that is.",
    "busy": "The machine may be very busy. Run it again.",
    "cgroup": (
        "Start unspill in a delegated group: systemd-run --user --scope -p Delegate=yes unspill ... Without one, "
        "limits are set per process (rlimits), not per run."
    ),
    "root-caller": "Run unspill as an ordinary user, or set `allow_root = true` in your own configuration.",
    "network": 'Set `mode = "proxy"` under `[network]` in your configuration.',
    "container": "Let the container make user namespaces (see deploy/README.md), and unspill uses a sandbox instead.",
    "kernel": "Use a newer kernel that is configured with it.",
}

# What a finding in a project means for a run, and what the person can do about it
FINDINGS = {
    "other-owner": (
        "belong to another user or group: a command can't change them or anything inside them (EOVERFLOW)",
        'make them your own: sudo chown -R "$(id -u):$(id -g)" PATH',
    ),
    "setuid": ("are setuid or setgid: the bits have no effect inside, and writing a file drops them", ""),
    "capabilities": (
        "have file capabilities: a command can't change them (EINVAL)",
        "remove them where they are not needed: sudo setcap -r PATH",
    ),
    "immutable": ("are immutable or append-only: a command can't change or delete them", "sudo chattr -i -a PATH"),
    "hard-link": ("are hard links: a change breaks the link, and the other name keeps the old content", ""),
    "link-out": ("are symlinks that point outside the project: unspill never follows them into a writable place", ""),
    "special": ("are sockets, FIFOs or devices: nothing outside can be reached through them", ""),
    "mount-point": (
        "are mount points: the kernel refuses an overlay over a directory that has one below",
        "unmount them, or run unspill in a directory beside them",
    ),
    "overlay-mark": (
        "have attributes named user.overlay.*: overlayfs takes them for its own, and may hide files from a command",
        "remove them: setfattr -x NAME PATH (getfattr -m '^user[.]overlay[.]' PATH lists the names)",
    ),
    "unreadable": ("can't be read: unspill does not know what is inside", "chmod u+rx PATH"),
}
_SHOWN = 10
_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Row(Record):
    """One fact: its value, what follows from it, and what would make it better."""

    fact: str
    value: str
    standing: Standing
    consequence: str
    remedy: str = ""


class DoctorReport(Record):
    """The level, and every row that led to it."""

    level: Level
    summary: str
    rows: tuple[Row, ...]


def diagnose(
    facts: Facts, policy: Policy, *, bwrap_error: HostError | None = None, container: str = ""
) -> DoctorReport:
    """Judge the facts for a policy.

    `bwrap_error` is why `find_bwrap` found none. `container` is what `detect_container` found: where container mode is
    configured, it takes the place of a sandbox that can't be made.
    """
    judge = _Judge(facts, policy)
    caller = judge.caller()
    rows = (
        caller,
        judge.bwrap(bwrap_error),
        *judge.seal(),
        *judge.overlays(),
        judge.symlink_flaw(),
        *judge.optional(),
        *judge.surroundings(),
        *judge.weaker_modes(container),
    )
    level = level_of(rows)
    if policy.container and container and not facts.can_seal():
        level = "D" if caller.standing == "missing" else "C"
    return DoctorReport(level=level, summary=_SUMMARIES[level], rows=rows)


def find_refusal(found: DoctorReport) -> Row | None:
    """Return the first row that keeps every command from being run, for the text of an error."""
    return next((row for row in found.rows if row.standing == "missing"), None)


def level_of(rows: Sequence[Row]) -> Level:
    """Return the level of the worst row."""
    return max(_LEVELS[row.standing] for row in rows)


def remedy_for(repair: str, bwrap: bytes = b"/usr/bin/bwrap") -> str:
    """Return what the person can do, as exactly as it can be said; `bwrap` is the one that is used."""
    return REMEDIES[repair].replace("{install}", install_command()).replace("{bwrap}", _show(bwrap))


def install_command(directories: Sequence[str] = _PROGRAM_DIRS) -> str:
    """Return what installs bubblewrap here, by the package manager that is there."""
    for program, command in _INSTALLERS.items():
        if any(os.access(os.path.join(directory, program), os.X_OK) for directory in directories):
            return command
    return "your package manager has it as `bubblewrap`"


class _Judge:
    """Makes the rows, in groups."""

    def __init__(self, facts: Facts, policy: Policy) -> None:
        self._facts = facts
        self._policy = policy
        self._why = dict(facts.problems)

    def caller(self) -> Row:
        value = f"uid {self._facts.uid}"
        if self._facts.uid != 0:
            return self._row("caller", value, "ok", "An ordinary user.")
        if self._policy.allow_root:
            text = "allow_root is configured: every capability is dropped, but limits on processes do not bind root."
            return self._row("caller", value, "weak", text, "root-caller")
        text = "unspill runs nothing as root: an escape from the sandbox would reach everything."
        return self._row("caller", value, "missing", text, "root-caller")

    def bwrap(self, error: HostError | None) -> Row:
        bwrap = self._facts.bwrap
        if bwrap is not None:
            return self._row("bwrap", f"{_show(bwrap.path)} {bwrap.version}", "ok", "Only root can write it.")
        if error is None and "state" in self._why:
            return self._row("bwrap", "unknown", "note", "It could not be tried: that needs the state directory.")
        row = self._row("bwrap", "none", "missing", "There is no bwrap.", "bwrap-missing")
        return row if error is None else row.replace(consequence=error.message, remedy=error.remedy or row.remedy)

    def seal(self) -> Iterator[Row]:
        """Judge what no run can do without."""
        cause, state = self._cause(), self._why.get("state", "")
        of_userns = "bwrap-0.8" if "Unknown option" in self._why.get("disable_userns", "") else "proc"
        needed = (
            (
                ("namespaces", "namespaces", cause),
                "Commands run in their own user, mount, pid, network and ipc namespaces.",
                "unspill can't make a sandbox.",
            ),
            (
                ("disable-userns", "disable_userns", of_userns if self._facts.namespaces else cause),
                "A command can't make namespaces to undo the sandbox.",
                "A command could undo read-only mounts.",
            ),
            (
                ("proc", "proc_mount", "proc" if self._facts.namespaces else cause),
                "Commands see only their own processes.",
                "Commands would see the host's processes, or none.",
            ),
            (
                ("seccomp", "seccomp", "kernel"),
                "Every run has a filter that refuses unknown system calls, and those that no namespace covers.",
                "System calls can't be filtered.",
            ),
        )
        for (fact, name, repair), good, bad in needed:
            if getattr(self._facts, name):
                yield self._row(fact, "yes", "ok", good)
            else:
                why = self._why.get(name, state)
                yield self._row(fact, "no", "missing", f"{bad} {why}", "state" if state else repair)

    def overlays(self) -> Iterator[Row]:
        facts, why, wanted = self._facts, self._why, self._policy.engine
        kind = facts.state_filesystem or "unknown"
        if "state" in why:
            yield self._row("state", kind, "missing", f"Layers can't be kept. {why['state']}", "state")
        else:
            yield self._row("state", kind, "ok", "The filesystem of the state directory.")
        value = ", ".join(facts.engines) or "none"
        if not facts.engines:
            reason = why.get("mount") or why.get("own_namespace") or why.get("state", "")
            text = f"No overlay can be mounted: {reason}"
            yield self._row("engines", value, "missing", text, self._engine_repair())
        elif wanted is not None and wanted not in facts.engines:
            text = f"The configuration asks for {wanted}, which does not work here: {why.get(wanted, '')}"
            how = f"Remove the setting `engine`, or set it to what works: {value}."
            yield self._row("engines", value, "missing", text).replace(remedy=how)
        elif (wanted or facts.engines[0]) == "mount":
            yield self._row("engines", value, "ok", "unspill mounts overlays itself.")
        else:
            text = f"bwrap mounts overlays; unspill itself would be faster: {why.get('mount', '')}"
            yield self._row("engines", value, "note", text)
        if facts.lowerdir_plus:
            yield self._row("lowerdir+", "yes", "ok", "A stack can have up to 500 layers.")
        else:
            text = "A stack can have about 200 layers; a newer kernel allows 500."
            yield self._row("lowerdir+", "no", "note", text)

    def symlink_flaw(self) -> Row:
        if self._facts.bwrap is None or not self._facts.bwrap.symlink_flaw:
            return self._row("symlink-flaw", "no", "ok", "bwrap follows no symlinks during set-up.")
        text = (
            "This bwrap follows symlinks while it makes mount points (CVE-2026-87766). unspill never lets it make one "
            "beneath what a command may have written."
        )
        return self._row("symlink-flaw", "yes", "note", text, "bwrap-0.12")

    def optional(self) -> Iterator[Row]:
        """Judge what a run can do without."""
        facts = self._facts
        if facts.cgroup != "none":
            yield self._row("cgroup", facts.cgroup, "ok", "Processes and memory are limited per run.")
        else:
            text = f"Processes and memory are limited per process only: {self._why.get('cgroup', '')}."
            yield self._row("cgroup", "none", "less", text, "cgroup")
        if facts.openat2:
            yield self._row("openat2", "yes", "ok", "Paths are opened without following a link.")
        else:
            text = f"Paths are opened name by name instead: {self._why.get('openat2', '')}"
            yield self._row("openat2", "no", "less", text, "kernel")
        text = "No run uses it."
        if self._policy.profile == "strict":
            text = 'No run uses it: the profile "strict" refuses more system calls, but has no Landlock fence.'
        # Only a fact: its absence does not lower the level
        yield self._row("landlock", f"ABI {facts.landlock_abi}" if facts.landlock_abi else "no", "note", text)

    def surroundings(self) -> Iterator[Row]:
        """Say where we seem to be; that alone never decides anything."""
        if self._facts.flatpak:
            yield self._row("flatpak", "yes", "note", "unspill runs inside a Flatpak application.")
        if self._facts.container:
            text = "You seem to be inside a container or sandbox. Every check above was run here."
            yield self._row("inside", self._facts.container, "note", text)

    def weaker_modes(self, container: str) -> Iterator[Row]:
        """Judge what the person configured to be weaker."""
        if self._policy.network.mode == "host":
            text = (
                "A command that you allow the network gets this machine's own: everything on its loopback, its "
                "neighbours, and the abstract sockets of all your programs."
            )
            yield self._row("network", 'mode = "host"', "weak", text, "network")
        if not self._policy.container:
            return
        value = "container = true"
        if self._facts.can_seal():
            yield self._row("mode", value, "note", "It has no effect: unspill can make a sandbox here, and does.")
        elif not container:
            text = "It has no effect: unspill detected no container around itself, so commands are refused."
            yield self._row("mode", value, "note", text)
        else:
            text = (
                f"Container mode: commands run WITHOUT a sandbox, as plain processes of this {container} container. "
                "What they change is not held and can't be undone."
            )
            yield self._row("mode", value, "weak", text, "container")

    def _row(self, fact: str, value: str, standing: Standing, consequence: str, repair: str = "") -> Row:
        bwrap = self._facts.bwrap
        repair = "busy" if NO_ANSWER in consequence else repair
        remedy = "" if not repair else remedy_for(repair) if bwrap is None else remedy_for(repair, bwrap.path)
        return Row(fact=fact, value=value, standing=standing, consequence=consequence.rstrip(), remedy=remedy)

    def _cause(self) -> str:
        """Return why no namespace can be made, as a key of REMEDIES."""
        if self._facts.flatpak:
            return "flatpak"
        if self._facts.bwrap is None:
            return "bwrap-missing"
        return next((cause for cause in _CAUSES if cause in self._why), "surroundings")

    def _engine_repair(self) -> str:
        if self._facts.own_namespace:
            return "state-filesystem"
        if self._facts.bwrap is not None and not self._facts.bwrap.has_overlay:
            return "bwrap-0.11"
        return self._cause() if any(cause in self._why for cause in _CAUSES) else "state-filesystem"


class Finding(Record):
    """One kind of thing that was found in a project: how often, and the first paths below it."""

    kind: str
    count: int
    examples: tuple[bytes, ...]


class Survey(Record):
    """What was found in a project, and how many entries were looked at."""

    root: bytes
    entries: int
    findings: tuple[Finding, ...]


def survey_project(root: bytes) -> Survey:
    """Walk a resolved project directory and count what an overlay in a user namespace can't do: see FINDINGS.

    Goes by descriptor, follows no symlink, enters no other filesystem, opens no file.

    Raises:
        OSError: the directory itself can't be read.
    """
    walk = _ProjectWalk(root)
    top = os.open(root, _OPEN_DIR)
    if _has_attribute(top, b".", "user.overlay."):
        walk.add("overlay-mark", b".")
    walk.walk(top)
    for point in mounts_below(root):
        walk.add("mount-point", posixpath.relpath(point, root))
    findings = (Finding(kind=kind, count=count, examples=tuple(paths)) for kind, (count, paths) in walk.found.items())
    return Survey(root=root, entries=walk.entries, findings=tuple(sorted(findings, key=lambda one: one.kind)))


class _ProjectWalk:
    """One walk: who the caller is, and what was seen so far."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._owner = (os.getuid(), os.getgid())
        self._device = os.stat(root).st_dev
        self._flags = Statx()
        self.entries = 0
        self.found: dict[str, tuple[int, list[bytes]]] = {}

    def add(self, kind: str, path: bytes) -> None:
        count, paths = self.found.get(kind, (0, []))
        if count < _SHOWN:
            paths.append(path)
        self.found[kind] = (count + 1, paths)

    def walk(self, top_fd: int) -> None:
        """Look at a directory and all below it; one descriptor per level of depth, each closed again."""
        levels = [(top_fd, b"", self._subdirectories(top_fd, b""))]
        while levels:
            dir_fd, here, pending = levels[-1]
            name = next(pending, None)
            if name is None:
                levels.pop()
                os.close(dir_fd)
                continue
            path = posixpath.join(here, name)
            try:
                child_fd = os.open(name, _OPEN_DIR, dir_fd=dir_fd)
            except OSError:
                self.add("unreadable", path)
                continue
            levels.append((child_fd, path, self._subdirectories(child_fd, path)))

    def _subdirectories(self, dir_fd: int, here: bytes) -> Iterator[bytes]:
        """Look at every entry of a directory and return the names of those to go into."""
        try:
            names = sorted(map(os.fsencode, os.listdir(dir_fd)))
        except OSError:
            self.add("unreadable", here)
            names = []
        return iter([name for name in names if self._look(dir_fd, name, posixpath.join(here, name))])

    def _look(self, dir_fd: int, name: bytes, path: bytes) -> bool:
        """Judge one entry; tell whether it is a directory to go into."""
        try:
            found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            target = os.readlink(name, dir_fd=dir_fd) if stat.S_ISLNK(found.st_mode) else None
        except OSError:
            return False
        if found.st_dev != self._device:
            return False
        self.entries += 1
        is_file, is_directory = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)
        is_program = is_file and bool(found.st_mode & 0o111)
        seen = {
            "other-owner": (found.st_uid, found.st_gid) != self._owner,
            "immutable": self._flags.is_immutable(dir_fd, name),
            "overlay-mark": _has_attribute(dir_fd, name, "user.overlay."),
            "setuid": is_file and bool(found.st_mode & (stat.S_ISUID | stat.S_ISGID)),
            "hard-link": is_file and found.st_nlink > 1,
            "capabilities": is_program and _has_attribute(dir_fd, name, "security.capability"),
            "link-out": target is not None and leads_out(self._root, path, target),
            "special": not is_file and not is_directory and target is None,
        }
        for kind, is_so in seen.items():
            if is_so:
                self.add(kind, path)
        return is_directory


def leads_out(root: bytes, path: bytes, target: bytes) -> bool:
    """Tell by names alone whether a symlink at `path` below `root` leads out of it."""
    end = posixpath.normpath(posixpath.join(root, posixpath.dirname(path), target))
    return end != root and not end.startswith(root.rstrip(b"/") + b"/")


def _has_attribute(dir_fd: int, name: bytes, prefix: str) -> bool:
    try:
        names = os.listxattr(b"/proc/self/fd/%d/%s" % (dir_fd, name), follow_symlinks=False)
    except OSError:
        return False
    return any(known.startswith(prefix) for known in names)


def _show(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
