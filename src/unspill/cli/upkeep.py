# SPDX-License-Identifier: Apache-2.0
"""What unspill keeps for all projects, and this machine: `playground`, `prune`, `recover`, `doctor`.

`doctor` tries everything again, and so renews what runs remember. `host.diagnosis` says what the answers mean.
"""

from __future__ import annotations

import json
import os

from unspill.changes.render import named, safe_text
from unspill.cli.main import NO_PROJECT, Option, named_project, verb
from unspill.cli.output import (
    Elapsed,
    count_text,
    decoded,
    fit,
    operation_form,
    print_json,
    recovered_lines,
    size_text,
    when_text,
)
from unspill.errors import BwrapUnsafe, HostError, RootfsError
from unspill.host.diagnosis import (
    FINDINGS,
    Row,
    diagnose,
    survey_project,
)
from unspill.host.places import find_home
from unspill.host.probe import detect_container, probe
from unspill.policy.paths import quote, show, show_line
from unspill.rootfs.debian import check_host
from unspill.rootfs.registry import Registry
from unspill.sandbox.project import (
    find_locations,
    find_own_locations,
    find_project,
    get_facts,
    load_policy,
    resolve_project,
    rootfs_directory,
)
from unspill.sandbox.rootfs_use import find_rootfs
from unspill.sandbox.secrets import FoundSecrets, survey_secrets
from unspill.sandbox.upkeep import empty_playground, look_at_playground, prune_now, recover_now
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.host.diagnosis import (
        DoctorReport,
        Finding,
        Standing,
        Survey,
    )
    from unspill.model.plan import Facts
    from unspill.model.policy import Policy
    from unspill.sandbox.project import Locations
    from unspill.sandbox.upkeep import (
        Playground,
        Pruned,
        Recovered,
    )

_MARKS = {"ok": "ok", "note": "note", "less": "less", "weak": "weak", "missing": "NO"}
_NO_SECRETS = FoundSecrets()
_MOST_SECRETS = 50


@verb(
    "Show where the project's scratch directory is, and what is in it.",
    Option(name="--empty", help="delete everything in it, for good: undo can't restore it"),
    NO_PROJECT.replace(help="the one of commands without a project"),
    examples=(
        "unspill playground",
        "unspill playground --empty",
    ),
)
def playground(arguments: Arguments) -> int:
    """Say what is in the playground, or empty it. That needs no sandbox, so it works where none can be made."""
    arguments.only_one("--project", "--no-project")
    locations = find_own_locations()
    if arguments.flag("--no-project"):
        project = locations.home
    else:
        project = resolve_project(named_project(arguments) or find_project(os.getcwdb()))
    is_emptied = arguments.flag("--empty")
    if is_emptied:
        with Store.open(locations.state) as store, Elapsed("Deleting"):
            found = empty_playground(store, locations.data, project)
    else:
        found = look_at_playground(locations.data, project)
    if arguments.flag("--json"):
        print_json({"emptied": is_emptied, **_playground_form(found)})
    else:
        print("\n".join(map(fit, _playground_lines(found, is_emptied=is_emptied))))
    return 0


@verb(
    "Delete operations, backups and runs older than `keep_days`, in all projects. Held changes stay.",
    Option(name="--dry-run", help="only say what would be deleted"),
    examples=(
        "unspill prune --dry-run",
        "unspill prune",
    ),
)
def prune(arguments: Arguments) -> int:
    """Forget what is older than the settings keep."""
    dry_run = arguments.flag("--dry-run")
    with Elapsed("Pruning"):
        pruned = prune_now(dry_run=dry_run)
    if arguments.flag("--json"):
        print_json({"dry_run": dry_run, **_pruned_form(pruned)})
        return 0
    if not (pruned.operations or pruned.runs):
        print("There is nothing to delete: nothing is older than `keep_days`.")
        return 0
    word = "Would delete" if dry_run else "Deleted"
    counts = (
        count_text(len(pruned.operations), "operation"),
        count_text(len(pruned.names), "named backup"),
        count_text(len(pruned.runs), "run"),
    )
    print(f"{word} {', '.join(counts)}: {size_text(pruned.bytes)}.")
    return 0


