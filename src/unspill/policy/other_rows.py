# SPDX-License-Identifier: Apache-2.0
"""Rows of what is decided by place, content or kind instead of a name: git's own files, links, executables.

Data only; `apply.guard` finds out which row a change is in. `what` and the reasons stand in docs/held.md as they are.
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.policy.row import Verdict


class OtherRow(Record):
    """One row: what is meant, the verdict, the reason, and the verdict on a deletion."""

    what: str
    verdict: Verdict
    reason: str
    deleted: Verdict = "ordinary"

    @property
    def opinion(self) -> tuple[Verdict, str]:
        """What a path in this row gets."""
        return self.verdict, self.reason


HOOK = OtherRow(
    what="`.git/hooks/*` but `*.sample`; what is in the directory that the live `core.hooksPath` names, or what a live "
    "hook is a link to",
    verdict="held",
    reason="git runs it by itself: a hook",
    deleted="flagged",
)
SETTINGS = OtherRow(
    what="`.git/config`, `.git/config.worktree`, those of modules, worktrees and bare repositories, and files that "
    "the live settings include, where a key changes that is not in the list below",
    verdict="held",
    reason="changes settings that git acts on",
    deleted="held",
)
DRIVERS = OtherRow(
    what="`.gitattributes` and `.git/info/attributes` with a new line that names a driver: `filter=`, `diff=` or "
    "`merge=`, but not git's own ones and not `lfs`",
    verdict="held",
    reason="makes git run a filter, diff or merge driver on files",
)
MODULES = OtherRow(
    what="`.gitmodules` with a command, or an address or path that is no plain one or leaves the project",
    verdict="held",
    reason="changes modules in a way that git acts on",
)
LEADS_OUT = OtherRow(
    what="`.git` as a file, `gitdir`, `commondir`, `.hg/sharedpath`, `.jj/repo` and `git_target` that lead out of the "
    "root, or to anything but the repository of a worktree",
    verdict="held",
    reason="leads git out of the project",
)
GIT_LINK = OtherRow(
    what="`.git`, `.gitattributes` or `.gitmodules` as a link; any link in a git directory but `HEAD`; a link in "
    "place of the work tree that the live `core.worktree` names, or above it",
    verdict="held",
    reason="git follows this link",
)
COMPLETES = OtherRow(
    what="`HEAD`, `objects`, `refs`, `commondir` or a `.git` file that makes a repository of a directory in which "
    "settings, attributes or hooks lie already, or of one behind a link",
    verdict="held",
    reason="makes a git directory of what lies there, with settings or hooks that git runs",
)
PROGRAM = OtherRow(
    what="a file that the live settings run: `core.fsmonitor`, `filter.*`, `diff.*`, `core.pager` and the like",
    verdict="held",
    reason="your git settings run it when you look at the project",
)
UNKNOWN = OtherRow(
    what="anything else in `.git`; an executable there; what is called like git's settings among references, logs and "
    "the like and is none by its content",
    verdict="held",
    reason="not a part of a git directory that is known to be harmless",
)
UNREADABLE = OtherRow(
    what="any of git's files above that can't be read or parsed, or has more than 256 KiB",
    verdict="held",
    reason="can't be read, so nobody knows what git would run",
)
TEMPLATE = OtherRow(
    what="`.tool-versions` with a template",
    verdict="held",
    reason="mise runs what its template says when you enter the directory",
)
LINK_OUT = OtherRow(
    what="a new link that leads out of the root, or whose text does not say where it leads (`name/..`); not the "
    "`bin/python` of a virtual environment",
    verdict="held",
    reason="a link that leads out of the project",
)
SECRET = OtherRow(
    what="a file by the name of a secret (`.env`, `.npmrc`, `id_rsa`, ...: the table of docs/secrets.md) in the top "
    "directory of a root or a directory of `[secrets]`",
    verdict="held",
    reason="is where a secret of yours belongs, which no command sees",
    deleted="held",
)
SECRET_BELOW = OtherRow(
    what="a directory of `[secrets]`, or one above it, that is deleted or replaced",
    verdict="held",
    reason="in it may lie secrets of yours, which the command did not see",
    deleted="held",
)
PROJECT_MARK = OtherRow(
    what="`.git`, `.hg` or `.jj` in the top directory of a root, if it is replaced",
    verdict="held",
    reason="marks where your project ends; without it a directory further up may be taken for the project",
    deleted="held",
)
GONE_WITH_IT = OtherRow(
    what="a directory in which anything lies whose own deletion is held, or more than 500,000 files, if it is replaced",
    verdict="held",
    reason="with this directory goes what is not deleted without your consent",
    deleted="held",
)
OPEN_GIT = OtherRow(
    what="the top directory of a root, `.git` and what is in it, that become writable for everybody",
    verdict="held",
    reason="lets everybody on this machine put hooks and settings into your repository",
)
CLOSED_ROOT = OtherRow(
    what="the top directory of a root that you could not list or enter any more",
    verdict="held",
    reason="locks you out of your own project",
)
REPOSITORY = OtherRow(
    what="a repository further down, `.git` as a directory, if it is replaced, by itself or with a directory above it",
    verdict="flagged",
    reason="a repository goes, with its history",
    deleted="flagged",
)
MODULE = OtherRow(
    what="the repository of a submodule in `.git/modules`, if it is replaced",
    verdict="held",
    reason="the repository of a submodule goes, with its history",
    deleted="held",
)
OPEN_TO_ALL = OtherRow(
    what="a file or directory that becomes writable for everybody; a program that gets the set-user or set-group bit",
    verdict="flagged",
    reason="lets others on this machine write to it or run it as you",
)
TODO = OtherRow(
    what="the steps of a rebase that run commands: `.git/rebase-merge/git-rebase-todo`, `.git/sequencer/todo`",
    verdict="flagged",
    reason="has commands that run when the rebase goes on",
)
ALTERNATES = OtherRow(
    what="`.git/objects/info/alternates`",
    verdict="held",
    reason="makes git read objects from elsewhere",
)
REPLACED_OBJECT = OtherRow(
    what="`.git/refs/replace/*`, `.git/info/grafts`",
    verdict="held",
    reason="makes git show another content or history than the one that was committed",
)
SHALLOW = OtherRow(
    what="`.git/shallow` of a repository that you had, if it gets another line",
    verdict="held",
    reason="cuts history off, and git's next cleaning removes what lies behind",
)
EXECUTABLE = OtherRow(
    what="a file that is new and executable, or becomes executable",
    verdict="flagged",
    reason="is a new executable",
)
PACKAGES = OtherRow(
    what="the rows above that go by name, and executables, in `node_modules`, `bower_components`, `.venv`, `venv`, "
    "`.tox`, `.nox`, `__pypackages__`, `site-packages`: one line for each such directory",
    verdict="flagged",
    reason="installed packages run when you use them",
)
PARTS_OF_GIT = OtherRow(
    what="in `.git`: objects, references, logs, index, `HEAD` and the like, messages, the state of merges, rebases, "
    "bisections and stashes, `*.sample` hooks, `info/exclude`, worktrees and modules whose pointers stay inside",
    verdict="ordinary",
    reason="git only reads it",
)
OTHERS = (
    HOOK, SETTINGS, DRIVERS, MODULES, LEADS_OUT, GIT_LINK, COMPLETES, PROGRAM, UNKNOWN, UNREADABLE, TEMPLATE, LINK_OUT,
    SECRET, SECRET_BELOW, PROJECT_MARK, GONE_WITH_IT, OPEN_GIT, CLOSED_ROOT, ALTERNATES, REPLACED_OBJECT, SHALLOW,
    REPOSITORY, MODULE, OPEN_TO_ALL, TODO, EXECUTABLE, PACKAGES, PARTS_OF_GIT,
)  # fmt: skip
