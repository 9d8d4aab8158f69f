# SPDX-License-Identifier: Apache-2.0
"""A project, opened: its directory, the policy for it, the store, what this machine can do, and its roots.

The only composition root. A second opening in the same process costs some file look-ups; the facts come from the
store and cost no process. The project's directory comes from the person, never from inside a sandbox. What is kept lies
in the XDG directories of the caller's own environment; nothing is ever kept in the project.

The person's configuration widens or tightens, the project's file only tightens. A file that is there but can't be read
or understood stops the run; it is never passed over.
"""

from __future__ import annotations

import os
import stat
import time

from unspill.errors import (
    BwrapMissing,
    BwrapUnsafe,
    HostError,
    NamespacesForbidden,
    OverlayUnsupported,
    PolicyError,
    RootCallerRefused,
    RootfsUnsafe,
    UsageError,
)
from unspill.host.bwrap import (
    facts_from_text,
    facts_key,
    facts_to_text,
    find_bwrap,
    find_changeable_way,
    should_keep,
)
from unspill.host.places import check_own_place, find_home
from unspill.layers.locks import SandboxLock
from unspill.lazy import lazy_module
from unspill.model.policy import LENGTHS, Policy
from unspill.model.run import SandboxId
from unspill.policy.defaults import (
    check_root,
    merge_roots,
    mount_place_problem,
    mount_places_problem,
    mount_source_problem,
)
from unspill.policy.paths import closest, is_normalised, show
from unspill.record import Record
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from unspill.model.plan import Facts, Home
    from unspill.model.policy import ApproverName, EngineName
    from unspill.permissions.approvers import Approver
    from unspill.store.layers import SandboxRow

    # What callers may give where a path is wanted
    PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]
    # Whoever answers when more is wanted than the policy gives
    Who = Approver | ApproverName | None
    from unspill.host import probe
    from unspill.policy import config, merge
else:
    config = lazy_module("unspill.policy.config")  # lazy: configuration files
    merge = lazy_module("unspill.policy.merge")  # lazy: configuration files
    probe = lazy_module("unspill.host.probe")  # lazy: doctor


_NAME_LENGTH = 64
_LONGEST_SESSION = 200
_MARKS = (b".git", b".unspill.toml", b".hg", b".jj")

PROJECT_FILE = b".unspill.toml"
_LARGEST = 1 << 16
# The same as `policy.config.AFTER`, which a plain run does not load
_AFTER = ("apply", "hold", "discard")
_APPROVERS = ("terminal", "queue", "deny")
# What lasts, in the words of bwrap and of the C library: the kernel or the container forbids it, or this bwrap can't.
# A process or memory that can't be had at the moment, and a probe without an answer, are none of these
_REFUSALS = (
    "Operation not permitted",
    "Permission denied",
    "Function not implemented",
    "No permissions to creat",
    "does not support user namespaces",
    "namespaces exceeded (ENOSPC)",
    "Too many users",
    "was not disabled as requested",
    "Read-only file system",
    "Invalid argument",
    "Unknown option",
    "no bwrap",
)
# Stands for all who find out what the host can do
_PROBES = SandboxId("probe")
_NONE = "container mode was requested but no container was detected"


class Locations(Record):
    """`state` holds store and layers, `config` the person's policy, `data` the playgrounds, `rootfs` every rootfs.

    `rootfs_way` is how the last one was named, where links lead there.
    """

    home: bytes
    state: bytes
    config: bytes
    data: bytes
    rootfs: bytes = b""
    rootfs_way: bytes = b""


def own_directories(locations: Locations, policy: Policy) -> tuple[bytes, ...]:
    """Return the directories that are ours alone: no command may ever write there, what lies there is trusted."""
    rootfs = os.path.realpath(policy.rootfs_dir) if policy.rootfs_dir else locations.rootfs
    own = (locations.state, locations.config, locations.data)
    return own if not rootfs or rootfs.startswith(locations.data + b"/") else (*own, rootfs)


