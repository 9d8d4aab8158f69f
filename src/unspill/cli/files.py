# SPDX-License-Identifier: Apache-2.0
"""`unspill files`: the files that operations have touched, and their backups."""

from __future__ import annotations

import os

from unspill.changes.quote import quote
from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.cli.selecting import path_from_project
from unspill.cli.telling import size_text, when_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.sandbox.records import Backup
    from unspill.sandbox.sandbox import Sandbox
    from unspill.store.operations import FileRow

COMMAND = Command(
    name="files",
    summary="List the files that operations have touched, with the names of their backups; see `restore`.",
    positional="[PATH ...]",
    most=None,
    options=(Option(name="--deleted", help="also files that are not there any more"), *EVERYWHERE),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    sandbox = open_sandbox(arguments)
    tops = [os.path.join(sandbox.project, path_from_project(word, sandbox.project)) for word in arguments.words]
    files = [
        (file, sandbox.backups(file))
        for file in sandbox.files(with_deleted=arguments.flag("--deleted"))
        if not tops or any(_is_below(file, os.path.normpath(top)) for top in tops)
    ]
    if arguments.flag("--json"):
        from unspill.cli.json_form import file_form

        print_json({"files": [file_form(file, backups) for file, backups in files]})
        return 0
    for file, backups in files:
        _print_file(sandbox, file, backups)
    return 0


def _is_below(file: FileRow, top: bytes) -> bool:
    return (file.root + b"/" + file.path + b"/").startswith(top + b"/")


def _print_file(sandbox: Sandbox, file: FileRow, backups: tuple[Backup, ...]) -> None:
    path = file.path if file.root == sandbox.project else os.path.join(file.root, file.path)
    state = "deleted" if file.is_deleted else when_text(file.last_modified)
    print(f"{quote(path)}  ({state})")
    for backup in backups:
        where = "" if backup.where == "kept" else f"  [{backup.where}]"
        size = size_text(backup.row.entry.size)
        print(f"  {when_text(backup.row.recorded_ns)}  {size:>10}  {quote(backup.row.name)}{where}")