@verb(
    "Replace a lost or damaged database with its last copy. Deletes nothing.",
    examples=("unspill recover",),
)
def recover(arguments: Arguments) -> int:
    """Replace a lost or damaged database with its last copy."""
    done = recover_now()
    if arguments.flag("--json"):
        print_json(_recovered_form(done))
    else:
        print("\n".join(_recovered_lines(done)))
    return 0


def _playground_lines(found: Playground, *, is_emptied: bool) -> Iterator[str]:
    amount = f"{found.entries} {'entry' if found.entries == 1 else 'entries'}, {size_text(found.bytes)}"
    if not found.entries:
        yield f"{quote(found.path)} is empty."
    elif is_emptied:
        yield f"Emptied {quote(found.path)}: deleted {amount}."
    else:
        yield f"{quote(found.path)}: {amount}"
        for name, size in found.names:
            yield row(size, show_line(name))
        if found.left_out:
            yield f"  and {found.left_out} more"
        yield "Delete all of it with --empty."


def _playground_form(found: Playground) -> dict[str, Any]:
    return {
        **named("playground", found.path),
        "entries": found.entries,
        "bytes": found.bytes,
        "names": [{**named("name", name), "bytes": size} for name, size in found.names],
        "left_out": found.left_out,
    }


def row(size: int, text: str) -> str:
    return f"  {size_text(size):>12}  {text}"


def _recovered_lines(done: Recovered) -> Iterator[str]:
    if not done.reason:
        yield "The database is intact."
    else:
        yield f"The database was lost: {safe_text(done.reason)}"
        if done.database is not None:
            yield f"The damaged file is kept as {quote(done.database)}."
        if done.copied_ns is None:
            yield "There was no copy. The new database is empty."
        else:
            yield f"Replaced it with the copy of {when_text(done.copied_ns)}."
    for operation in done.interrupted:
        yield from recovered_lines(operation)
    if done.aside:
        yield "Set aside, because the database does not know them. Copy what you need, then delete them:"
    for path in done.aside:
        yield f"  {quote(path)}"


def _pruned_form(pruned: Pruned) -> dict[str, Any]:
    """Return what was forgotten, or would be."""
    return {
        "operations": list(pruned.operations),
        "runs": list(pruned.runs),
        "backups": [decoded(name) for name in pruned.names],
        "bytes": pruned.bytes,
    }


def _recovered_form(done: Recovered) -> dict[str, Any]:
    """Return what was done about a lost or damaged database."""
    return {
        "reason": done.reason,
        "database": None if done.database is None else decoded(done.database),
        "copied_ns": done.copied_ns,
        "interrupted": [operation_form(operation) for operation in done.interrupted],
        "aside": [decoded(path) for path in done.aside],
    }


@verb(
    "Check this machine and say how to fix what is missing; with PROJECT, check that directory too.",
    positional="[PROJECT]",
    most=1,
    examples=(
        "unspill doctor",
        "unspill doctor .",
    ),
)
def doctor(arguments: Arguments) -> int:
    """Say what works on this host."""
    given = arguments.words[0] if arguments.words else arguments.value("--project")
    project = resolve_project(given or find_project(os.getcwdb()))
    locations = find_locations(find_home(os.getuid(), os.environb.get(b"HOME")).path, os.environb)
    policy = load_policy(locations, project, None)
    store = Store.open(locations.state)
    refused: HostError | None = None
    try:
        facts = get_facts(store, policy, (project,), afresh=True)
    except BwrapUnsafe as error:
        refused, facts = error, probe(None, store.state)
    found = diagnose(facts, policy, bwrap_error=refused, container=detect_container(os.environ))
    found = found.replace(rows=(*found.rows, *_rootfs_row(policy, locations)))
    survey = survey_project(project) if given else None
    secrets = survey_secrets(store, project, (project, *policy.roots), policy.secrets) if given else _NO_SECRETS
    form = as_json if arguments.flag("--json") else as_text
    print(form(facts, found, survey, secrets), end="")
    return exit_code(found)


def exit_code(found: DoctorReport) -> int:
    """Return 0 if commands can be run here, 3 if not."""
    return HostError.exit_code if found.level == "D" else 0


def as_text(
    facts: Facts, found: DoctorReport, survey: Survey | None = None, secrets: FoundSecrets = _NO_SECRETS
) -> str:
    """Return the report as people read it."""
    lines = [f"Level {found.level}: {found.summary}.  (Linux {facts.kernel})", ""]
    for row in found.rows:
        lines += _row_lines(row)
    if survey is not None:
        lines += ["", *_project_lines(survey, secrets)]
    return "\n".join(lines) + "\n"


