# SPDX-License-Identifier: Apache-2.0
"""`unspill init`: a `.unspill.toml` for a project, with every setting that a project's file may have.

Each stands there with its default, as a comment: the file changes nothing before somebody uncomments a line.
"""

from __future__ import annotations

import os

from unspill.changes.render import named
from unspill.cli.main import Option, named_project, verb
from unspill.cli.output import print_json, seen_from_here
from unspill.errors import UsageError
from unspill.model.policy import GIB, KIB, MIB, Limits, Network, Policy, Rules, Secrets
from unspill.policy.paths import quote
from unspill.sandbox.project import PROJECT_FILE, find_project, resolve_project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.cli.main import Arguments
    from unspill.record import Record

_HEAD = """\
# What unspill may show to commands in this project, and what they may do. This file only tightens: it can't allow more
# than ~/.config/unspill/config.toml does. To set something, delete the # before its line, and before its [table].
"""
# What each setting is, by table; the defaults are those of the records
_TABLES: tuple[tuple[str, Record, dict[str, str]], ...] = (
    (
        "",
        Policy(),
        {
            "view": "how much of the machine commands see: host, sealed or rootfs, ever less",
            "rootfs_writable": "in view rootfs: let commands change the rootfs, in a layer",
            "tmp": "in view rootfs: a fresh /tmp for each run, or a persistent one",
            "hidden": "more paths to hide",
            "toolchains": "show the toolchains in the home directory",
            "caches": "show the tool caches in the home directory, copy-on-write",
            "environment": "variables of yours to pass to commands",
            "after": "when a command ends: apply, hold or discard its changes",
            "after_timeout": "the same when a limit stopped it",
            "after_cancel": "the same when it was cancelled",
            "profile": "which system calls are refused: default or strict",
            "shown_lines": "lines of output in an answer to a model",
            "shown_bytes": "bytes of it",
        },
    ),
    (
        "limits",
        Limits(),
        {
            "wall_s": "seconds that a command may take",
            "output_bytes": "what it may print",
            "kept_bytes": "how much of the beginning and end of its output is kept in memory",
            "layer_bytes": "disk space for what it writes",
            "layer_entries": "files and directories that it may make",
            "file_bytes": "size of one file",
            "processes": "processes and threads at the same time",
            "memory_bytes": "memory",
            "open_files": "open files of one process",
            "tmp_bytes": "size of /tmp, of /var/tmp and of the home directory inside",
        },
    ),
    (
        "network",
        Network(),
        {
            "hosts": "hosts of yours that every run may reach",
            "private_hosts": "hosts of your own network that every run may reach",
            "registries": "package managers whose own hosts every run may reach",
            "ask": "ask about other hosts while the command waits",
            "up_bytes": "what one run may send",
            "down_bytes": "what one run may receive",
        },
    ),
    (
        "permissions",
        Rules(),
        {
            "network": "the network for one command: ask or deny",
            "egress": "named hosts for one command",
            "roots": "another directory to write to",
            "readable": "another path to show",
            "secrets": "a secret of the project to show",
            "held": "a held file that a program wants to apply",
            "unsandboxed": "a command without a sandbox",
            "as_root": "a sandbox for root",
            "longest": "how long an answer may last: once, run, sandbox or always",
            "grant_days": "days after which a remembered answer expires",
            "approver": "who is asked: terminal, queue or deny",
            "wait_s": "seconds that a question waits",
            "max_denials": "denials after which nobody is asked for a while",
            "max_same_denials": "the same for one and the same question",
            "denial_window_s": "seconds that a denial counts",
        },
    ),
    (
        "secrets",
        Secrets(),
        {
            "mask": "hide files that are named like secrets",
            "names": "more names of secrets",
            "directories": "where else to hide them, relative to the project",
        },
    ),
)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@verb(
    "Write a .unspill.toml for the project: every setting it may have, with its default, as a comment.",
    Option(name="--print", help="print it, and write nothing"),
    examples=("unspill init --print", "unspill init"),
)
def init(arguments: Arguments) -> int:
    """Write the file, unless there is one."""
    text = "\n".join(_lines()) + "\n"
    path = os.path.join(resolve_project(named_project(arguments) or find_project(os.getcwdb())), PROJECT_FILE)
    if arguments.flag("--print"):
        print(text, end="")
        return 0
    try:
        number = os.open(path, _NEW, 0o666)
    except FileExistsError:
        raise UsageError(
            f"{quote(seen_from_here(path))} is there already", remedy="To see all settings: unspill init --print"
        ) from None
    except OSError as error:
        raise UsageError(f"{quote(path)} can't be written: {error.strerror}") from error
    with open(number, "w", encoding="utf-8") as file:
        file.write(text)
    if arguments.flag("--json"):
        print_json(named("file", path))
    else:
        print(f"Wrote {quote(seen_from_here(path))}. It changes nothing until you uncomment a line.")
    return 0


def _lines() -> Iterator[str]:
    yield _HEAD
    for table, defaults, settings in _TABLES:
        if table:
            yield f"\n#[{table}]"
        for name, about in settings.items():
            yield f"# {about}\n#{name} = {_written(name, getattr(defaults, name))}"


def _written(name: str, value: object) -> str:
    """Return a value as TOML, a size with its unit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and name.endswith("_bytes"):
        unit, size = next(
            (unit, size) for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if value % size == 0
        )
        return f'"{value // size} {unit}"'
    if isinstance(value, int | float):
        return f"{value:g}" if value < 1e5 else str(value)
    return "[]" if value == () else f'"{value}"'
