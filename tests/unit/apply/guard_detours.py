# SPDX-License-Identifier: Apache-2.0
"""Detours to what is held: in steps, among references, through links, by what goes with a directory, and by modes."""

from tests.unit.apply.guard_cases import EVIL, MINIMAL, SHA, Case, bare, gone, only
from tests.unit.apply.guard_given import FOLDER, GONE, Link, Mode, Program, What
from unspill.policy import held as rows
from unspill.policy.held import GuardRow

# Whatever row of names it is
HELD_NAMES = GuardRow(what="", verdict="held", reason="")
HELD_AGENTS = GuardRow(what="", verdict="held", reason="", deleted="held")
FLAGGED_NAMES = GuardRow(what="", verdict="flagged", reason="")
WORKTREE = {"x/worktrees/w/commondir": "../..\n", "x/objects/k": "", "x/refs/k": ""}
LYING: dict[str, dict[str, What]] = {
    "config.worktree": {"x/config": MINIMAL, "x/config.worktree": EVIL},
    "a link for settings": {"x/config": Link("../settings"), "settings": EVIL},
    "a link for hooks": {"x/hooks": Link("../h"), "h/update": Program()},
    "a link for attributes": {"x/info": Link("../h"), "h/attributes": "* filter=x"},
    "attributes": {"x/info/attributes": "* filter=x\n"},
    "what can't be parsed": {"x/config": "[core"},
}
SETTINGS_IN_STEPS = [
    # The settings lie there already and are nothing yet; a mark of any kind makes them git's
    Case("x/HEAD", {"x/HEAD": SHA}, rows.COMPLETES, {"x/objects/k": "", "x/refs/k": "", **lies}, id=name)
    for name, lies in LYING.items()
] + [
    Case("x/objects", {"x/objects": FOLDER}, rows.COMPLETES, {"x/HEAD": SHA, "x/refs/k": "", "x/config": EVIL}),
    Case("x/refs/k", {"x/refs/k": "y"}, rows.COMPLETES, {"x/HEAD": SHA, "x/objects/k": "", "x/config": EVIL}),
    Case("x/refs", {"x/refs": Link("../r")}, rows.COMPLETES, {"x/HEAD": SHA, "x/objects/k": "", "x/config": EVIL}),
    Case("x/HEAD", {"x/HEAD": SHA}, rows.COMPLETES, {"x/commondir": "../evil\n", "evil/config": EVIL}),
    Case("x/HEAD", {"x/HEAD": SHA}, rows.COMPLETES, {"x/commondir": Link("../c"), "c": "../evil\n"}),
    Case("x/worktrees/w/HEAD", {"x/worktrees/w/HEAD": SHA}, rows.COMPLETES, {**WORKTREE, "x/config": EVIL}),
    Case("x/worktrees/w/HEAD", {"x/worktrees/w/HEAD": SHA}, None, {**WORKTREE, "x/config": MINIMAL}),
    Case("x/config", {"x/config": EVIL}, rows.SETTINGS, {**WORKTREE, "x/worktrees/w/HEAD": SHA}),
    Case(
        "x/worktrees/w/commondir",
        {"x/worktrees/w/commondir": "../..\n"},
        rows.COMPLETES,
        {"x/worktrees/w/HEAD": SHA, "x/objects/k": "", "x/refs/k": "", "x/config": EVIL},
    ),
    # A repository of the person's own, with settings of the person's own
    Case("x/HEAD", {"x/HEAD": SHA}, None, bare("x", **{"objects/k": "", "refs/k": "", "config": EVIL})),
    Case(
        "x/worktrees/w/HEAD",
        {"x/worktrees/w/HEAD": "new"},
        None,
        {**bare("x", config=EVIL), "x/worktrees/w/HEAD": SHA, "x/worktrees/w/commondir": "../..\n"},
    ),
    only("s/.git", "gitdir: ../.git/refs/evil\n", rows.COMPLETES),
    only("s/.git", "gitdir: ../.git\n", None),
    only("s/.git", "gitdir: ../.git/worktrees/s\n", None),
    only("s/.git", "gitdir: ../lnk/x\n", rows.COMPLETES, before={"lnk": Link("real"), "real/x/config": EVIL}),
    Case("s/.git", {"s/.git": "gitdir: ../lnk\n", "lnk": Link("real")}, rows.COMPLETES, {"real/config": EVIL}),
]
AMONG_REFERENCES = [
    only(f".git/{place}", content, rows.UNKNOWN)
    for content in (EVIL, "../evil\n", f"{SHA}\nevil\n", "")
    for place in """
    refs/evil/config refs/evil/config.worktree refs/evil/commondir refs/evil/hooks/update refs/evil/info/attributes
    refs/config reftable/evil/config logs/refs/evil/config logs/refs/config lfs/tmp/evil/config rebase-merge/config
    sequencer/commondir objects/info/commit-graphs/x/config fsmonitor--daemon/cookies/x/config worktrees/w/refs/x/config
    """.split()
] + [
    only(".git/logs/refs/e/commondir", f"{SHA} {SHA} a/../../../../../evil\n", rows.UNKNOWN),
    only(".git/refs/tools/run", Program(), rows.UNKNOWN),
    only(".git/objects/pack/x.pack", Program(), rows.UNKNOWN),
    Case(".git/refs/heads/x", {".git/refs/heads/x": Program(SHA)}, rows.UNKNOWN, {".git/refs/heads/x": SHA}),
]
MARKS = [
    *(Case(name, {name: GONE}, rows.PROJECT_MARK, {f"{name}/x": ""}, deleted=True) for name in (".git", ".hg", ".jj")),
    gone(".git", "gitdir: /elsewhere\n", rows.PROJECT_MARK),
    only(".git", "gitdir: x\n", rows.PROJECT_MARK, before={".git/HEAD": SHA}),
    only(".jj", "x", rows.PROJECT_MARK, before={".jj/x": ""}),
    Case("a/.hg", {"a/.hg": GONE}, None, {"a/.hg/x": ""}, deleted=True),
    Case("a/.git", {"a/.git": GONE}, rows.REPOSITORY, {"a/.git/HEAD": SHA}, deleted=True),
    Case("a", {"a": GONE}, rows.REPOSITORY, {"a/b/.git/HEAD": SHA}, deleted=True),
    Case("a", {"a": "x"}, rows.REPOSITORY, {"a/b/.git/HEAD": SHA}),
    Case("a", {"a": GONE}, None, {"a/.git": "gitdir: ../.git/modules/a\n"}, deleted=True),
    *(
        Case(
            name,
            {name: GONE},
            rows.MODULE,
            {".git/modules/a/b/HEAD": SHA, ".git/modules/a/b/objects/x": ""},
            deleted=True,
        )
        for name in (".git/modules", ".git/modules/a", ".git/modules/a/b")
    ),
    Case(
        ".git/modules/a/refs/x", {".git/modules/a/refs/x": GONE}, None, {".git/modules/a/refs/x/y": SHA}, deleted=True
    ),
]
_KEPT = (".claude/settings.json", ".unspill.toml", ".mcp.json", "deep/.github/hooks/x.json", "deep/down/.Cursor/x")
GOING = [
    *(Case("sub", {"sub": GONE}, rows.GONE_WITH_IT, {f"sub/{name}": "x"}, deleted=True) for name in _KEPT),
    *(Case("sub", {"sub": Link("x")}, rows.GONE_WITH_IT, {f"sub/{name}": "x"}) for name in _KEPT),
    Case(".github", {".github": GONE}, rows.GONE_WITH_IT, {".github/hooks/x.json": "x"}, deleted=True),
    Case(".github", {".github": GONE}, None, {".github/workflows/x.yml": "x"}, deleted=True),
    Case("sub", {"sub": GONE}, None, {"sub/.envrc": "x", "sub/.vscode/x": "x"}, deleted=True),
    Case("node_modules", {"node_modules": GONE}, None, {"node_modules/x/.claude/y": "x"}, deleted=True),
    Case("sub", {"sub": GONE}, None, {"sub/node_modules/x/.claude/y": "x"}, deleted=True),
    Case("node_modules/x", {"node_modules/x": GONE}, None, {"node_modules/x/.claude/y": "x"}, deleted=True),
    Case(".mcp.json", {".mcp.json": FOLDER}, HELD_AGENTS, {".mcp.json": "x"}, deleted=True),
    Case(".mcp.json/x", {".mcp.json/x": "y"}, HELD_AGENTS, {".mcp.json": "x"}, deleted=True),
    Case(".claude/settings.json", {".claude/settings.json": FOLDER}, HELD_AGENTS, {".claude/settings.json": "x"}),
    Case(".git/config", {".git/config": FOLDER}, rows.SETTINGS, {".git/config": EVIL}),
    Case("docs", {"docs": FOLDER}, None, {"docs": "x"}),
]
ABOVE_NAMES = [
    *(only(name, Link("elsewhere"), HELD_NAMES) for name in (".hg", ".config", ".github", ".jj", ".jj/repo", "a/.HG")),
    only(".cargo", Link("elsewhere"), FLAGGED_NAMES),
    only("node_modules/x/.github", Link("elsewhere"), FLAGGED_NAMES),
    *(
        only(name, Link("t2"), row, before={".git/config": f"[core]\n\thooksPath = {path}\n"})
        for name, path, row in (
            ("tools", "tools/hooks", rows.PROGRAM),
            ("a/b", "a/b/c/d", rows.PROGRAM),
            ("tools", "other/hooks", None),
            ("tools/x", "tools/hooks", None),
        )
    ),
    only("t", Link("u"), rows.PROGRAM, before={".git/config": '[filter "x"]\n\tclean = python "t/clean.py" %f\n'}),
    only("t", Link("u"), rows.PROGRAM, before={".git/config": "[include]\n\tpath = ../t/settings\n"}),
]
LINKED = [
    only(path, "x", row, before={link: Link(target), f"{top}/y": ""})
    for link, target, top, path, row in (
        (".vscode", "ide", "ide", "ide/tasks.json", HELD_NAMES),
        (".vscode", "ide", "ide", "ide/extensions.json", None),
        (".mcp.json", "ai/servers", "ai", "ai/servers", HELD_NAMES),
        (".config", "dot", "dot", "dot/mise/config.toml", HELD_NAMES),
        (".config", "dot", "dot", "dot/other", None),
        (".claude/commands", "../ai/commands", "ai/commands", "ai/commands/x.md", HELD_NAMES),
        ("docs", "ai", "ai", "ai/x", None),
        (".vscode", "/elsewhere", "elsewhere", "elsewhere/tasks.json", None),
        (".git/hooks", "../tools", "tools", "tools/pre-commit", rows.HOOK),
        (".git/hooks/pre-commit", "../../tools/check.sh", "tools", "tools/check.sh", rows.HOOK),
        (".git/hooks/pre-commit", "../../tools/check.sh", "tools", "tools/other.sh", None),
    )
]
DISGUISED = [
    *(
        only(f"{place}/{name}", "x", HELD_NAMES)
        for place in (".GIT/refs/p", ".git:docs/refs", ".git/refs/q", ".git/logs/refs/q", ".git/rebase-merge")
        for name in (".envrc", ".vscode/tasks.json", ".claude/settings.json", "mise.toml")
        if (place, "/" in name) != (".git/rebase-merge", True)
    ),
    only(".git/refs/q/.envrc", f"{SHA}\n", HELD_NAMES),
    only(".git/logs/refs/q/.envrc", f"{SHA} {SHA} x\t$(evil)\n", HELD_NAMES),
    only(".git/refs/q/mise.toml", "ref: refs/$(evil)\n", HELD_NAMES),
    gone(".git/refs/heads/mcp.json", f"{SHA}\n", None),
]
MODES = [
    Case("a", {"a": Mode("x", 0o666)}, rows.OPEN_TO_ALL, {"a": Mode("x", 0o644)}),
    Case("a", {"a": Mode("y", 0o666)}, rows.OPEN_TO_ALL, {"a": Mode("x", 0o644)}),
    Case("a", {"a": Mode("x", 0o666)}, rows.OPEN_TO_ALL),
    Case("a", {"a": Mode("x", 0o777)}, rows.OPEN_TO_ALL),
    Case("a", {"a": Mode("x", 0o664)}, None),
    Case("d", {"d": Mode(None, 0o777)}, rows.OPEN_TO_ALL),
    Case("d", {"d": Mode(None, 0o1777)}, None),
    Case("d", {"d": Mode(None, 0o1777)}, None, {"d": Mode(None, 0o755)}),
    Case(".", {".": Mode(None, 0o1777)}, rows.OPEN_GIT, {".": Mode(None, 0o755)}),
    Case(".git/hooks", {".git/hooks": Mode(None, 0o777)}, rows.OPEN_TO_ALL, {".git/HEAD": SHA}),
    Case("a", {"a": Mode("y", 0o666)}, None, {"a": Mode("x", 0o666)}),
    Case("a", {"a": Mode("x", 0o664)}, None, {"a": Mode("x", 0o644)}),
    Case("a", {"a": Mode("x", 0o4755)}, rows.OPEN_TO_ALL, {"a": Mode("x", 0o755)}),
    Case("a", {"a": Mode("x", 0o4755)}, rows.OPEN_TO_ALL),
    Case("d", {"d": Mode(None, 0o777)}, rows.OPEN_TO_ALL, {"d": Mode(None, 0o755)}),
    Case(".git", {".git": Mode(None, 0o777)}, rows.OPEN_GIT, {".git": Mode(None, 0o755)}),
    Case(".git/hooks", {".git/hooks": Mode(None, 0o757)}, rows.OPEN_GIT, {".git/hooks": Mode(None, 0o755)}),
    Case(".git/HEAD", {".git/HEAD": Mode(SHA, 0o666)}, rows.OPEN_GIT, {".git/HEAD": Mode(SHA, 0o644)}),
    Case(".git/HEAD", {".git/HEAD": Mode(SHA, 0o664)}, None, {".git/HEAD": Mode(SHA, 0o644)}),
    Case(".", {".": Mode(None, 0o300)}, rows.CLOSED_ROOT, {".": Mode(None, 0o755)}),
    Case(".", {".": Mode(None, 0o500)}, None, {".": Mode(None, 0o755)}),
    Case(".", {".": Mode(None, 0o777)}, rows.OPEN_GIT, {".": Mode(None, 0o755)}),
]
DETOURS = [
    *SETTINGS_IN_STEPS,
    *AMONG_REFERENCES,
    *MARKS,
    *GOING,
    *ABOVE_NAMES,
    *LINKED,
    *DISGUISED,
    *MODES,
]