def find_locations(home: bytes, environ: Mapping[bytes, bytes]) -> Locations:
    """Return the directories of this person.

    Raises:
        UsageError: one of the variables is set to a relative path.
    """
    state = _given(environ, b"UNSPILL_STATE_DIR") or _base(environ, b"XDG_STATE_HOME", home, b".local/state")
    data = os.path.realpath(_base(environ, b"XDG_DATA_HOME", home, b".local/share"))
    rootfs, way = rootfs_dir(environ, data), _given(environ, b"ROOTFS_DIR")
    return Locations(
        home=home,
        state=os.path.realpath(state),
        config=os.path.realpath(_base(environ, b"XDG_CONFIG_HOME", home, b".config")),
        data=data,
        rootfs=rootfs,
        rootfs_way=way if way != rootfs else b"",
    )


def find_own_locations() -> Locations:
    """Return the directories of whoever runs this process."""
    return find_locations(find_home(os.getuid(), os.environb.get(b"HOME")).path, os.environb)


def rootfs_dir(environ: Mapping[bytes, bytes], data: bytes, configured: bytes = b"") -> bytes:
    """Return where every rootfs lies: as ROOTFS_DIR says, or as the person configured, or among their own files.

    Raises:
        UsageError: the variable is set to a relative path.
    """
    return os.path.realpath(_given(environ, b"ROOTFS_DIR") or configured or os.path.join(data, b"rootfs"))


def _base(environ: Mapping[bytes, bytes], name: bytes, home: bytes, default: bytes) -> bytes:
    return os.path.join(_given(environ, name) or os.path.join(home, default), b"unspill")


def _given(environ: Mapping[bytes, bytes], name: bytes) -> bytes:
    value = environ.get(name, b"")
    if value and not value.startswith(b"/"):
        shown = value.decode("utf-8", "backslashreplace")
        raise UsageError(f"{name.decode()} is not an absolute path: {shown!r}", remedy="Set it to an absolute path.")
    return value


class Means(Record):
    """What runs are made with: the policy, what this host can do, and the engine.

    In container mode `engine` is None, and `container` names what takes the place of a sandbox. It is None too where no
    sandbox can be made, for the reason in `refusal`, but the person may be asked to run a command without one.
    """

    policy: Policy
    facts: Facts
    engine: EngineName | None
    container: str = ""
    refusal: HostError | None = None

    def check_sandbox(self) -> None:
        """Refuse to run anything where no sandbox can be made.

        Raises:
            HostError: with the reason and the remedy.
        """
        if self.refusal is not None:
            # A new one each time: an exception collects notes and a traceback on its way
            raise type(self.refusal)(self.refusal.message, remedy=self.refusal.remedy)

    def check_live(self) -> None:
        """Refuse a live sandbox where none can be made.

        Raises:
            HostError: this machine can't, or the policy has no sandbox, or a rootfs that commands write to.
        """
        self.check_sandbox()
        if self.engine != "mount" or not self.facts.own_namespace:
            raise HostError(
                "A live sandbox is not possible here: unspill needs namespaces of its own for it.",
                remedy="Use a plain run (`Sandbox.run`, `unspill run`); `unspill doctor` shows what is missing.",
            )
        if self.policy.rootfs_writable:
            raise HostError(
                "A live sandbox can't have a rootfs that commands write to.",
                remedy="Use a plain run: `Sandbox.run`, `unspill run`.",
            )

    @property
    def has_live(self) -> bool:
        """Whether there are live sandboxes here."""
        try:
            self.check_live()
        except HostError:
            return False
        return True


class Project(Record):
    """A project that is open, with one of its sandboxes.

    Without a project `path` is the home directory, which can't be a project, and there is no root: nothing of it is
    shown or changed. `warning` is about the calling program, where that imports from a root. `former_path` is that of a
    project which has nothing at this path yet, and whose directory was known at another one.
    """

    path: bytes
    home: Home
    locations: Locations
    roots: tuple[bytes, ...]
    store: Store
    row: SandboxRow
    means: Means
    warning: str = ""
    former_path: bytes | None = None

    def with_means(self, **changed: Any) -> Project:
        """Return the project with some of its means changed."""
        return self.replace(means=self.means.replace(**changed))


