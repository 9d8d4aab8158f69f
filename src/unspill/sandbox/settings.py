# SPDX-License-Identifier: Apache-2.0
"""Reads the policy: the person's configuration widens or tightens, the project's file only tightens.

A file that is there but can't be read or understood stops the run; it is never passed over.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import PolicyError, RootfsUnsafe, UsageError
from unspill.host.bwrap import find_changeable_way
from unspill.model.policy import SCOPES, Policy
from unspill.policy.defaults import mount_place_problem, mount_places_problem, mount_source_problem
from unspill.policy.paths import is_normalised, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import ApproverName
    from unspill.permissions.approvers import Approver
    from unspill.sandbox.project import Locations

    # Whoever answers when more is wanted than the policy gives
    Who = Approver | ApproverName | None

PROJECT_FILE = b".unspill.toml"
_LARGEST = 1 << 16
# The same as `policy.config.AFTER`, which a plain run does not load
_AFTER = ("apply", "hold", "discard")
_APPROVERS = ("terminal", "queue", "deny")


def load_policy(locations: Locations, project: bytes, given: Policy | None) -> Policy:
    """Return the policy of a sandbox: `given` or the person's file over the defaults, then the project's file.

    The files of directories above the project count too: a command may have made a project of what is a part of one.

    Raises:
        PolicyError: a setting is unknown, wrong or unreadable, or the project asks for more than it has.
    """
    if given is not None:
        _check_given(given)
    policy = given if given is not None else Policy()
    own = os.path.join(locations.config, b"config.toml")
    text = None if given is not None else read_text(own)
    # A symlink in a project could lead anywhere; in the person's own directory it is the person's
    asked = read_text(os.path.join(project, PROJECT_FILE), flags=os.O_NOFOLLOW)
    outer = _files_above(project, locations.home)
    if text is None and asked is None and not outer:
        return _checked(policy, locations)
    from unspill.policy.config import parse_policy  # lazy: configuration files
    from unspill.policy.merge import tighten, with_own  # lazy: configuration files

    home = locations.home
    if text is not None:
        policy = with_own(policy, parse_policy(text, where=show(own), trusted=True, home=home))
        policy = without_overridden(policy)
    decided = policy
    if asked is not None:
        where = show(os.path.join(project, PROJECT_FILE))
        decided = tighten(policy, parse_policy(asked, where=where, trusted=False, home=home, base=project))
    for directory, content in outer:
        from unspill.policy.merge import seen_from, tightest  # lazy: configuration files

        where = show(os.path.join(directory, PROJECT_FILE))
        settings = parse_policy(content, where=where, trusted=False, home=home, base=directory)
        decided = tightest(decided, tighten(policy, seen_from(project, settings, directory)))
    return _checked(decided, locations)


def without_overridden(policy: Policy) -> Policy:
    """Return the policy of a file without what the caller's own variables say otherwise."""
    return policy.replace(rootfs_dir=b"") if policy.rootfs_dir and os.environb.get(b"ROOTFS_DIR") else policy


def find_own_policy(locations: Locations) -> Policy:
    """Return what the person's own file says, whatever the project.

    Raises:
        PolicyError: it can't be understood.
    """
    path = os.path.join(locations.config, b"config.toml")
    text = read_text(path)
    if text is None:
        return Policy()
    from unspill.policy.config import parse_policy  # lazy: configuration files
    from unspill.policy.merge import with_own  # lazy: configuration files

    own = with_own(Policy(), parse_policy(text, where=show(path), trusted=True, home=locations.home))
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
            f"{show(problem.path)} {problem.reason}, who could lead to a rootfs of theirs",
            remedy=f"Name the directory itself (now it is {show(directory)}), if it is the one that you mean.",
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
    from unspill.policy.config import (  # lazy: configuration files
        AFTER,
        APPROVERS,
        DROPPED,
        ENGINES,
        MODES,
        PROFILES,
        STANCES,
        TMP,
        VIEWS,
    )

    rules = policy.permissions
    stances = ("network", "egress", "roots", "readable", "secrets", "held", "unsandboxed", "as_root")
    for name, value, known in (
        ("view", policy.view, VIEWS),
        ("tmp", policy.tmp, TMP),
        ("profile", policy.profile, PROFILES),
        ("after", policy.after, AFTER),
        ("after_timeout", policy.after_timeout, AFTER),
        ("after_cancel", policy.after_cancel, AFTER),
        ("engine", policy.engine, (None, *ENGINES)),
        ("network.mode", policy.network.mode, MODES),
        ("permissions.longest", rules.longest, SCOPES),
        ("permissions.approver", rules.approver, APPROVERS),
        *((f"permissions.{stance}", getattr(rules, stance), STANCES) for stance in stances),
    ):
        if value not in known:
            raise PolicyError(
                f"the policy's {name} is not one of {', '.join(filter(None, known))}: {value!a}",
                remedy=DROPPED.get((name, str(value)), ""),
            )
    if policy.rootfs or policy.rootfs_dir or policy.mounts or policy.provision is not None:
        _check_given_rootfs(policy)


def _check_given_rootfs(policy: Policy) -> None:
    from unspill.policy.config import find_wrong_field, is_rootfs_name  # lazy: configuration files

    if policy.rootfs and not is_rootfs_name(policy.rootfs) and not is_normalised(os.fsencode(policy.rootfs)):
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
    found = None if policy.provision is None else find_wrong_field(policy.provision)
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
