# SPDX-License-Identifier: Apache-2.0
"""What can be asked of a sandbox: its settings, what is held, what was run and what was done. Nothing is changed."""

from __future__ import annotations

from unspill.layers.lifecycle import find_hidden, load_stacks
from unspill.model.layer import SandboxId
from unspill.sandbox.opening import with_held_roots
from unspill.sandbox.requesting import make_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unspill.model.change import ChangeSet
    from unspill.model.operation import Operation, Step
    from unspill.model.plan import Facts, Plan
    from unspill.model.policy import EngineName, Policy, View
    from unspill.model.run import Run
    from unspill.model.traffic import Traffic
    from unspill.sandbox.project import Project
    from unspill.sandbox.records import Backup
    from unspill.sandbox.requesting import Command
    from unspill.sandbox.reviews import Reviews
    from unspill.store.operations import FileRow


class Looking:
    """The part of a Sandbox that looks."""

    _project: Project
    _recovered: tuple[Operation, ...]
    _interrupted: list[Run]

    @property
    def project(self) -> bytes:
        """The real path of the project."""
        return self._project.path

    @property
    def id(self) -> SandboxId:
        """What it is known by in the store, whatever becomes of its name."""
        return self._project.row.id

    @property
    def policy(self) -> Policy:
        """What its commands may see and use."""
        return self._project.means.policy

    @property
    def facts(self) -> Facts:
        """What this host can do."""
        return self._project.means.facts

    @property
    def view(self) -> View:
        """What it shows instead of the host's root, or of it."""
        return self._project.means.policy.view

    @property
    def engine(self) -> EngineName | None:
        """How layers are put over the project here; None in container mode, where there are none."""
        return self._project.means.engine

    @property
    def recovered(self) -> tuple[Operation, ...]:
        """Operations that were interrupted, and that this opening has taken back (`rolled back`) or finished."""
        return self._recovered

    @property
    def interrupted_runs(self) -> tuple[Run, ...]:
        """Runs of the project that lost their process, or were cut off otherwise, and that this object has found.

        Their changes are held now, unless they were too large: such a run has `LimitReached` for its outcome.
        """
        return tuple(self._interrupted)

    def describe_interrupted(self, run: Run) -> str:
        """Return in one line what became of the changes of such a run, for the person."""
        from unspill.sandbox.interrupted import interrupted_line

        row = self._project.store.sandboxes.find_id(SandboxId(run.sandbox))
        return interrupted_line(run, "" if row is None else row.name)

    def changes(self, *, run: str | int | None = None) -> ChangeSet:
        """Return what is held against the live project, or what one held run changed."""
        from unspill.sandbox.reading import changes_of

        return changes_of(with_held_roots(self._project), run)

    def held_of(self, operation: Operation) -> ChangeSet:
        """Return what is held of the runs that an operation came from."""
        from unspill.sandbox.reading import changes_of_runs

        return changes_of_runs(with_held_roots(self._project), operation.runs)

    def hidden_by_held(self) -> tuple[bytes, ...]:
        """Return what is in the top directory of a root but not seen by a run, because its deletion is held."""
        project = self._project
        return find_hidden(load_stacks(project.store, project.row.id, project.roots))

    def summary(self, *, run: str | int | None = None, colour: bool = False) -> list[str]:
        """Return what is held as lines for a person: counts, one line a path, renames recognised."""
        from unspill.sandbox.reading import summary_of

        return summary_of(with_held_roots(self._project), run, colour=colour)

    def diff(
        self,
        paths: Sequence[str] = (),
        *,
        run: str | int | None = None,
        operation: str | int | None = None,
        colour: bool = False,
        skip: Callable[[bytes], bool] = lambda _path: False,
    ) -> str:
        """Return what is held, or what a run or an operation changed, as text: unified diffs, safe to print.

        Nothing is shown of paths, absolute ones, that `skip` is true of.
        """
        if operation is not None:
            from unspill.sandbox.retracing import operation_diff

            wanted = [path.encode("utf-8", "surrogateescape") for path in paths]
            return operation_diff(self._project, operation, wanted, colour=colour, skip=skip)
        from unspill.sandbox.reading import diff_of

        return diff_of(with_held_roots(self._project), paths, run, colour=colour, skip=skip)

    @property
    def reviews(self) -> Reviews:
        """What is held as a person reviews it on a terminal, and the tokens that name it."""
        from unspill.sandbox.reviews import Reviews

        return Reviews(with_held_roots(self._project))

    def operations(self, *, limit: int = 20) -> tuple[Operation, ...]:
        """Return the project's latest operations, the youngest first."""
        return self._project.store.operations.latest(self._project.path, limit)

    def find_operation(self, operation: str | int) -> tuple[Operation, tuple[Step, ...]]:
        """Return one operation by number or id, with the steps that were done; a UsageError if there is none."""
        from unspill.sandbox.operations import get_operation, steps_of

        found = get_operation(self._project, operation)
        return found, steps_of(self._project, found)

    def operation_changes(self, operation: str | int) -> ChangeSet:
        """Return what an operation changed in the project.

        Raises:
            UsageError: there is none, or that is not kept any more.
        """
        from unspill.sandbox.retracing import operation_changes

        return operation_changes(self._project, operation)

    def files(self, *, with_deleted: bool = False) -> tuple[FileRow, ...]:
        """Look which files that operations have touched are still there, and return their records by root and path."""
        from unspill.sandbox.records import files_of
        from unspill.sandbox.rescanning import rescan

        rescan(self._project.store, self._project.path)
        return files_of(self._project.store, self._project.path, with_deleted=with_deleted)

    def backups(self, file: FileRow) -> tuple[Backup, ...]:
        """Return the named backups of a file, the newest first."""
        from unspill.sandbox.records import backups_of

        return backups_of(self._project.store, file)

    def runs(self, *, limit: int = 20) -> tuple[Run, ...]:
        """Return the latest runs, the youngest first."""
        return self._project.store.runs.latest(self._project.row.id, limit)

    def find_run(self, run: str | int) -> Run:
        """Return one run by number or id; it is a UsageError if there is none."""
        from unspill.sandbox.reading import get_run

        return get_run(self._project, run)

    def traffic(self, run: str | int) -> Traffic:
        """Return what one run reached and what it was refused."""
        from unspill.sandbox.reading import traffic_of

        return traffic_of(self._project, run)

    def plan(self, command: Command, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> Plan:
        """Return the sandbox that `run` would make, as data; its layer's directories are only named, not made."""
        from unspill.sandbox.reading import plan_as_if

        return plan_as_if(self._project, make_request(self._project, command, cwd, env, None))

    def explain(self, command: Command, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """Return the plan as text, with the reason for each line and one command that makes the same sandbox."""
        from unspill.plan.explain import explain

        return explain(self.plan(command, cwd=cwd, env=env), self._project.means.facts)