def find_project(start: bytes) -> bytes:
    """Return the nearest directory at or above `start` that looks like the top of a project, else `start` itself.

    What a sandboxed command leaves can't move it upwards: it can't write above its own project, and a project that lost
    its mark stays one, as long as the store knows it.
    """
    home = os.path.realpath(os.path.expanduser(b"~"))
    directory = own = os.path.realpath(start)
    unmarked: list[bytes] = []
    while directory not in (b"/", home):
        if has_mark(directory):
            return next(_once_marked(unmarked), directory) if unmarked else directory
        unmarked.append(directory)
        directory = os.path.dirname(directory)
    return own


def has_mark(directory: bytes) -> bool:
    """Tell whether something in a directory says that it is the top of a project."""
    return any(os.path.lexists(os.path.join(directory, mark)) for mark in _MARKS)


def _once_marked(directories: list[bytes]) -> Iterator[bytes]:
    """Yield those directories that were projects with a mark when they were used."""
    state = find_locations(find_home(os.getuid(), os.environb.get(b"HOME")).path, os.environb).state
    if not os.path.exists(os.path.join(state, b"store.db")):
        return
    with Store.open(state) as store:
        for directory in directories:
            if store.sandboxes.is_marked(directory, os.stat(directory).st_ino):
                yield directory


def resolve_project(given: PathLike) -> bytes:
    """Return the real path of a project directory.

    Raises:
        UsageError: it does not exist or is no directory.
    """
    path = os.path.realpath(os.fsencode(given))
    if not os.path.isdir(path):
        shown = path.decode("utf-8", "backslashreplace")
        raise UsageError(f"no such project directory: {shown!r}", remedy="Give a directory that exists.")
    return path


def check_name(name: str) -> None:
    """Refuse what can't be the name of a sandbox.

    Raises:
        UsageError: with what can.
    """
    if not name or len(name) > _NAME_LENGTH or not name.isprintable() or "/" in name:
        raise UsageError(f"not a name for a sandbox: {name!r}", remedy="Use up to 64 printable characters, no slash.")


def check_known(name: str, given: bytes | None) -> None:
    """Refuse a name that no sandbox of a project has; without a project, of those that have none.

    Raises:
        UsageError: with the name that may have been meant, or all of them.
    """
    locations = find_own_locations()
    path = locations.home if given is None else resolve_project(given)
    with Store.open(locations.state) as store:
        known = [row.name for row in store.sandboxes.of_project(path)]
    if name not in known:
        near = closest(name, known)
        listed = f"Did you mean {near!r}?" if near else f"It has: {', '.join(known) or 'none yet'}."
        raise UsageError(f"this project has no sandbox {name!r}", remedy=listed)


def check_session(session: str) -> str:
    """Return the name of a session.

    Raises:
        UsageError: it can't be one.
    """
    if len(session) > _LONGEST_SESSION or not session.isprintable() or session.startswith("-"):
        raise UsageError(f"the name of the session must have at most {_LONGEST_SESSION} printable characters")
    return session


def load_policy(locations: Locations, project: bytes | None, given: Policy | None) -> Policy:
    """Return the policy of a sandbox: `given` or the person's file over the defaults, then the project's file.

    The files of directories above the project count too: a command may have made a project of what is a part of one.
    Without a project there are none of these.

    Raises:
        PolicyError: a setting is unknown, wrong or unreadable, or the project asks for more than it has.
    """
    if given is not None:
        _check_given(given)
    policy = given if given is not None else Policy()
    own = os.path.join(locations.config, b"config.toml")
    text = None if given is not None else read_text(own)
    # A symlink in a project could lead anywhere; in the person's own directory it is the person's
    asked = None if project is None else read_text(os.path.join(project, PROJECT_FILE), flags=os.O_NOFOLLOW)
    outer = [] if project is None else _files_above(project, locations.home)
    if text is None and asked is None and not outer:
        return _checked(policy, locations)

    home = locations.home
    if text is not None:
        policy = merge.with_own(policy, config.parse_policy(text, where=show(own), trusted=True, home=home))
        policy = without_overridden(policy)
    if project is None:
        return _checked(policy, locations)
    decided = policy
    if asked is not None:
        where = show(os.path.join(project, PROJECT_FILE))
        decided = merge.tighten(policy, config.parse_policy(asked, where=where, trusted=False, home=home, base=project))
    for directory, content in outer:
        where = show(os.path.join(directory, PROJECT_FILE))
        settings = config.parse_policy(content, where=where, trusted=False, home=home, base=directory)
        decided = merge.tightest(decided, merge.tighten(policy, merge.seen_from(project, settings, directory)))
    return _checked(decided, locations)


