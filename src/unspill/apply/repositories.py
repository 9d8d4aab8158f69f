# SPDX-License-Identifier: Apache-2.0
"""The changes of one root, with repositories among them: those that move, those that come as a whole, and the rest."""

from __future__ import annotations

from unspill.apply.git_draft import GitDraft
from unspill.git.index import SHA1
from unspill.git.repository import new_repositories
from unspill.git.transfer import check_new_repository
from unspill.model.operation import Left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.apply.draft import Draft
    from unspill.apply.drafting import RootDraft
    from unspill.apply.git_draft import GitSource
    from unspill.apply.sites import Sites
    from unspill.git.repository import Repository
    from unspill.model.change import Change, RootChanges


def draft_with_repositories(
    draft: Draft,
    sites: Sites,
    root: int,
    part: RootChanges,
    repositories: Sequence[Repository],
    source: GitSource,
    files: RootDraft,
) -> None:
    """Draft all changes of a root; `repositories` are those that move with them."""
    own = {change.path for repository in repositories for change, _part in repository.changes}
    changes = [change for change in part.changes if change.path not in own]
    members = {
        repository.top + b"/" + member.rstrip(b"/"): repository.after.hash_size
        for repository in repositories
        for member in repository.new_members()
    }
    for top, size in (dict.fromkeys(new_repositories(part), SHA1) | members).items():
        changes = _with_new(draft, root, top, size, changes, source, files)
    drafts = [GitDraft(draft, sites, root, repository, source, files) for repository in repositories]
    # What stays in a commit that only arrives; where that commit can't come, its files are files like any other
    arriving = [git.committed(changes) if git.is_diverged and git.keeps_commit else set() for git in drafts]
    changes = [change for change in changes if not any(change.path in paths for paths in arriving)]
    files.add(changes)
    files.leave_incomplete()
    for git, repository, paths in zip(drafts, repositories, arriving, strict=True):
        if not git.is_diverged:
            files.add_quietly([change for change, part in repository.changes if part == "along"])
        along = {change.path for change, part in repository.changes if part == "along"}
        new = tuple(repository.top + b"/" + member for member in repository.new_members())
        git.add(
            {group for path, group in files.groups.items() if path in along or path.startswith(new)},
            () if git.is_diverged else _committed_groups(git, changes, files),
            paths,
        )


def _committed_groups(git: GitDraft, changes: Sequence[Change], files: RootDraft) -> set[int]:
    """Return the groups of steps that do nothing but what the run's own commit has."""
    committed = git.committed(changes)
    others = {group for path, group in files.groups.items() if path not in committed}
    return {group for path, group in files.groups.items() if path in committed} - others


def _with_new(
    draft: Draft, root: int, top: bytes, hash_size: int, changes: Sequence[Change], source: GitSource, files: RootDraft
) -> list[Change]:
    """Return the changes with what is applied of a repository that comes as a whole: all of it, or nothing."""

    def place_of(change: Change) -> bytes:
        assert change.layer is not None
        return source.uppers[change.layer] + b"/" + change.path

    inside = [change for change in changes if change.path.startswith(top + b"/")]
    checked = check_new_repository(inside, place_of, source.packs, hash_size)
    kept = {change.path for change in checked.changes}
    if checked.problem:
        draft.leave(Left(root=root, path=top, why="refused", reason=checked.problem))
    else:
        kept.add(top)
        files.group_together(top)
        files.write_instead(checked.contents)
    return [change for change in changes if change.path in kept or not (change.path + b"/").startswith(top + b"/")]