def as_json(
    facts: Facts, found: DoctorReport, survey: Survey | None = None, secrets: FoundSecrets = _NO_SECRETS
) -> str:
    """Return the report with all facts, for programs."""
    value = {
        **found.as_dict(),
        "facts": facts,
        "project": None if survey is None else survey.root,
        "entries": None if survey is None else survey.entries,
        "findings": () if survey is None else survey.findings,
        "hidden_secrets": secrets.hidden,
        "tracked_secrets": secrets.tracked,
        "all_searched": secrets.is_whole,
    }
    return (
        json.dumps(value, indent=2, default=lambda part: show(part) if isinstance(part, bytes) else part.as_dict())
        + "\n"
    )


def _row_lines(row: Row) -> Iterator[str]:
    yield f"{_MARKS[row.standing]:<5} {row.fact:<15} {row.value}"
    yield f"      {row.consequence}"
    if row.remedy:
        first, *rest = row.remedy.split("\n")
        yield f"      Remedy: {first}"
        # Not indented: these lines are to be pasted, and the end of a here-document must start its line
        yield from rest


def _project_lines(survey: Survey, secrets: FoundSecrets) -> Iterator[str]:
    yield f"Project {show(survey.root)}: {survey.entries} entries"
    about_secrets = list(_secret_lines(survey.root, secrets))
    if not survey.findings and not about_secrets:
        yield "ok    nothing needs attention"
    for finding in survey.findings:
        meaning, remedy = FINDINGS[finding.kind]
        yield f"note  {finding.count} {meaning}"
        yield f"      {_examples(finding)}"
        if remedy:
            yield f"      Remedy: {remedy}"
    yield from about_secrets


def _secret_lines(project: bytes, found: FoundSecrets) -> Iterator[str]:
    if found.hidden:
        yield f"note  {_named(found.hidden, project)} hidden from commands"
        yield "      Show one to a run with --reveal PATH, or to every run with `reveal` under [secrets]."
    if found.tracked:
        yield f"note  {_named(found.tracked, project)} visible although named like secrets: git tracks them"
    if not found.is_whole:
        yield "note  this project is too large to search whole: secrets that lie deep in it may be visible"
        yield "      Remedy: name their directories in `directories` under [secrets] in your configuration"


def _named(paths: Sequence[bytes], project: bytes) -> str:
    names = ", ".join(quote(os.path.relpath(path, project)) for path in paths[:_MOST_SECRETS])
    more = f" and {len(paths) - _MOST_SECRETS} more" if len(paths) > _MOST_SECRETS else ""
    return f"{names}{more} {'is' if len(paths) == 1 else 'are'}"


def _examples(finding: Finding) -> str:
    listed = ", ".join(map(show, finding.examples))
    more = finding.count - len(finding.examples)
    return f"{listed} and {more} more" if more > 0 else listed


def _rootfs_row(policy: Policy, locations: Locations) -> Iterator[Row]:
    """Say which rootfs is meant and whether it is ready; nothing where the view is another and there is no rootfs."""
    is_meant = policy.view == "rootfs"
    directory = locations.rootfs
    standing: Standing = "ok"
    remedy = ""
    try:
        directory = rootfs_directory(policy, locations)
        if not is_meant and not Registry(directory).list():
            return
        value = f"{safe_text(find_rootfs(policy.replace(provision=None), locations).name)}, ready"
        text = "Commands see it instead of this machine." if is_meant else 'Used where `view = "rootfs"` is set.'
    except RootfsError as error:
        if policy.provision is not None:
            made = policy.provision.label or policy.provision.source
            value, standing = f"none yet in {show(directory)}", "note"
            text = f"The first run in the view `rootfs` makes {made}."
        else:
            value, standing, remedy = safe_text(error.message), "missing" if is_meant else "note", error.remedy
            text = "Nothing can be run in the view `rootfs`."
    try:
        check_host()
        debian = "A Debian one can be built here."
    except RootfsError as error:
        debian = f"A Debian one can't be built here: {error.message}."
    yield Row(fact="rootfs", value=value, standing=standing, consequence=f"{text} {debian}", remedy=remedy)