def without_overridden(policy: Policy) -> Policy:
    """Return the policy of a file without what the caller's own variables say otherwise."""
    return policy.replace(rootfs_dir=b"") if policy.rootfs_dir and os.environb.get(b"ROOTFS_DIR") else policy


def read_policy(path: bytes, home: bytes) -> Policy:
    """Return what a file of the person's says as a whole policy.

    Raises:
        PolicyError: it is not there, or can't be understood.
    """
    text = read_text(path)
    if text is None:
        raise PolicyError(f"there is no {show(path)}")
    return merge.with_own(Policy(), config.parse_policy(text, where=show(path), trusted=True, home=home))


def find_own_policy(locations: Locations) -> Policy:
    """Return what the person's own file says, whatever the project.

    Raises:
        PolicyError: it can't be understood.
    """
    path = os.path.join(locations.config, b"config.toml")
    text = read_text(path)
    if text is None:
        return Policy()

    own = merge.with_own(Policy(), config.parse_policy(text, where=show(path), trusted=True, home=locations.home))
    return without_overridden(own)


def rootfs_directory(policy: Policy, locations: Locations) -> bytes:
    """Return where every rootfs lies: of a program's own choice, or the person's.

    Raises:
        RootfsUnsafe: a link leads there that others could have laid.
    """
    directory = os.path.realpath(policy.rootfs_dir) if policy.rootfs_dir else locations.rootfs
    way = policy.rootfs_dir or locations.rootfs_way
    problem = find_changeable_way(way) if way and way != directory else None
    if problem is not None:
        raise RootfsUnsafe(
            f"{show(problem.path)} {problem.reason}, who could point it at their own rootfs",
            remedy=f"Name the directory itself (now {show(directory)}), if you mean that one.",
        )
    return directory


def _checked(policy: Policy, locations: Locations) -> Policy:
    """Return the policy if nothing that stays private is mounted by it; a link to it is no way round."""
    if not policy.mounts:
        return policy
    own = tuple(filter(None, (locations.state, locations.config, locations.data, locations.rootfs, policy.rootfs_dir)))
    for _place, directory in policy.mounts:
        for path in dict.fromkeys((directory, os.path.realpath(directory))):
            problem = mount_source_problem(path, home=locations.home, own=own)
            if problem:
                raise PolicyError(f"{show(directory)} can't be mounted: {show(path)} {problem}")
    return policy


def _check_given(policy: Policy) -> None:
    """Check of a policy that a program made what `policy.config` checks of a file: that each word is a known one."""
    rules = policy.permissions
    stances = ("network", "egress", "roots", "readable", "secrets", "held", "unsandboxed", "as_root")
    for name, value, known in (
        ("view", policy.view, config.VIEWS),
        ("tmp", policy.tmp, config.TMP),
        ("profile", policy.profile, config.PROFILES),
        ("after", policy.after, config.AFTER),
        ("after_timeout", policy.after_timeout, config.AFTER),
        ("after_cancel", policy.after_cancel, config.AFTER),
        ("engine", policy.engine, (None, *config.ENGINES)),
        ("network.mode", policy.network.mode, config.MODES),
        ("permissions.longest", rules.longest, LENGTHS),
        ("permissions.approver", rules.approver, config.APPROVERS),
        *((f"permissions.{stance}", getattr(rules, stance), config.STANCES) for stance in stances),
    ):
        if value not in known:
            raise PolicyError(
                f"the policy's {name} is not one of {', '.join(filter(None, known))}: {value!a}",
                remedy=config.DROPPED.get((name, str(value)), ""),
            )
    if not all(isinstance(root, bytes) for root in policy.roots):
        raise PolicyError("the policy's roots are not a tuple of bytes", remedy='For example: roots=(b"/srv/data",)')
    # Written so that it holds for what is not a number, too
    for name in ("max_denials", "max_same_denials", "denial_window_s"):
        if not getattr(rules, name) > 0:
            raise PolicyError(f"the policy's permissions.{name} must be above 0: {getattr(rules, name)!a}")
    if policy.rootfs or policy.rootfs_dir or policy.mounts or policy.provision is not None:
        _check_given_rootfs(policy)


