# SPDX-License-Identifier: Apache-2.0
"""Have git make the index of a pack that a run left, in a sandbox that sees nothing else of the person's.

An index that a command wrote may say anything about where an object begins, and git would believe it.
"""

from __future__ import annotations

import os

from unspill.errors import UnspillError
from unspill.layers.lifecycle import make_upper, new_id
from unspill.layers.locks import make_in_use, work_dir
from unspill.layers.trees import remove_tree
from unspill.model.layer import OpenLayer, RunId, Stack, TimeMark
from unspill.model.policy import Policy
from unspill.model.run import Exited
from unspill.runner.perform import perform
from unspill.runner.watch import Wishes
from unspill.sandbox.planning import get_places, make_plan
from unspill.sandbox.spec import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from unspill.sandbox.project import Project

_SCRIPT = b"""\
format=$1; shift
for pack; do
    number=$((number + 1))
    git index-pack --object-format="$format" -o "unspill-$number.idx" "$pack" || rm -f "unspill-$number.idx"
done
"""


class PackIndexes:
    """The indexes of some packs, for as long as the context lasts; a pack that git refuses has none."""

    def __init__(self, project: Project, packs: Mapping[bytes, bytes], hash_size: int) -> None:
        """Take packs by the path that they have in the project, with where they lie."""
        self._project = project
        self._packs = packs
        self._format = b"sha1" if hash_size == 20 else b"sha256"
        self._top = work_dir(project.store.state, new_id())
        self._use_fd: int | None = None
        self.indexes: dict[bytes, bytes] = {}

    def __enter__(self) -> Self:
        if self._packs:
            try:
                self._make()
            except (OSError, UnspillError):
                # Without an index a pack is not applied, and what needs it waits; that is said then
                self.indexes = {}
        return self

    def __exit__(self, *_details: object) -> None:
        remove_tree(self._top)
        if self._use_fd is not None:
            os.close(self._use_fd)

    def _make(self) -> None:
        self._use_fd = make_in_use(self._top)
        directories: dict[bytes, list[bytes]] = {}
        for path, place in self._packs.items():
            directories.setdefault(os.path.dirname(place), []).append(path)
        for number, (lower, paths) in enumerate(directories.items()):
            upper, work = (b"%b/%b-%d" % (self._top, name, number) for name in (b"upper", b"work"))
            os.mkdir(work, 0o700)
            make_upper(upper, lower)
            self._run(lower, upper, work, [os.path.basename(self._packs[path]) for path in paths])
            for count, path in enumerate(paths, 1):
                index = b"%b/unspill-%d.idx" % (upper, count)
                if os.path.isfile(index) and not os.path.islink(index):
                    self.indexes[path] = index

    def _run(self, lower: bytes, upper: bytes, work: bytes, names: list[bytes]) -> None:
        run = RunId(os.urandom(8).hex())
        found = os.stat(lower)
        layer = OpenLayer(id=new_id(), upper=upper, work=work, mark=TimeMark(ctime_ns=0), run=run)
        stack = Stack(live=lower, device=found.st_dev, inode=found.st_ino, open=layer)
        # Nothing of the home directory: its places are covered by directories that this sandbox does not have
        known = self._project.means.policy
        policy = Policy(bwrap=known.bwrap, limits=known.limits, toolchains=False, caches=False)
        project = self._project.replace(path=lower, roots=(lower,)).with_means(policy=policy)
        request = Request(
            argv=(b"/bin/sh", b"-c", _SCRIPT, b"index", self._format, *names),
            script=None,
            cwd=lower,
            environ=(),
            limits=policy.limits,
        )
        # The one root of it lies among our own files, where no other may be
        places = get_places(project).replace(state=project.store.state + b"/empty", own=())
        plan = make_plan(project, request, places, (stack,), ())
        performed = perform(plan, project.means.facts, Wishes(run=run, spill_dir=self._top + b"/output"))
        if not isinstance(performed.outcome, Exited):
            raise OSError("git did not end by itself")
