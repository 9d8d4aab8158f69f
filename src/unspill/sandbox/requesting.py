# SPDX-License-Identifier: Apache-2.0
"""One command as asked for, checked before a layer is made or a process started: words, directory, variables, bounds.

Paths are those inside the sandbox, as the command and whoever reads about it will see them.
"""

from __future__ import annotations

import os

from unspill.errors import UsageError
from unspill.plan.view import (
    missing_text,
    not_a_directory_text,
    playground_inside,
    resolve_working_dir,
    to_host,
    to_inside,
)
from unspill.sandbox.spec import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unspill.model.policy import Limits
    from unspill.sandbox.project import Project

    # A text for a shell, or words
    Command = str | bytes | Sequence[str | bytes]

# The kernel takes 128 KiB in one argument and 2 MiB in all; a longer script goes in by a descriptor
_LONGEST_ARGUMENT = 120 * 1024
_LARGEST_COMMAND = 1920 * 1024
_POINTER = 9
# bwrap takes 9000 with its own options; beyond this a shell hands them over
_MOST_WORDS = 4096


def make_request(
    project: Project,
    command: Command,
    cwd: str | None,
    env: Mapping[str, str] | None,
    limits: Limits | None,
) -> Request:
    """Check what a caller asks for.

    Raises:
        UsageError: the command is empty or has a NUL, or the directory is none.
    """
    # In view `rootfs` that finds the rootfs, and makes it if need be, before anybody is locked out
    shell = _shell(project)
    if isinstance(command, str | bytes):
        text = _encode(command)
        script = text if len(text) > _LONGEST_ARGUMENT else None
        # A shell takes what begins like an option for one; a space before it means nothing
        argv: tuple[bytes, ...] = (shell, b"-c", b" " + text if text.startswith((b"-", b"+")) else text)
        is_empty = not text.strip()
    else:
        argv = tuple(map(_encode, command))
        script = _script_of_words(argv)
        is_empty = not argv or not argv[0]
    if is_empty:
        raise UsageError("Command cannot be empty")
    if any(b"\0" in word for word in argv):
        raise UsageError("the command contains NUL")
    return Request(
        argv=argv,
        script=script,
        cwd=checked_working_dir(project, cwd),
        environ=tuple((_encode(name), _encode(value)) for name, value in (env or {}).items()),
        limits=project.means.policy.limits if limits is None else limits,
    )


def _shell(project: Project) -> bytes:
    """Return what runs a text: /bin/sh of this host, or the best shell that the rootfs has."""
    if project.means.policy.view != "rootfs" or project.means.container:
        return b"/bin/sh"
    from unspill.sandbox.planning import get_places

    base = get_places(project).rootfs
    return b"/bin/sh" if base is None else base.shell


def _encode(word: str | bytes) -> bytes:
    try:
        return os.fsencode(word)
    except UnicodeEncodeError:
        raise UsageError(f"not a text: {word!a}", remedy="Give bytes where it is not Unicode.") from None


def _script_of_words(argv: tuple[bytes, ...]) -> bytes | None:
    """Return a script that runs a command of more words than bwrap takes, None where it takes them."""
    longest = max(map(len, argv), default=0)
    if longest > _LONGEST_ARGUMENT or sum(map(len, argv)) + _POINTER * len(argv) > _LARGEST_COMMAND:
        raise UsageError("the command is longer than the kernel takes", remedy="Pass it by stdin or a file.")
    if len(argv) <= _MOST_WORDS:
        return None
    return b"exec " + b" ".join(b"'" + word.replace(b"'", b"'\\''") + b"'" for word in argv) + b"\n"


def checked_working_dir(project: Project, cwd: str | None) -> bytes:
    """Return the working directory; one of a root must exist there unless an earlier run may have made it.

    Of all other paths only the sandbox knows what is there, so bwrap has the last word: the host's own answer would
    tell a model which files exist where it can't look.

    Raises:
        UsageError: with the text that a model is shown.
    """
    view, roots = project.means.policy.view, project.roots
    top = to_inside(project.path, view, roots)
    resolved = resolve_working_dir(cwd, top, playground_inside(view, project.home.path))
    if cwd is not None and cwd.startswith("/"):
        # A caller may know the project by its path on the host; no model has to learn that
        resolved = to_inside(resolved, view, roots)
    on_host = to_host(resolved, view, roots)
    is_in_root = any(on_host == root or on_host.startswith(root + b"/") for root in roots)
    if not is_in_root or any(_held_layers(project)):
        return resolved
    if not os.path.lexists(on_host):
        raise UsageError(missing_text(resolved))
    if not os.path.isdir(on_host):
        raise UsageError(not_a_directory_text(resolved))
    return resolved


def _held_layers(project: Project) -> tuple[object, ...]:
    return project.store.layers.sealed(project.row.id)
