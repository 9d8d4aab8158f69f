# SPDX-License-Identifier: Apache-2.0
"""Judges Facts: what each one means for a run, what repairs it, and the level of the whole.

Pure. A is everything, B lacks something a run can do without, C is a weaker mode the person configured, D refuses.
"""

from __future__ import annotations

from unspill.host.distribution import remedy_for
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.errors import HostError
    from unspill.host.distribution import Distribution, Repair
    from unspill.model.plan import Facts, Level
    from unspill.model.policy import EngineName, NetworkMode, Profile

    Standing = Literal["ok", "note", "less", "weak", "missing"]

_CAUSES: tuple[Repair, ...] = ("max-user-namespaces", "userns-clone", "apparmor", "surroundings")
_SUMMARIES: dict[Level, str] = {
    "A": "everything works",
    "B": "runs are sealed; something they can do without is missing",
    "C": "a weaker mode that you configured",
    "D": "no command is run here until what is missing is repaired",
}


class Row(Record):
    """One fact: its value, what follows from it, and what would make it better."""

    fact: str
    value: str
    standing: Standing
    consequence: str
    remedy: str = ""


class DoctorReport(Record):
    """The level, and every row that led to it."""

    level: Level
    summary: str
    rows: tuple[Row, ...]


def report(
    facts: Facts,
    *,
    distribution: Distribution,
    allow_root: bool = False,
    engine: EngineName | None = None,
    profile: Profile = "default",
    bwrap_error: HostError | None = None,
    mode: NetworkMode = "proxy",
) -> DoctorReport:
    """Judge the facts for a policy's `allow_root`, `engine`, `profile` and `mode` of a network.

    `bwrap_error` is why `find_bwrap` found none.
    """
    judge = _Judge(facts, distribution)
    rows = (
        judge.caller(allow_root=allow_root),
        judge.bwrap(bwrap_error),
        judge.namespaces(),
        judge.disable_userns(),
        judge.proc(),
        judge.state(),
        judge.engines(engine),
        judge.layers(),
        judge.symlinks(),
        judge.cgroup(),
        judge.seccomp(),
        judge.landlock(profile),
        judge.kernel("openat2", "on" if facts.openat2 else "", "Paths are opened without following a link."),
        *judge.network(mode),
        *judge.surroundings(),
    )
    level = level_of(rows)
    return DoctorReport(level=level, summary=_SUMMARIES[level], rows=rows)


def with_container_mode(found: DoctorReport, engine: str, *, can_seal: bool) -> DoctorReport:
    """Add what it means that container mode is configured. `engine` is the container that was detected, or "".

    It takes the place of what is missing; but for a caller that is refused in any case.
    """
    value = "container = true"
    if can_seal:
        text = "It has no effect: a sandbox can be made here, and is."
        return found.replace(rows=(*found.rows, Row(fact="mode", value=value, standing="note", consequence=text)))
    if not engine:
        text = "It has no effect: no container was detected around this process, so commands are refused."
        return found.replace(rows=(*found.rows, Row(fact="mode", value=value, standing="note", consequence=text)))
    text = (
        f"Container mode: commands run WITHOUT a sandbox, as plain processes of this {engine} container. What they"
        " change is not held and can't be undone."
    )
    remedy = "let the container make user namespaces (see deploy/README.md), and a sandbox is used instead"
    row = Row(fact="mode", value=value, standing="weak", consequence=text, remedy=remedy)
    is_refused = any(row.fact == "caller" and row.standing == "missing" for row in found.rows)
    level: Level = "D" if is_refused else "C"
    return DoctorReport(level=level, summary=_SUMMARIES[level], rows=(*found.rows, row))


def find_refusal(found: DoctorReport) -> Row | None:
    """Return the first row that keeps every command from being run, for the text of an error."""
    return next((row for row in found.rows if row.standing == "missing"), None)


def level_of(rows: tuple[Row, ...]) -> Level:
    """Return the level of the worst row."""
    standings = {row.standing for row in rows}
    if "missing" in standings:
        return "D"
    if "weak" in standings:
        return "C"
    return "B" if "less" in standings else "A"


