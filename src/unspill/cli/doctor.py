# SPDX-License-Identifier: Apache-2.0
"""`unspill doctor [PROJECT] [--json]`: what works on this host, what follows, and how to repair the rest.

Finds everything out anew, and so renews what runs remember. What it means is judged in `host.level`.
"""

from __future__ import annotations

import os

from unspill.cli.options import EVERYWHERE, Command
from unspill.errors import BwrapMissing, BwrapUnsafe, HostError
from unspill.host.distribution import read_distribution
from unspill.host.level import report, with_container_mode
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.cli.options import Arguments
    from unspill.host.distribution import Distribution
    from unspill.host.level import DoctorReport, Row
    from unspill.host.survey import Finding, FindingKind, Survey
    from unspill.model.plan import Facts
    from unspill.model.policy import EngineName, NetworkMode, Profile

COMMAND = Command(
    name="doctor",
    summary="Say what this machine can do and how to get the rest; with PROJECT, look through that directory too.",
    options=EVERYWHERE,
    positional="[PROJECT]",
    most=1,
)

_MARKS = {"ok": "ok", "note": "note", "less": "less", "weak": "weak", "missing": "NO"}

# What a finding means for a run, and what the person can do about it.
FINDINGS: dict[FindingKind, tuple[str, str]] = {
    "other-owner": (
        "belong to another user or group: a command can't change them or anything inside them (EOVERFLOW)",
        'make them your own: sudo chown -R "$(id -u):$(id -g)" PATH',
    ),
    "setuid": ("are setuid or setgid: the bits have no effect inside, and writing a file drops them", ""),
    "capabilities": (
        "have file capabilities: a command can't change them (EINVAL)",
        "remove them where they are not needed: sudo setcap -r PATH",
    ),
    "immutable": ("are immutable or append-only: a command can't change or delete them", "sudo chattr -i -a PATH"),
    "hard-link": ("are hard links: a change breaks the link, and the other name keeps the old content", ""),
    "link-out": ("are symlinks that lead out of the project: they are never followed into a writable place", ""),
    "special": ("are sockets, FIFOs or devices: nothing outside can be reached through them", ""),
    "mount-point": (
        "are mount points: the kernel refuses an overlay over a directory that has one below",
        "unmount them, or run unspill in a directory beside them",
    ),
    "overlay-mark": (
        "have attributes named user.overlay.*: overlayfs takes them for its own, and may hide files from a command",
        "remove them: setfattr -x NAME PATH (getfattr -m '^user[.]overlay[.]' PATH lists the names)",
    ),
    "unreadable": ("can't be read: nothing is known of what is inside", "chmod u+rx PATH"),
}


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.cli.doctor_rootfs import rootfs_row
    from unspill.host.places import find_home
    from unspill.host.survey import survey_project
    from unspill.sandbox.locations import find_locations
    from unspill.sandbox.opening import get_facts
    from unspill.sandbox.project import find_project, resolve_project
    from unspill.sandbox.settings import load_policy
    from unspill.store.db import Store

    given = arguments.words[0] if arguments.words else arguments.value("--project")
    project = resolve_project(given or find_project(os.getcwdb()))
    locations = find_locations(find_home(os.getuid(), os.environb.get(b"HOME")).path, os.environb)
    policy = load_policy(locations, project, None)
    store = Store.open(locations.state)
    refused: HostError | None = None
    try:
        facts = get_facts(store, policy, (project,), afresh=True)
    except (BwrapMissing, BwrapUnsafe) as error:
        from unspill.host.probe import probe

        refused, facts = error, probe(None, store.state)
    text, code = doctor(
        project if given else None,
        as_json=arguments.flag("--json"),
        facts=facts,
        findings=survey_project(project) if given else None,
        allow_root=policy.allow_root,
        engine=policy.engine,
        profile=policy.profile,
        bwrap_error=refused,
        mode=policy.network.mode,
        container=_container_mode(facts) if policy.container else None,
        rootfs=rootfs_row(policy, locations),
    )
    print(text, end="")
    return code


def doctor(
    project: bytes | None,
    *,
    as_json: bool,
    facts: Facts,
    findings: Survey | None = None,
    allow_root: bool = False,
    engine: EngineName | None = None,
    profile: Profile = "default",
    bwrap_error: HostError | None = None,
    mode: NetworkMode = "proxy",
    container: tuple[str, bool] | None = None,
    distribution: Distribution | None = None,
    rootfs: Row | None = None,
) -> tuple[str, int]:
    """Return the text to print and the exit code: 0 if commands can be run here, 3 if not.

    `container` is for container mode, where it is configured: the container around us, and whether a sandbox works.
    """
    system = distribution or read_distribution()
    found = report(
        facts,
        distribution=system,
        allow_root=allow_root,
        engine=engine,
        profile=profile,
        bwrap_error=bwrap_error,
        mode=mode,
    )
    if container is not None:
        found = with_container_mode(found, container[0], can_seal=container[1])
    if rootfs is not None:
        found = found.replace(rows=(*found.rows, rootfs))
    code = HostError.exit_code if found.level == "D" else 0
    if as_json:
        return _as_json(project, facts, found, findings), code
    lines = [f"Level {found.level}: {found.summary}.  ({system.name}, Linux {facts.kernel})", ""]
    for row in found.rows:
        lines += _row_lines(row)
    if project is not None and findings is not None:
        lines += ["", *_project_lines(project, findings)]
    return "\n".join(lines) + "\n", code


def _container_mode(facts: Facts) -> tuple[str, bool]:
    from unspill.host.surroundings import find_engine
    from unspill.sandbox.opening import can_seal

    return find_engine(os.environ), can_seal(facts)


def _row_lines(row: Row) -> Iterator[str]:
    yield f"{_MARKS[row.standing]:<5} {row.fact:<15} {row.value}"
    yield f"      {row.consequence}"
    if row.remedy:
        first, *rest = row.remedy.split("\n")
        yield f"      Remedy: {first}"
        # Not indented: these lines are to be pasted, and the end of a here-document must start its line
        yield from rest


def _project_lines(project: bytes, survey: Survey) -> Iterator[str]:
    yield f"Project {show(project)}: {survey.entries} entries"
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


def _as_json(project: bytes | None, facts: Facts, found: DoctorReport, survey: Survey | None) -> str:
    import json

    value = {
        "level": found.level,
        "summary": found.summary,
        "rows": [row.as_dict() for row in found.rows],
        "facts": _plain(facts.as_dict()),
        "project": None if project is None else show(project),
        "entries": None if survey is None else survey.entries,
        "findings": [_plain(finding.as_dict()) for finding in (() if survey is None else survey.findings)],
    }
    return json.dumps(value, indent=2) + "\n"


def _plain(value: object) -> object:
    match value:
        case bytes():
            return show(value)
        case tuple() | list():
            return [_plain(part) for part in value]
        case dict():
            return {name: _plain(part) for name, part in value.items()}
        case None | bool() | int() | str():
            return value
    return _plain(value.as_dict())  # type: ignore[attr-defined]
