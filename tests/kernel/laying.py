# SPDX-License-Identifier: Apache-2.0
"""Changes put into a copy of a project by the plainest means, as a tool without any guard would."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from unspill.model.change import Change, ChangeSet


def lay(changes: ChangeSet, copy: Path, leave_out: Collection[bytes] = ()) -> None:
    """Make the changes of the only root in `copy`, except those below the paths to leave out."""
    (part,) = changes.roots
    for change in part.changes:
        if not any(change.path == path or change.path.startswith(path + b"/") for path in leave_out):
            _lay_one(change, copy / os.fsdecode(change.path))


def _lay_one(change: Change, target: Path) -> None:
    if change.path == b".":
        return
    if change.kind in ("deleted", "replaced", "modified"):
        _remove(target)
    if change.entry is None:
        return
    assert change.layer is not None
    source = Path(os.fsdecode(change.layer + b"/" + change.path))
    if change.entry.kind == "dir":
        target.mkdir(exist_ok=True, parents=True)
    else:
        target.parent.mkdir(exist_ok=True, parents=True)
        _remove(target)
        shutil.copy2(source, target, follow_symlinks=False)


def _remove(target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
