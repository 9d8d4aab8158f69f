# SPDX-License-Identifier: Apache-2.0
"""`unspill doctor [PROJECT] [--json]`: what works on this machine, what follows, and how to repair the rest.

Tries everything again, and so renews what runs remember. `host.diagnosis` says what the answers mean.
"""

from __future__ import annotations

import json
import os

from unspill.changes.render import safe_text
from unspill.cli.options import verb
from unspill.errors import BwrapUnsafe, HostError, RootfsError
from unspill.host.diagnosis import FINDINGS, Row, diagnose, survey_project
from unspill.host.places import find_home
from unspill.host.probe import detect_container, probe
from unspill.policy.paths import show
from unspill.rootfs.debian import check_host
from unspill.rootfs.registry import Registry
from unspill.sandbox.opening import get_facts
from unspill.sandbox.project import find_locations, find_project, resolve_project
from unspill.sandbox.rootfs_use import find_rootfs
from unspill.sandbox.settings import load_policy, rootfs_directory
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.cli.options import Arguments
    from unspill.host.diagnosis import DoctorReport, Finding, Standing, Survey
    from unspill.model.plan import Facts
    from unspill.model.policy import Policy
    from unspill.sandbox.project import Locations

_MARKS = {"ok": "ok", "note": "note", "less": "less", "weak": "weak", "missing": "NO"}


@verb(
    "Say what this machine can do and how to get the rest; with PROJECT, look through that directory too.",
    positional="[PROJECT]",
    most=1,
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
    print(as_json(facts, found, survey) if arguments.flag("--json") else as_text(facts, found, survey), end="")
    return exit_code(found)


def exit_code(found: DoctorReport) -> int:
    """Return 0 if commands can be run here, 3 if not."""
    return HostError.exit_code if found.level == "D" else 0


def as_text(facts: Facts, found: DoctorReport, survey: Survey | None = None) -> str:
    """Return the report as people read it."""
    lines = [f"Level {found.level}: {found.summary}.  (Linux {facts.kernel})", ""]
    for row in found.rows:
        lines += _row_lines(row)
    if survey is not None:
        lines += ["", *_project_lines(survey)]
    return "\n".join(lines) + "\n"


def as_json(facts: Facts, found: DoctorReport, survey: Survey | None = None) -> str:
    """Return the report with all facts, for programs."""
    value = {
        **found.as_dict(),
        "facts": facts,
        "project": None if survey is None else survey.root,
        "entries": None if survey is None else survey.entries,
        "findings": () if survey is None else survey.findings,
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


def _project_lines(survey: Survey) -> Iterator[str]:
    yield f"Project {show(survey.root)}: {survey.entries} entries"
    if not survey.findings:
        yield "ok    nothing in it needs attention"
    for finding in survey.findings:
        meaning, remedy = FINDINGS[finding.kind]
        yield f"note  {finding.count} {meaning}"
        yield f"      {_examples(finding)}"
        if remedy:
            yield f"      Remedy: {remedy}"


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