class _Judge:
    """One method per row."""

    def __init__(self, facts: Facts, distribution: Distribution) -> None:
        self._facts = facts
        self._distribution = distribution
        self._problems = dict(facts.problems)

    def caller(self, *, allow_root: bool) -> Row:
        value = f"uid {self._facts.uid}"
        if self._facts.uid != 0:
            return Row(fact="caller", value=value, standing="ok", consequence="An ordinary user.")
        if allow_root:
            text = "allow_root is configured: every capability is dropped, but limits on processes do not bind root."
            return Row(
                fact="caller", value=value, standing="weak", consequence=text, remedy=self._remedy("root-caller")
            )
        text = "Runs of root are refused: a way out of the sandbox would be a way to everything."
        return Row(fact="caller", value=value, standing="missing", consequence=text, remedy=self._remedy("root-caller"))

    def network(self, mode: NetworkMode) -> tuple[Row, ...]:
        if mode == "proxy":
            return ()
        text = (
            "A command that a network is allowed to gets this host's own: all that listens on its loopback, its "
            "neighbours, and abstract sockets of every program of yours."
        )
        remedy = 'set `mode = "proxy"` under `[network]` in your configuration'
        return (Row(fact="network", value='mode = "host"', standing="weak", consequence=text, remedy=remedy),)

    def bwrap(self, error: HostError | None) -> Row:
        bwrap = self._facts.bwrap
        if bwrap is None:
            why = error.message if error is not None else "There is no bwrap."
            how = (error.remedy if error is not None else "") or self._remedy("bwrap-missing")
            return Row(fact="bwrap", value="none", standing="missing", consequence=why, remedy=how)
        value = f"{_show(bwrap.path)} {bwrap.version}"
        return Row(fact="bwrap", value=value, standing="ok", consequence="Root's own, and nobody else can write it.")

    def namespaces(self) -> Row:
        if self._facts.namespaces:
            return _works("namespaces", "Commands run in user, mount, pid, network and ipc namespaces of their own.")
        return self._fails("namespaces", "namespaces", "No sandbox can be made.", self._cause())

    def disable_userns(self) -> Row:
        if self._facts.disable_userns:
            return _works("disable-userns", "A command can't make namespaces in which it would undo the sandbox.")
        is_old = "Unknown option" in self._problems.get("disable_userns", "")
        repair = "bwrap-0.8" if is_old else "disable-userns" if self._facts.namespaces else self._cause()
        return self._fails("disable-userns", "disable_userns", "A command could undo read-only mounts.", repair)

    def proc(self) -> Row:
        if self._facts.proc_mount:
            return _works("proc", "Commands see their own processes only.")
        repair = "proc" if self._facts.namespaces else self._cause()
        return self._fails("proc", "proc_mount", "Commands would see the host's processes, or none.", repair)

    def state(self) -> Row:
        kind = self._facts.state_filesystem or "unknown"
        if "state" in self._problems:
            return self._fails("state", "state", "Layers can't be kept.", "state", value=kind)
        return Row(fact="state", value=kind, standing="ok", consequence="The filesystem of the state directory.")

    def engines(self, wanted: EngineName | None) -> Row:
        engines = self._facts.engines
        value = ", ".join(engines) or "none"
        if "state" in self._problems:
            return self._fails("engines", "state", "No layer can be put over a project.", "state", value=value)
        if not engines:
            why = self._problems.get("mount", "") or self._problems.get("own_namespace", "")
            text = f"No overlay can be mounted: {why}"
            return Row(fact="engines", value=value, standing="missing", consequence=text, remedy=self._engine_remedy())
        if wanted is not None and wanted not in engines:
            why = f"The configuration asks for {wanted}, which does not work here: {self._problems.get(wanted, '')}"
            how = f"Configure no engine, or one of these. {self._engine_remedy()}"
            return Row(fact="engines", value=value, standing="missing", consequence=why, remedy=how)
        if (wanted or engines[0]) == "mount":
            return Row(fact="engines", value=value, standing="ok", consequence="We mount overlays ourselves.")
        text = f"bwrap mounts overlays; ours would be faster: {self._problems.get('mount', '')}"
        return Row(fact="engines", value=value, standing="note", consequence=text)

    def layers(self) -> Row:
        if self._facts.lowerdir_plus:
            return _works("lowerdir+", "A stack can have up to 500 layers.")
        text = "A stack can have some two hundred layers: Linux 6.7 or later is needed for more."
        return Row(fact="lowerdir+", value="no", standing="note", consequence=text)

    def symlinks(self) -> Row:
        bwrap = self._facts.bwrap
        if bwrap is None or not bwrap.symlink_flaw:
            return Row(
                fact="symlink-flaw", value="no", standing="ok", consequence="bwrap follows no symlink at set-up."
            )
        text = (
            "This bwrap follows symlinks while it makes mount points (CVE-2026-87766). unspill never lets it make one "
            "beneath what a command may have written."
        )
        remedy = self._remedy("bwrap-0.12")
        return Row(fact="symlink-flaw", value="yes", standing="note", consequence=text, remedy=remedy)

    def cgroup(self) -> Row:
        if self._facts.cgroup != "none":
            text = "Processes and memory are limited per run."
            return Row(fact="cgroup", value=self._facts.cgroup, standing="ok", consequence=text)
        text = f"Processes and memory are limited per process only: {self._problems.get('cgroup', '')}."
        return Row(fact="cgroup", value="none", standing="less", consequence=text, remedy=self._remedy("cgroup"))

    def seccomp(self) -> Row:
        if self._facts.seccomp:
            text = "Every run has a filter: calls that no namespace covers, or that are not known, are refused."
            return Row(fact="seccomp", value="on", standing="ok", consequence=text)
        return self._fails("seccomp", "seccomp", "System calls can't be filtered.", "kernel")

    def landlock(self, profile: Profile) -> Row:
        value = f"ABI {self._facts.landlock_abi}" if self._facts.landlock_abi else ""
        text = "No run uses it."
        if profile == "strict":
            text = 'No run uses it: the profile "strict" refuses more system calls, but has no Landlock fence.'
        return self.kernel("landlock", value, text)

    def kernel(self, fact: str, value: str, consequence: str) -> Row:
        if value:
            return Row(fact=fact, value=value, standing="ok", consequence=consequence)
        key = "landlock_abi" if fact == "landlock" else fact
        text = f"The kernel does not offer it: {self._problems.get(key, '')}"
        return Row(fact=fact, value="no", standing="less", consequence=text, remedy=self._remedy("kernel"))

    def surroundings(self) -> tuple[Row, ...]:
        """Say where we seem to be; that alone never decides anything."""
        rows = []
        if self._facts.flatpak:
            text = "unspill runs inside a Flatpak application."
            rows.append(Row(fact="flatpak", value="yes", standing="note", consequence=text))
        if self._facts.container:
            text = "Something seems to surround this process. What works was found out by running it."
            rows.append(Row(fact="inside", value=self._facts.container, standing="note", consequence=text))
        return tuple(rows)

    def _cause(self) -> Repair:
        if self._facts.flatpak:
            return "flatpak"
        if self._facts.bwrap is None:
            return "bwrap-missing"
        return next((cause for cause in _CAUSES if cause in self._problems), "surroundings")

    def _engine_remedy(self) -> str:
        if "mount" in self._facts.engines:
            return 'Remove the setting "engine": overlays work here.'
        if self._facts.own_namespace:
            return self._remedy("state-filesystem")
        if self._facts.bwrap is not None and not self._facts.bwrap.has_overlay:
            return self._remedy("bwrap-0.11")
        return self._remedy(self._cause() if any(name in self._problems for name in _CAUSES) else "state-filesystem")

    def _fails(self, fact: str, problem: str, consequence: str, repair: Repair, *, value: str = "no") -> Row:
        why = self._problems.get(problem, "")
        text = f"{consequence} {why}".rstrip()
        return Row(fact=fact, value=value, standing="missing", consequence=text, remedy=self._remedy(repair))

    def _remedy(self, repair: Repair) -> str:
        bwrap = self._facts.bwrap
        path = "/usr/bin/bwrap" if bwrap is None else _show(bwrap.path)
        return remedy_for(repair, self._distribution, bwrap=path)


def _works(fact: str, consequence: str) -> Row:
    return Row(fact=fact, value="yes", standing="ok", consequence=consequence)


def _show(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