def _check_given_rootfs(policy: Policy) -> None:
    if policy.rootfs and not config.is_rootfs_name(policy.rootfs) and not is_normalised(os.fsencode(policy.rootfs)):
        raise PolicyError(f"the policy's rootfs is neither a name nor an absolute path: {policy.rootfs!a}")
    if policy.rootfs_dir and not is_normalised(policy.rootfs_dir):
        raise PolicyError(f"the policy's rootfs_dir is not an absolute and normalised path: {policy.rootfs_dir!a}")
    for place, _directory in policy.mounts:
        problem = mount_place_problem(place)
        if problem:
            raise PolicyError(f"the policy's mounts: {show(place)} {problem}")
    problem = mount_places_problem(place for place, _directory in policy.mounts)
    if problem:
        raise PolicyError(f"the policy's mounts: {problem}")
    found = None if policy.provision is None else config.find_wrong_field(policy.provision)
    if found is not None:
        raise PolicyError(f"the policy's provision.{found[0]}: {found[1]}")


def check_approver(approver: object) -> None:
    """Refuse what can't answer when it is given, not when it is asked."""
    if approver is None or (isinstance(approver, str) and approver in _APPROVERS):
        return
    if isinstance(approver, str) or not callable(getattr(approver, "ask", None)):
        raise UsageError(
            f"not an approver: {approver!r}",
            remedy="Choose `terminal`, `queue` or `deny`, or give an object with `ask(question)`, such as `Callback`.",
        )


def check_run(after: str, after_cancel: str, wall_s: float | None) -> None:
    """Check what a caller chose for one run.

    Raises:
        UsageError: `after` or `after_cancel` is no such word, or the time is over before it begins.
    """
    for name, value in (("after", after), ("after_cancel", after_cancel)):
        if value not in _AFTER:
            raise UsageError(f"`{name}` is not one of {', '.join(_AFTER)}: {value!a}")
    if after == "discard" != after_cancel:
        # It does not wait for other runs, so nothing can be put on top of theirs
        raise UsageError("a run that discards its changes can't keep them", remedy="Leave out `after_cancel`.")
    # Written so that it holds for what is not a number, too
    if wall_s is not None and not wall_s > 0:
        raise UsageError(f"the timeout must be more than 0 seconds: {wall_s!a}", remedy="None stands for the policy's.")


def check_stdin(given: object) -> bytes | int | None:
    """Return what a command is to read.

    Raises:
        UsageError: it is neither a text nor bytes nor a descriptor.
    """
    if isinstance(given, str):
        try:
            return given.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise UsageError("`stdin` is not a text that UTF-8 has", remedy="Give bytes.") from None
    is_descriptor = isinstance(given, int) and not isinstance(given, bool) and given >= 0
    if given is None or isinstance(given, bytes) or is_descriptor:
        return given  # type: ignore[return-value]
    raise UsageError(f"`stdin` can't be {type(given).__name__}", remedy="Give a text, bytes, or a file's `fileno()`.")


def _files_above(project: bytes, home: bytes) -> list[tuple[bytes, str]]:
    """Return what the person's files for outer projects say, by directory; nobody else's counts."""
    found = []
    directory = os.path.dirname(project)
    while directory not in (b"/", home):
        path = os.path.join(directory, PROJECT_FILE)
        try:
            is_own = os.lstat(path).st_uid in (0, os.getuid())
        except OSError:
            is_own = False
        if is_own and (text := read_text(path, flags=os.O_NOFOLLOW)) is not None:
            found.append((directory, text))
        directory = os.path.dirname(directory)
    return found


def read_text(path: bytes, *, flags: int = 0) -> str | None:
    """Return the text of a regular file, None if there is nothing at its path.

    Raises:
        PolicyError: there is something, but not a readable text of reasonable size.
    """
    try:
        # O_NONBLOCK: a FIFO would wait for ever
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except FileNotFoundError:
        if os.path.lexists(path):
            raise PolicyError(f"{show(path)} is a link that leads nowhere") from None
        return None
    except OSError as error:
        raise PolicyError(f"{show(path)} can't be read: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            raise PolicyError(f"{show(path)} is not a small text file")
        return os.read(fd, _LARGEST + 1).decode("utf-8")
    except UnicodeDecodeError:
        raise PolicyError(f"{show(path)} is not UTF-8") from None
    finally:
        os.close(fd)


def open_project(
    given: PathLike | None,
    name: str,
    policy: Policy | None,
    permit_root: PermitRoot | None = None,
) -> Project:
    """Open the sandbox `name` of a project, or of none; `permit_root` is asked whether it may be root's.

    Raises:
        DeniedError: it may not.
        UsageError: project, policy or roots are wrong.
        HostError: this machine can't; the remedy says what to do.
        StoreError: the state directory can't be used.
    """
    home = find_home(os.getuid(), os.environb.get(b"HOME"))
    locations = find_locations(home.path, os.environb)
    project = None if given is None else resolve_project(given)
    path = home.path if project is None else project
    decided = load_policy(locations, project, policy)
    decided = decided if project is not None else decided.replace(roots=())
    is_refused = os.getuid() == 0 and not decided.allow_root
    if is_refused and (decided.permissions.as_root != "ask" or permit_root is None):
        raise RootCallerRefused("unspill does not run commands for root")
    roots = checked_roots(project, decided, locations)
    warning = check_own_place(roots)
    if is_refused and permit_root is not None:
        decided = permit_root(path, decided, locations)
    store = Store.open(locations.state)
    means = _find_means(store, decided, roots)
    found = os.stat(path)
    before_ns = time.time_ns()
    row = _row_of(store, path, name, found)
    is_first = row.created_ns >= before_ns and len(store.sandboxes.of_project(path)) == 1
    former = find_former(store, path, found) if is_first else ()
    return Project(
        path=path,
        home=home,
        locations=locations,
        roots=roots,
        store=store,
        row=row,
        means=means,
        warning=warning,
        former_path=former[0] if former else None,
    )


def find_former(store: Store, project: bytes, found: os.stat_result) -> tuple[bytes, ...]:
    """Return other paths that a project's directory had, by its device and inode; none that are still in use."""
    paths = store.sandboxes.projects_at(found.st_dev, found.st_ino)
    return tuple(path for path in paths if path != project and not _is_at(path, found.st_ino))


def _is_at(path: bytes, inode: int) -> bool:
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False


def _find_means(store: Store, policy: Policy, roots: tuple[bytes, ...]) -> Means:
    facts = None
    try:
        facts = get_facts(store, policy, roots)
        return Means(policy=policy, facts=facts, engine=choose_engine(policy, facts))
    except HostError as error:
        try:
            return _find_container_means(store, policy, roots, error)
        except HostError as refusal:
            # One that somebody may have planted is not passed over
            if policy.permissions.unsandboxed != "ask" or isinstance(refusal, BwrapUnsafe):
                raise
            facts = facts or get_facts(store, policy, roots, afresh=True)
            return Means(policy=policy, facts=facts, engine=None, refusal=refusal.with_traceback(None))


def _find_container_means(store: Store, policy: Policy, roots: tuple[bytes, ...], error: HostError) -> Means:
    if not policy.container:
        raise error
    facts, container = find_container(store, policy, roots, error)
    # What is baked for sandboxes is not seen without one
    return Means(policy=policy.replace(view="host"), facts=facts, engine=None, container=container)


def _row_of(store: Store, project: bytes, name: str, found: os.stat_result) -> SandboxRow:
    """Return the sandbox's row. Where another directory is at its path now, it is that one's if nothing is held."""
    row = store.sandboxes.get_or_create(project, name, found.st_dev, found.st_ino)
    # An open layer may be what a killed run has written, which is about to be held
    if row.inode != found.st_ino and not (store.layers.sealed(row.id) or store.layers.open(row.id)):
        store.sandboxes.move(row.id, found.st_dev, found.st_ino)
        row = row.replace(device=found.st_dev, inode=found.st_ino, marked=False)
    if not row.marked and has_mark(project):
        store.sandboxes.mark(row.id)
        row = row.replace(marked=True)
    return row


def with_held_roots(project: Project) -> Project:
    """Return it with the roots that only some of its runs had, as long as something of those is held.

    For whoever looks at what is held; a run has the roots of its policy, and those that it was allowed.
    """
    held = {row.root for row in project.store.layers.sealed(project.row.id)}.difference(project.roots)
    if not held:
        return project
    return project.replace(roots=(*project.roots, *sorted(root for root in held if os.path.isdir(root))))


def checked_roots(project: bytes | None, policy: Policy, locations: Locations) -> tuple[bytes, ...]:
    """Return the writable roots, each checked, none inside another; without a project there is none.

    Raises:
        RootRefused: one of them can't be a root.
    """
    if project is None:
        return ()
    own = own_directories(locations, policy)
    extra = tuple(os.path.realpath(root) for root in policy.roots)
    for root in (project, *extra):
        check_root(root, home=locations.home, own=own)
    return merge_roots(project, extra)


def get_facts(store: Store, policy: Policy, roots: tuple[bytes, ...], *, afresh: bool = False) -> Facts:
    """Return what this host can do: remembered where nothing it depends on has changed, else found out by running."""
    try:
        bwrap = find_bwrap(policy.bwrap, os.environ.get("PATH", os.defpath), roots)
    except BwrapMissing:
        if not afresh:
            raise
        bwrap = None
    key = "" if bwrap is None else facts_key(bwrap, store.state)
    facts = None if afresh else _find_facts(store, key)
    if facts is not None:
        return facts
    # One after another: many first runs at once would keep each other's probes from answering in time
    with SandboxLock(store.state, _PROBES):
        facts = None if afresh else _find_facts(store, key)
        if facts is None:
            facts = probe.probe(bwrap, store.state)
            # A refusal is not remembered: the person may be about to mend the cause
            if key and should_keep(facts):
                store.facts.put(key, facts_to_text(facts))
    return facts


def _find_facts(store: Store, key: str) -> Facts | None:
    text = store.facts.find(key) if key else None
    return None if text is None else facts_from_text(text)


def choose_engine(policy: Policy, facts: Facts) -> EngineName:
    """Return the engine of the policy, or the best one that works.

    Raises:
        HostError: there is no sandbox to be had here, why, and the remedy.
    """
    wanted = policy.engine or next(iter(facts.engines), None)
    if facts.can_seal() and wanted in facts.engines:
        return wanted
    raise _refusal(policy, facts)


def _refusal(policy: Policy, facts: Facts) -> HostError:
    from unspill.host.diagnosis import diagnose, find_refusal  # lazy: doctor

    row = find_refusal(diagnose(facts, policy))
    kind = NamespacesForbidden if not (facts.namespaces and facts.disable_userns) else OverlayUnsupported
    if row is None:
        reasons = "; ".join(dict.fromkeys(reason for _name, reason in facts.problems))
        return kind(f"no sandbox can be made here: {reasons}")
    # The first thing that is missing; `unspill doctor` lists the others
    why = row.consequence.removeprefix("No sandbox can be made. ")
    return kind(f"no sandbox can be made here: {why}", remedy=row.remedy)


def is_refused(facts: Facts) -> bool:
    """Tell whether no sandbox can be made here at all; not so where a probe only failed for the moment."""
    needed = ("namespaces", "disable_userns", "proc_mount")
    reasons = [reason for name, reason in facts.problems if name in needed and not getattr(facts, name)]
    return any(refusal in reason for reason in reasons for refusal in _REFUSALS)


def find_container(
    store: Store,
    policy: Policy,
    roots: tuple[bytes, ...],
    error: HostError,
    *,
    environ: Mapping[str, str] = os.environ,
    top: str = "",
) -> tuple[Facts, str]:
    """Return what this host can do, and the container that takes the place of a sandbox that can't be had.

    `error` is why it can't; `environ` and `top` are where a container's marks are looked for.

    Raises:
        HostError: there is no container, or the sandbox fails for a reason that must not be passed over.
    """
    if isinstance(error, BwrapUnsafe):
        raise error
    facts = get_facts(store, policy, roots, afresh=True)
    if facts.can_seal() or not is_refused(facts):
        raise error

    name = probe.detect_container(environ, top)
    if not name:
        remedy = f"Here is why no sandbox can be made: {error.message}. {error.remedy}"
        raise HostError(_NONE, remedy=remedy) from error
    return facts, name


if TYPE_CHECKING:
    PermitRoot = Callable[[bytes, Policy, Locations], Policy]
